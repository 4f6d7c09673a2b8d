#include "nibble/recipes/gguf/gguf_pre_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/text/matching/published_expressions.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/recipes/gguf/gguf_vocabulary.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

Json byte_level(bool use_regex, bool blank_before = false) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", blank_before}, {"use_regex", use_regex}};
}
Json split(const char* expression) {
  return {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
}
Json with_steps(const Json& steps, const Json& model = Json::object()) {
  return {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}}, {"model", model}};
}
Json cut_by(const char* expression, const Json& model = Json::object()) {
  return with_steps({split(expression), byte_level(false)}, model);
}
std::string refusal(const Json& file, bool byte_level) {
  try {
    refuse_other_normalizers(file, byte_level, "tokenizer.json");
    return gguf_pre_tokenizer(file, "tokenizer.json");
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(GgufPreTokenizer, HasTheNamesOfLlamaCppForPublishedOnes) {
  EXPECT_EQ(gguf_pre_tokenizer({{"pre_tokenizer", byte_level(true)}}, ""), "gpt-2");
  EXPECT_EQ(gguf_pre_tokenizer(cut_by(kLlama3Expression, {{"ignore_merges", true}}), ""), "llama-bpe");
  EXPECT_EQ(gguf_pre_tokenizer(cut_by(kLlama3Expression), ""), "dbrx");  // llama-bpe takes whole words before merging
  EXPECT_EQ(gguf_pre_tokenizer(cut_by(kQwen2Expression), ""), "qwen2");
  EXPECT_EQ(gguf_pre_tokenizer(cut_by(kGpt4oExpression), ""), "gpt-4o");
  EXPECT_EQ(gguf_pre_tokenizer(cut_by(kTekkenExpression), ""), "tekken");
  EXPECT_EQ(gguf_pre_tokenizer(cut_by(kBloomExpression), ""), "bloom");
  const Json digit = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(gguf_pre_tokenizer(with_steps({digit, byte_level(true)}), ""), "smollm");
}

TEST(GgufPreTokenizer, WhatLlamaCppWouldDoOtherwiseIsRefusedByName) {
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(refusal({{"pre_tokenizer", byte_level(true, true)}}, true), "add_prefix_space"));
  EXPECT_TRUE(has(refusal({{"pre_tokenizer", byte_level(true)}, {"model", {{"end_of_word_suffix", "</w>"}}}}, true),
                  "end_of_word_suffix"));
  EXPECT_TRUE(has(refusal(cut_by("[a-z]+"), true), "?Split"));
  EXPECT_TRUE(has(refusal({{"normalizer", {{"type", "Lowercase"}}}}, true), "Lowercase"));
  EXPECT_TRUE(has(refusal({{"normalizer", {{"type", "NFKC"}}}}, false), "NFKC"));
  EXPECT_TRUE(has(refusal({{"pre_tokenizer", {{"type", "Whitespace"}}}}, false), "Whitespace"));
}

TEST(GgufPreTokenizer, StepsThatLlamaCppLeavesOutAreReported) {
  EXPECT_TRUE(gguf_left_out({{"pre_tokenizer", byte_level(true)}}).empty());
  EXPECT_EQ(gguf_left_out({{"normalizer", {{"type", "NFC"}}}}).size(), 1u);
  EXPECT_EQ(gguf_left_out(cut_by(kGpt4oExpression)).size(), 1u);
  const auto metaspace = [](const char* scheme) {
    return Json{{"pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", scheme}}}};
  };
  EXPECT_EQ(gguf_left_out(metaspace("always")).size(), 1u);
  EXPECT_EQ(gguf_left_out(metaspace("first")).size(), 1u);
  EXPECT_TRUE(gguf_left_out(metaspace("never")).empty());
}

class GgufEnds : public ::testing::Test {
 protected:
  /// Tokens a b <s> </s>; `single`: what goes around a text.
  void write(const Json& single, const Json& config) {
    const auto added = [](int id, const char* text) {
      return Json{{"id", id},        {"content", text}, {"special", true},    {"single_word", false},
                  {"lstrip", false}, {"rstrip", false}, {"normalized", false}};
    };
    const auto special = [](int id, const char* text) {
      return Json{{"id", text}, {"ids", Json::array({id})}, {"tokens", Json::array({text})}};
    };
    const Json post = {{"type", "TemplateProcessing"},
                       {"single", single},
                       {"pair", single},
                       {"special_tokens", {{"<s>", special(2, "<s>")}, {"</s>", special(3, "</s>")}}}};
    const Json file = {{"added_tokens", Json::array({added(2, "<s>"), added(3, "</s>")})},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", byte_level(true)},
                       {"post_processor", post},
                       {"decoder", byte_level(true)},
                       {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", Json::array()}}}};
    test::write_bytes(directory_ / "tokenizer.json", file.dump());
    test::write_bytes(directory_ / "tokenizer_config.json", config.dump());
  }
  static Json special(const char* text) { return {{"SpecialToken", {{"id", text}, {"type_id", 0}}}}; }
  static Json text() { return {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}; }

  test::TemporaryDirectory directory_;
};

TEST_F(GgufEnds, ATokenBehindEachTextIsThereInTheFileToo) {
  write({special("<s>"), text(), special("</s>")}, Json::object());
  const std::string result = (directory_ / "v.gguf").string();
  GgufWriter writer(result, gguf_vocabulary(directory_ / "", 4).metadata, {});
  writer.finish();
  const auto original = load_tokenizer(directory_ / ""), read = load_tokenizer(result);
  EXPECT_EQ(original->encode("ab"), (std::vector<int32_t>{2, 0, 1, 3}));
  EXPECT_EQ(read->encode("ab"), original->encode("ab"));
  EXPECT_EQ(read->encode("ab", false), original->encode("ab", false));
}

TEST_F(GgufEnds, AnotherTokenThanTheRolesSayIsRefused) {
  write({special("</s>"), text()}, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  EXPECT_THROW(gguf_vocabulary(directory_ / "", 4), UsageError);
}

}  // namespace
}  // namespace nibble
