// vocab.json with merges.txt: what Transformers' own classes make of them, told as a tokenizer.json.

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/text/matching/published_expressions.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/json_tokenizer.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What the classes differ in.
struct ClassForm {
  std::string_view name;
  bool nfc = false;                  // Unicode's NFC first
  const char* expression = nullptr;  // instead of GPT-2's
  bool around = false;               // BOS before and EOS behind each text (cls and sep)
  std::string_view special = "";     // the special token where no file names one
};

constexpr std::array kClasses = {
    ClassForm{.name = "GPT2Tokenizer", .special = "<|endoftext|>"},
    ClassForm{.name = "GPTNeoXTokenizer", .special = "<|endoftext|>"},
    ClassForm{.name = "CodeGenTokenizer", .special = "<|endoftext|>"},
    ClassForm{.name = "Qwen2Tokenizer", .nfc = true, .expression = kQwen2Expression, .special = "<|endoftext|>"},
    ClassForm{.name = "RobertaTokenizer", .around = true},
    ClassForm{.name = "BartTokenizer", .around = true},
    ClassForm{.name = "LongformerTokenizer", .around = true},
};

const ClassForm& class_of(const json& tokenizer_config, const json& config, const std::string& file) {
  std::string name = JsonFields(tokenizer_config, file).string_or("tokenizer_class", "");
  if (name.empty())
    name = JsonFields(config, file).string_or("model_type", "gpt2") == "qwen2" ? "Qwen2Tokenizer" : "GPT2Tokenizer";
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  const auto form = std::find_if(kClasses.begin(), kClasses.end(), [&](const ClassForm& f) { return f.name == name; });
  if (form == kClasses.end())
    throw InputError(file, "the tokenizer_class '" + name + "' over vocab.json and merges.txt is not known",
                     "save the tokenizer as tokenizer.json (tokenizer.save_pretrained of a fast tokenizer)");
  return *form;
}

json read_merges(const fs::path& path) {
  const std::string text = read_text_file(path, kTokenizerLimits.max_bytes);
  json merges = json::array();
  size_t line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string merge = text.substr(begin, end - begin);
    begin = end + 1;
    if (!merge.empty() && merge.back() == '\r') merge.pop_back();
    if (merge.empty() || merge.starts_with("#version")) continue;
    if (std::count(merge.begin(), merge.end(), ' ') != 1)
      throw InputError(path.string() + ":" + std::to_string(line), "is not two tokens with a blank between them");
    merges.push_back(std::move(merge));
  }
  return merges;
}

// All special tokens that tokenizer_config.json or special_tokens_map.json name, as text or as objects.
void collect_special(const json& file, std::map<std::string, json>& found) {
  const auto take = [&](const json& token) {
    json entry = token.is_object() ? token : json{{"content", token}};
    if (!entry.contains("content") || !entry["content"].is_string()) return;
    entry["special"] = true;
    entry["normalized"] = false;
    found.emplace(entry["content"].get<std::string>(), entry);
  };
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (file.contains(name) && !file[name].is_null()) take(file[name]);
  }
  if (file.contains("additional_special_tokens") && file["additional_special_tokens"].is_array()) {
    for (const json& token : file["additional_special_tokens"]) take(token);
  }
}

// A token given as text, or as an object with its text.
std::string content_of(const json& token, const std::string& otherwise) {
  if (token.is_string()) return token.get<std::string>();
  const bool has_text = token.is_object() && token.contains("content") && token["content"].is_string();
  return has_text ? token["content"].get<std::string>() : otherwise;
}

// In the order of their ids, which is the order they were added in.
json read_added(const fs::path& directory, const json& tokenizer_config, const json& vocabulary,
                const ClassForm& form) {
  std::map<int64_t, json> by_id;
  const std::string file = (directory / "tokenizer_config.json").string();
  if (tokenizer_config.contains("added_tokens_decoder") && tokenizer_config["added_tokens_decoder"].is_object()) {
    for (const auto& [id, token] : tokenizer_config["added_tokens_decoder"].items()) {
      if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos)
        throw InputError(file, "added_tokens_decoder has the id \"" + id + "\"");
      by_id.emplace(std::stoll(id), token);
    }
  }
  std::map<std::string, json> special;
  collect_special(tokenizer_config, special);
  collect_special(read_object_if_there(directory / "special_tokens_map.json"), special);
  if (special.empty() && !form.special.empty())
    special[std::string(form.special)] = {{"content", form.special}, {"special", true}};
  const json added_file = read_object_if_there(directory / "added_tokens.json");
  for (const auto& [content, id] : added_file.items()) {
    if (!id.is_number_integer())
      throw InputError((directory / "added_tokens.json").string(), "has an id that is no integer");
    const auto known = special.find(content);
    by_id.emplace(id.get<int64_t>(), known != special.end() ? known->second : json{{"content", content}});
  }
  for (const auto& [content, token] : special) {
    const bool listed = std::any_of(by_id.begin(), by_id.end(), [&name = content](const auto& entry) {
      return entry.second.is_object() && content_of(entry.second, "") == name;
    });
    if (listed) continue;
    const auto in_vocabulary = vocabulary.find(content);
    if (in_vocabulary != vocabulary.end() && in_vocabulary->is_number_integer())
      by_id.emplace(in_vocabulary->get<int64_t>(), token);
  }
  json list = json::array();
  for (const auto& [id, token] : by_id) list.push_back(token);
  return list;
}

json template_around(const json& vocabulary, const std::string& before, const std::string& behind,
                     const std::string& file) {
  json single = json::array(), tokens = json::object();
  const auto add = [&](const std::string& token) {
    if (!vocabulary.contains(token)) throw InputError(file, "lacks the token " + token + " that goes around a text");
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    tokens[token] = {{"id", token}, {"ids", {vocabulary[token]}}, {"tokens", {token}}};
  };
  if (!before.empty()) add(before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (!behind.empty()) add(behind);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
}

}  // namespace

json describe_vocab_and_merges(const fs::path& directory) {
  const json tokenizer_config = read_object_if_there(directory / "tokenizer_config.json");
  const JsonFields settings(tokenizer_config, (directory / "tokenizer_config.json").string());
  const ClassForm& form = class_of(tokenizer_config, read_object_if_there(directory / "config.json"), settings.place());
  const json vocabulary = read_object_if_there(directory / "vocab.json");

  json description;
  description["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", read_merges(directory / "merges.txt")}};
  description["normalizer"] = form.nfc ? json{{"type", "NFC"}} : json();
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", settings.boolean_or("add_prefix_space", false)},
                           {"use_regex", form.expression == nullptr}};
  description["pre_tokenizer"] = byte_level;
  if (form.expression != nullptr) {
    const json split = {{"type", "Split"}, {"pattern", {{"Regex", form.expression}}}, {"behavior", "Isolated"}};
    description["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}};
  }
  const std::string file = (directory / "vocab.json").string();
  const auto token = [&](const char* name, const char* otherwise) {
    return tokenizer_config.contains(name) ? content_of(tokenizer_config[name], otherwise) : std::string(otherwise);
  };
  if (form.around) {
    description["post_processor"] =
        template_around(vocabulary, token("cls_token", "<s>"), token("sep_token", "</s>"), file);
  } else if (settings.boolean_or("add_bos_token", false)) {
    description["post_processor"] = template_around(vocabulary, token("bos_token", "<|endoftext|>"), "", file);
  }
  description["decoder"] = {{"type", "ByteLevel"}};
  description["added_tokens"] = read_added(directory, tokenizer_config, vocabulary, form);
  return description;
}

}  // namespace nibble
