// The parts of tokenizer.json, on small tokenizers written here.

#include "nibble/core/text/tokenizers/json/json_tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

using nlohmann::json;

// Byte-pair encoding over a few characters: a b c and a blank, with "ab" and "abc".
json small() {
  return json::parse(R"({
    "added_tokens": [
      {"id": 6, "content": "<s>", "special": true, "normalized": false},
      {"id": 7, "content": "<mask>", "special": true, "normalized": false, "lstrip": true},
      {"id": 8, "content": "cab", "special": false, "normalized": true, "single_word": true}
    ],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, " ": 3, "ab": 4, "abc": 5}, "merges": ["a b", ["ab", "c"]]}
  })");
}

std::vector<int32_t> encode(const json& description, std::string_view text) {
  return open_tokenizer_json(description, "tokenizer.json")->encode(text);
}

TEST(JsonTokenizer, MergesAsStringsAndAsPairs) {
  EXPECT_EQ(encode(small(), "abcab"), (std::vector<int32_t>{5, 4}));
  EXPECT_EQ(encode(small(), "bca"), (std::vector<int32_t>{1, 2, 0}));
}

TEST(JsonTokenizer, SymbolsOutsideOfTheVocabularyAreDroppedWithoutAnUnknownToken) {
  EXPECT_EQ(encode(small(), "azb"), (std::vector<int32_t>{4}));
}

TEST(JsonTokenizer, AddedTokensTakeWhiteSpaceAndWordsAsTheySay) {
  EXPECT_EQ(encode(small(), "a  <mask> b"), (std::vector<int32_t>{0, 7, 3, 1}));
  EXPECT_EQ(encode(small(), "cab cabc"), (std::vector<int32_t>{8, 3, 2, 5}));
  EXPECT_EQ(encode(small(), "ab<s>c"), (std::vector<int32_t>{4, 6, 2}));
}

TEST(JsonTokenizer, SpecialTokensAreLeftOutOfDecodedTextOnRequest) {
  const auto tokenizer = open_tokenizer_json(small(), "tokenizer.json");
  const std::vector<int32_t> ids = {6, 5, 3, 7, 8};
  EXPECT_EQ(tokenizer->decode(ids), "<s>abc <mask>cab");
  EXPECT_EQ(tokenizer->decode(ids, true), "abc cab");
  EXPECT_TRUE(tokenizer->is_special(6));
  EXPECT_FALSE(tokenizer->is_special(8));
  EXPECT_EQ(tokenizer->vocab_size(), 9);
}

TEST(JsonTokenizer, TheTemplateGoesAroundTheText) {
  json description = small();
  description["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}})");
  const auto tokenizer = open_tokenizer_json(description, "tokenizer.json");
  EXPECT_EQ(tokenizer->encode("ab"), (std::vector<int32_t>{6, 4}));
  EXPECT_EQ(tokenizer->encode("ab", false), (std::vector<int32_t>{4}));
  EXPECT_EQ(tokenizer->prefix_ids(), (std::vector<int32_t>{6}));
}

TEST(JsonTokenizer, OffsetsSurviveNormalization) {
  json description = small();
  description["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [
    {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": "x"}, "content": "abc"}]})");
  const auto tokenizer = open_tokenizer_json(description, "tokenizer.json");
  // U+FF21 (3 bytes) becomes A, then a
  const auto tokens = tokenizer->encode_with_offsets(
      "\xEF\xBC\xA1"
      "B<s>x");
  ASSERT_EQ(tokens.size(), 3U);
  EXPECT_EQ(tokens[0].id, 4);
  EXPECT_EQ(tokens[0].begin, 0);
  EXPECT_EQ(tokens[0].end, 4);
  EXPECT_EQ(tokens[1].begin, 4);
  EXPECT_EQ(tokens[1].end, 7);
  EXPECT_EQ(tokens[2].id, 5);
  EXPECT_EQ(tokens[2].begin, 7);
  EXPECT_EQ(tokens[2].end, 8);
}

TEST(JsonTokenizer, OffsetsOfRealTokenizersCoverTheText) {
  NIBBLE_ASSET_OR_SKIP(gpt2, "tok-gpt2");
  NIBBLE_ASSET_OR_SKIP(llama, "tok-tinyllama-hf");
  const std::string text = "It's 3 o'clock, caf\xC3\xA9 \xF0\x9F\x98\x80\n\n  done";
  for (const auto& path : {gpt2, llama / "tinyllama_tokenizer.json"}) {
    const auto tokenizer = load_tokenizer(path);
    int64_t position = 0;
    std::vector<int32_t> ids;
    for (const TokenSpan& token : tokenizer->encode_with_offsets(text, false)) {
      EXPECT_LE(token.begin, position) << path;
      position = std::max(position, token.end);
      ids.push_back(token.id);
    }
    EXPECT_EQ(position, static_cast<int64_t>(text.size())) << path;
    EXPECT_EQ(ids, tokenizer->encode(text, false)) << path;
  }
}

TEST(JsonTokenizer, LongTextsMergeAsShortOnesDo) {
  std::string text;
  std::vector<int32_t> expected;
  for (int k = 0; k < 1000; ++k) {
    text += "abcab ";
    expected.insert(expected.end(), {5, 4, 3});
  }
  EXPECT_EQ(encode(small(), text), expected);
}

TEST(JsonTokenizer, ManyThreadsGetTheSameIds) {
  NIBBLE_ASSET_OR_SKIP(gpt2, "tok-gpt2");
  const auto tokenizer = load_tokenizer(gpt2);
  const std::string text = "The quick brown fox jumps over the lazy dog. 12345 zwoelf Boxkaempfer";
  const std::vector<int32_t> ids = load_tokenizer(gpt2)->encode(text);
  std::vector<std::vector<int32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) result = tokenizer->encode(text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, ids);
}

TEST(JsonTokenizer, BrokenFilesNameThePlace) {
  const auto reason = [](json description) {
    try {
      open_tokenizer_json(description, "tokenizer.json");
      return std::string("accepted");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  };
  json broken = small();
  broken["model"]["merges"][1] = "ab z";
  EXPECT_NE(reason(broken).find("model.merges[1]"), std::string::npos) << reason(broken);
  broken = small();
  broken["model"]["vocab"]["a"] = -1;
  EXPECT_NE(reason(broken).find("-1"), std::string::npos) << reason(broken);
  broken = small();
  broken["normalizer"] = {{"type", "Unheard"}};
  EXPECT_NE(reason(broken).find("'Unheard' is not known"), std::string::npos) << reason(broken);
  broken = small();
  broken["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
  EXPECT_NE(reason(broken).find("pre_tokenizer.pattern.Regex"), std::string::npos) << reason(broken);
  EXPECT_NE(reason(json::array()).find("tokenizer.json"), std::string::npos);
}

TEST(JsonTokenizer, AnExpressionThatBacktracksForeverIsStopped) {
  json description = small();
  description["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(?:a|b|ab)*c$"}}}, {"behavior", "Isolated"}};
  std::string text;
  for (int k = 0; k < 200; ++k) text += "ab";
  text += "c ";  // so near
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(encode(description, text), InputError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(JsonTokenizer, TextThatIsNotUtf8IsRefused) { EXPECT_THROW(encode(small(), "ab\xFF"), InputError); }

}  // namespace
}  // namespace nibble
