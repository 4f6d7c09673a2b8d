// The parts of tokenizer.json, on small tokenizers written here.

#include "nibble/core/text/tokenizers/json/json_tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
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
  const std::filesystem::path gpt2 = test::data_path("tokenizers/gpt2");
  const std::filesystem::path llama = test::data_path("tokenizers/spm-bpe.tokenizer.json");
  const std::string text = "It's 3 o'clock, caf\xC3\xA9 \xF0\x9F\x98\x80\n\n  done";
  for (const auto& path : {gpt2, llama}) {
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

// Windows are cut between pre-tokens, so a text has the tokens of its lines where the expression cuts behind each.
TEST(JsonTokenizer, ALongTextGoesThroughInWindows) {
  const auto tokenizer = load_tokenizer(test::data_path("tokenizers/gpt2"));
  std::string text;
  std::vector<TokenSpan> expected;
  const std::vector<std::string> lines = test::data_lines("tokenizers/lines.txt");
  for (size_t l = 0; text.size() < size_t{300} << 10; ++l) {
    const std::string line = lines[l % lines.size()] + '\n';
    if (std::isalpha(static_cast<unsigned char>(line[0])) == 0 || line.ends_with(" \n")) continue;
    for (TokenSpan token : tokenizer->encode_with_offsets(line, false)) {
      const auto at = static_cast<int64_t>(text.size());
      expected.push_back({token.id, token.begin + at, token.end + at});
    }
    text += line;
  }
  std::vector<TokenSpan> tokens;
  size_t largest = 0;
  tokenizer->encode_in_pieces(text, [&](std::span<const TokenSpan> some) {
    tokens.insert(tokens.end(), some.begin(), some.end());
    largest = std::max(largest, some.size());
  });
  EXPECT_LE(largest, size_t{1} << 16);
  ASSERT_EQ(tokens.size(), expected.size());
  for (size_t k = 0; k < tokens.size(); ++k) {
    ASSERT_EQ(tokens[k].id, expected[k].id) << k;
    ASSERT_EQ(tokens[k].begin, expected[k].begin) << k;
    ASSERT_EQ(tokens[k].end, expected[k].end) << k;
  }
}

// An added token that is looked for in the normalized text keeps a text in one piece.
TEST(JsonTokenizer, ALongTextOfMarkedBlanksHasTheTokensOfTheWhole) {
  const std::filesystem::path path = test::data_path("tokenizers/spm-bpe.tokenizer.json");
  json description = json::parse(std::ifstream(path));
  const auto tokenizer = open_tokenizer_json(description, "tokenizer.json");
  description["added_tokens"].push_back({{"id", 1500}, {"content", "never there"}, {"normalized", true}});
  const auto whole = open_tokenizer_json(description, "tokenizer.json");
  std::string text = "  ";
  const std::vector<std::string> lines = test::data_lines("tokenizers/lines.txt");
  for (size_t l = 0; text.size() < size_t{400} << 10; ++l) {
    text += lines[l % lines.size()] + std::string(l % 4, l % 3 == 0 ? ' ' : '\n');
    if (l % 50 == 0) text += "</s>x \xE2\x96\x81 \xE2\x96\x81\xE2\x96\x81 \xF0\x9F\xA7\xAC\xF0\x9F\xA7\xAC ";
    if (l == 400) text += std::string(100000, 'a');
  }
  std::vector<TokenSpan> tokens;
  size_t pieces = 0;
  tokenizer->encode_in_pieces(text, [&](std::span<const TokenSpan> some) {
    tokens.insert(tokens.end(), some.begin(), some.end());
    ++pieces;
  });
  EXPECT_GT(pieces, 3U);
  const std::vector<TokenSpan> expected = whole->encode_with_offsets(text, false);
  ASSERT_EQ(tokens.size(), expected.size());
  for (size_t k = 0; k < tokens.size(); ++k) {
    ASSERT_EQ(tokens[k].id, expected[k].id) << k;
    ASSERT_EQ(tokens[k].begin, expected[k].begin) << k;
    ASSERT_EQ(tokens[k].end, expected[k].end) << k;
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
  const std::filesystem::path gpt2 = test::data_path("tokenizers/gpt2");
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
  EXPECT_THROW(encode(description, text), InputError);
}

TEST(JsonTokenizer, TextThatIsNotUtf8IsRefused) { EXPECT_THROW(encode(small(), "ab\xFF"), InputError); }

}  // namespace
}  // namespace nibble
