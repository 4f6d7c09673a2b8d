#include "nibble/recipes/gguf/gguf_pre_tokenizer.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/text/tokenizers/gguf_pre_tokenizers.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"

namespace nibble {

namespace {

using nlohmann::json;

constexpr const char* kMetaspace = "\u2581";

std::vector<json> normalizers_of(const json& file) {
  return flat_steps(file.value("normalizer", json()), "normalizers");
}
std::vector<json> pre_tokenizers_of(const json& file) {
  return flat_steps(file.value("pre_tokenizer", json()), "pretokenizers");
}

bool has_text(const json& model, const char* key) {
  const json value = model.value(key, json());
  return value.is_string() && !value.get<std::string>().empty();
}

bool is_blank_for(const json& step, const char* from, const char* to) {
  return step.value("pattern", json::object()).value("String", "") == from && step.value("content", "") == to;
}

}  // namespace

void refuse_unnamed(const std::filesystem::path& place, const std::string& what) {
  throw UsageError(what + ", which llama.cpp has no name for", "export without a tokenizer: --no-tokenizer",
                   place.string());
}

std::string gguf_pre_tokenizer(const json& file, const std::filesystem::path& place) {
  std::vector<std::string> steps;
  for (const json& step : pre_tokenizers_of(file)) {
    steps.push_back(pre_tokenizer_step(step));
    if (step.value("add_prefix_space", false)) refuse_unnamed(place, "add_prefix_space puts a blank before the text");
  }
  const json model = file.value("model", json::object());
  for (const char* key : {"end_of_word_suffix", "continuing_subword_prefix"}) {
    if (has_text(model, key)) refuse_unnamed(place, "the model has an " + std::string(key));
  }
  const bool whole_words = model.value("ignore_merges", json()) == true;
  const GgufPreTokenizer* found = match_gguf_pre_tokenizer(steps, whole_words);
  if (!found) refuse_unnamed(place, "the pre-tokenizer is \"" + joined(steps, " ") + "\"");
  return found->names.front();
}

void refuse_other_normalizers(const json& file, bool byte_level, const std::filesystem::path& place) {
  for (const json& step : normalizers_of(file)) {
    const std::string type = step.value("type", "");
    const bool blank = (type == "Prepend" && step.value("prepend", "") == kMetaspace) ||
                       (type == "Replace" && is_blank_for(step, " ", kMetaspace));
    if (byte_level ? type != "NFC" : !blank) refuse_unnamed(place, "the normalizer is " + type);
  }
  if (byte_level) return;
  for (const json& step : pre_tokenizers_of(file)) {
    const std::string type = step.value("type", "");
    const bool gone = type == "Split" && step.value("pattern", json::object()).value("String", "") == " ";
    if (type != "Metaspace" && !gone) refuse_unnamed(place, "the pre-tokenizer is " + type);
  }
}

std::vector<std::string> gguf_left_out(const json& file) {
  std::vector<std::string> left_out;
  for (const json& step : normalizers_of(file)) {
    if (step.value("type", "") == "NFC")
      left_out.push_back("bringing texts to NFC (texts in another form get other ids)");
  }
  for (const json& step : pre_tokenizers_of(file)) {
    const std::string type = step.value("type", ""), name = pre_tokenizer_step(step);
    if (name == "gpt4o" || name == "tekken") {
      left_out.push_back("marks and cases of letters outside of ASCII when it cuts (such texts get other ids)");
    } else if (type == "Metaspace" && step.value("prepend_scheme", "always") == "always") {
      left_out.push_back(
          "that a text or a piece which begins with a blank gets no other before it (such get other ids)");
    } else if (type == "Metaspace" && step.value("prepend_scheme", "always") == "first") {
      left_out.push_back(
          "that texts which begin with a blank, and pieces behind special tokens, get no blank before them (such get "
          "other ids)");
    }
  }
  return left_out;
}

}  // namespace nibble
