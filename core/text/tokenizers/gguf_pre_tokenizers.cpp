#include "nibble/core/text/tokenizers/gguf_pre_tokenizers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/text/matching/published_expressions.h"

namespace nibble {

namespace {

using Json = nlohmann::json;

const std::vector<GgufPreTokenizer>& rows() {
  static const std::vector<GgufPreTokenizer> table{
      {.names = {"gpt-2", "phi-2", "mpt", "olmo"}, .steps = {"gpt2"}},
      {.names = {"llama-bpe", "llama3", "llama-v3"},
       .steps = {"llama3", "bytes"},
       .ignore_merges = true,
       .begins = true},
      {.names = {"dbrx", "smaug-bpe"}, .steps = {"llama3", "bytes"}},
      {.names = {"qwen2", "deepseek-r1-qwen"}, .steps = {"qwen2", "bytes"}, .composes = true},
      {.names = {"stablelm2"}, .steps = {"qwen2", "bytes"}},
      {.names = {"gpt-4o", "llama4"}, .steps = {"gpt4o", "bytes"}},
      {.names = {"tekken"}, .steps = {"tekken", "bytes"}, .ignore_merges = true, .begins = true},
      {.names = {"bloom"}, .steps = {"bloom", "bytes"}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell"}, .steps = {"digit", "gpt2"}},
      {.names = {"falcon"}, .steps = {"punctuation", "gpt2", "digits", "threes"}},
  };
  return table;
}

struct Expression {
  std::string_view step;
  const char* regex;
};
constexpr Expression kExpressions[] = {{"llama3", kLlama3Expression}, {"qwen2", kQwen2Expression},
                                       {"gpt4o", kGpt4oExpression},   {"tekken", kTekkenExpression},
                                       {"bloom", kBloomExpression},   {"threes", "[0-9][0-9][0-9]"}};

}  // namespace

const GgufPreTokenizer* find_gguf_pre_tokenizer(const std::string& name) {
  for (const GgufPreTokenizer& row : rows()) {
    if (std::ranges::count(row.names, name) > 0) return &row;
  }
  return nullptr;
}

const GgufPreTokenizer* match_gguf_pre_tokenizer(const std::vector<std::string>& steps, bool ignore_merges) {
  const GgufPreTokenizer* match = nullptr;
  for (const GgufPreTokenizer& row : rows()) {
    if (row.steps != steps) continue;
    if (!match || (match->ignore_merges != ignore_merges && row.ignore_merges == ignore_merges)) match = &row;
  }
  return match;
}

std::string pre_tokenizer_step(const Json& step) {
  const std::string type = step.value("type", "");
  if (type == "ByteLevel") return step.value("use_regex", true) ? "gpt2" : "bytes";
  if (type == "Digits") return step.value("individual_digits", false) ? "digit" : "digits";
  if (type == "Punctuation") return "punctuation";
  if (type == "Split" && step.value("behavior", "Isolated") == "Isolated" && !step.value("invert", false)) {
    const std::string regex = step.value("pattern", Json::object()).value("Regex", "");
    for (const Expression& known : kExpressions) {
      if (regex == known.regex) return std::string(known.step);
    }
  }
  return "?" + type;
}

Json pre_tokenizer_json(const std::string& step) {
  if (step == "gpt2" || step == "bytes") {
    return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", step == "gpt2"}};
  }
  if (step == "digit" || step == "digits") return {{"type", "Digits"}, {"individual_digits", step == "digit"}};
  if (step == "punctuation") return {{"type", "Punctuation"}, {"behavior", "Contiguous"}};
  const auto* found = std::ranges::find(kExpressions, step, &Expression::step);
  NIBBLE_CHECK(found != std::end(kExpressions), "a step of no pre-tokenizer");
  return {{"type", "Split"}, {"pattern", {{"Regex", found->regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

}  // namespace nibble
