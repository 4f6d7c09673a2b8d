// A tiktoken-style rank file, as Llama 3 was published with: "base64 of a token's bytes, blank, its id" a line.

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/text/matching/published_expressions.h"
#include "nibble/core/text/tokenizers/base64.h"
#include "nibble/core/text/tokenizers/json/json_tokenizer.h"
#include "nibble/core/text/tokenizers/models/byte_level.h"

namespace nibble {

namespace {

using nlohmann::json;

constexpr size_t kMaxTokenBytes = 512;

// llama-models' tokenizer.py (Llama 3.1).
constexpr size_t kLlama3Specials = 256;
constexpr std::array<const char*, 12> kLlama3Names = {"<|begin_of_text|>",
                                                      "<|end_of_text|>",
                                                      "<|reserved_special_token_0|>",
                                                      "<|reserved_special_token_1|>",
                                                      "<|finetune_right_pad_id|>",
                                                      "<|step_id|>",
                                                      "<|start_header_id|>",
                                                      "<|end_header_id|>",
                                                      "<|eom_id|>",
                                                      "<|eot_id|>",
                                                      "<|python_tag|>",
                                                      "<|image|>"};

std::vector<std::string> read_ranks(const std::string& text, const std::string& file) {
  std::vector<std::string> tokens;
  size_t line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view row = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    const auto fail = [&](const std::string& reason) {
      throw InputError(file + ":" + std::to_string(line), reason, "a line is a token in base64, a blank, and its id");
    };
    const size_t blank = row.find(' ');
    const std::optional<std::string> bytes =
        blank == std::string_view::npos ? std::nullopt : decode_base64(row.substr(0, blank));
    if (!bytes || bytes->empty()) fail("holds no token in base64");
    if (bytes->size() > kMaxTokenBytes) fail("holds a token of more than " + std::to_string(kMaxTokenBytes) + " bytes");
    if (row.substr(blank + 1) != std::to_string(tokens.size())) fail("has not the id " + std::to_string(tokens.size()));
    tokens.push_back(*bytes);
  }
  return tokens;
}

std::string spelled(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += byte_level_character(static_cast<unsigned char>(byte));
  return text;
}

// Every way to make a token of two others; ids are ranks, so merges into a smaller id come first.
json merges_of(const std::vector<std::string>& tokens, const std::map<std::string, size_t, std::less<>>& ids) {
  json merges = json::array();
  for (const std::string& token : tokens) {
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const std::string_view left = std::string_view(token).substr(0, cut), right = std::string_view(token).substr(cut);
      if (ids.contains(left) && ids.contains(right)) merges.push_back({spelled(left), spelled(right)});
    }
  }
  return merges;
}

}  // namespace

bool is_rank_file(std::string_view text) {
  const size_t line = std::min(text.find('\n'), text.size()), blank = text.find(' ');
  if (blank >= line || blank == 0 || line > kMaxTokenBytes * 2) return false;
  const std::string_view id = text.substr(blank + 1, line - blank - 1);
  return decode_base64(text.substr(0, blank)).has_value() && (id == "0" || id == "0\r");
}

json describe_rank_file(const std::string& text, const std::string& file) {
  const std::vector<std::string> tokens = read_ranks(text, file);
  std::map<std::string, size_t, std::less<>> ids;
  json vocabulary = json::object();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!ids.emplace(tokens[id], id).second)
      throw InputError(file, "has the token with the id " + std::to_string(id) + " twice");
    vocabulary[spelled(tokens[id])] = id;
  }
  json added = json::array();
  for (size_t k = 0; k < kLlama3Specials; ++k) {
    // After the named ones the reserved tokens go on with 2.
    const std::string name = k < kLlama3Names.size()
                                 ? kLlama3Names[k]
                                 : "<|reserved_special_token_" + std::to_string(k - kLlama3Names.size() + 2) + "|>";
    added.push_back({{"id", tokens.size() + k}, {"content", name}, {"special", true}, {"normalized", false}});
  }
  const json bos = {{"SpecialToken", {{"id", kLlama3Names[0]}, {"type_id", 0}}}};
  const json text_part = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", kLlama3Expression}}}, {"behavior", "Isolated"}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
      {"model", {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", vocabulary}, {"merges", merges_of(tokens, ids)}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {bos, text_part}},
        {"special_tokens",
         {{kLlama3Names[0], {{"id", kLlama3Names[0]}, {"ids", {tokens.size()}}, {"tokens", {kLlama3Names[0]}}}}}}}},
      {"decoder", {{"type", "ByteLevel"}}}};
}

}  // namespace nibble
