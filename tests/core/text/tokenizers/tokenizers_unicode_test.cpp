// Kinds of tokenizers that no published one in the assets has, on random Unicode: ids and texts that Hugging Face's
// tokenizers 0.23, tiktoken 0.14 and sentencepiece 0.2.3 gave (tests/oracles/tokenizers_unicode.py).

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/text/matching/pattern.h"
#include "nibble/core/text/tokenizers/json/json_tokenizer.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

using nlohmann::json;

const json& results() {
  static const json all =
      json::parse(std::ifstream(std::string(kSourceDir) + "/tests/data/goldens/tokenizers_unicode.json"));
  return all;
}

void expect_cases(const Tokenizer& tokenizer, const json& cases) {
  for (const json& entry : cases) {
    const std::string text = entry["text"];
    const std::vector<int32_t> ids = entry["ids"];
    EXPECT_EQ(tokenizer.encode(text, false), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), entry["decoded"].get<std::string>()) << text;
  }
  EXPECT_GE(cases.size(), 60U);
}

void expect_hugging_face(const char* name) {
  const json& entry = results()["hugging_face"][name];
  expect_cases(*open_tokenizer_json(entry["tokenizer"], name), entry["cases"]);
}

TEST(TokenizersOnRandomUnicode, WordPiece) { expect_hugging_face("word_piece"); }
TEST(TokenizersOnRandomUnicode, UnigramWithAPrecompiledNormalizer) { expect_hugging_face("unigram_precompiled"); }
TEST(TokenizersOnRandomUnicode, UnicodeScripts) { expect_hugging_face("unicode_scripts"); }
TEST(TokenizersOnRandomUnicode, Ctc) { expect_hugging_face("ctc"); }

TEST(TokenizersOnRandomUnicode, RankFilesAsTiktoken) {
  const std::string file = results()["rank_file"]["file"];
  ASSERT_TRUE(is_rank_file(file));
  const auto tokenizer = open_tokenizer_json(describe_rank_file(file, "tokenizer.model"), "tokenizer.model");
  expect_cases(*tokenizer, results()["rank_file"]["cases"]);
}

TEST(RankFiles, PutLlama3sSpecialTokensBehindTheRanks) {
  const std::string file = results()["rank_file"]["file"];
  const auto count = static_cast<int32_t>(std::count(file.begin(), file.end(), '\n'));
  const auto tokenizer = open_tokenizer_json(describe_rank_file(file, "tokenizer.model"), "tokenizer.model");
  EXPECT_EQ(tokenizer->id_of("<|begin_of_text|>"), count);
  EXPECT_EQ(tokenizer->id_of("<|start_header_id|>"), count + 6);
  EXPECT_EQ(tokenizer->id_of("<|eot_id|>"), count + 9);
  EXPECT_EQ(tokenizer->id_of("<|reserved_special_token_2|>"), count + 12);
  EXPECT_EQ(tokenizer->vocab_size(), count + 256);
  EXPECT_EQ(tokenizer->encode("a<|eot_id|>").front(), count);
  EXPECT_EQ(tokenizer->encode("a<|eot_id|>").back(), count + 9);
}

TEST(RankFiles, AreRefusedWithTheLine) {
  const auto error_of = [](const std::string& file) -> std::string {
    try {
      describe_rank_file(file, "f");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(error_of("IQ== 0\nIg== 2\n").starts_with("f:2: has not the id 1"));
  EXPECT_TRUE(error_of("IQ== 0\n? 1\n").starts_with("f:2: holds no token in base64"));
  EXPECT_TRUE(error_of("IQ== 0\nIQ== 1\n").starts_with("f: has the token with the id 1 twice"));
  EXPECT_FALSE(is_rank_file("\x0A\x0E\x0A"));
}

json added_token(const char* content, int id) {
  return {{"id", id}, {"content", content}, {"lstrip", true}, {"rstrip", true}, {"normalized", false}};
}

// What tokenizers 0.23 finds in characters of Unicode 15 and 16.
TEST(RegularExpression, KnowsCharactersNewerThanTheSystemsOniguruma) {
  const auto matches = [](const std::string& expression, const std::string& text) {
    std::vector<PatternMatch> found;
    regular_expression(expression, "test")(text, found);
    std::vector<std::string> pieces;
    for (const PatternMatch& match : found) pieces.push_back(text.substr(match.begin, match.end - match.begin));
    return pieces;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(matches("\\p{Lu}\\p{Ll}+", "\u1C89\u1C8A\u1C8A1"), Pieces{"\u1C89\u1C8A\u1C8A"});
  EXPECT_EQ(matches("\\p{N}{1,3}", "\U00010D40\U00010D411\U00010D42"), (Pieces{"\U00010D40\U00010D411", "\U00010D42"}));
  EXPECT_EQ(matches("\\p{Han}+", "a\U0002EBF0\u4E00\U000323AFb"), Pieces{"\U0002EBF0\u4E00\U000323AF"});
  EXPECT_EQ(matches("\\p{M}", "e\u0897\u0ECE"), (Pieces{"\u0897", "\u0ECE"}));
  EXPECT_EQ(matches("[[:punct:]]+", "a$+\u00A2\U0001F6DC!b"), Pieces{"$+\u00A2\U0001F6DC!"});
  EXPECT_EQ(matches("[^[:punct:]x]+|\\[[[:^punct:]]", "ab$x[c"), (Pieces{"ab", "[c"}));
  EXPECT_EQ(matches("[^\\s\\p{L}\\p{N}]+", " \U0001F6DC\U0001FAE8!a"), Pieces{"\U0001F6DC\U0001FAE8!"});
}

TEST(LowerCase, OfCharactersNewerThanTheSystemsIcu) {
  const json description = {{"normalizer", {{"type", "Lowercase"}}},
                            {"model",
                             {{"type", "WordLevel"},
                              {"vocab", {{"\u0264", 0}, {"\U00010D70", 1}, {"\U00016ED3", 2}, {"?", 3}}},
                              {"unk_token", "?"}}}};
  const auto tokenizer = open_tokenizer_json(description, "f");
  EXPECT_EQ(tokenizer->encode("\uA7CB"), std::vector<int32_t>{0});
  EXPECT_EQ(tokenizer->encode("\U00010D50"), std::vector<int32_t>{1});
  EXPECT_EQ(tokenizer->encode("\U00016EB8"), std::vector<int32_t>{2});
}

TEST(AddedTokens, OfWhiteSpaceThatTheOneBeforeTookAreNotThere) {
  const json description = {{"added_tokens", {added_token("\n", 2)}},
                            {"model", {{"type", "WordLevel"}, {"vocab", {{"#", 0}, {"?", 1}}}, {"unk_token", "?"}}}};
  EXPECT_EQ(open_tokenizer_json(description, "f")->encode("#\n\n#"), (std::vector<int32_t>{0, 2, 0}));
}

TEST(AddedTokens, StandBehindAListThatHasATokenTwice) {
  const json description = {{"added_tokens", {added_token("xx", 4)}},
                            {"model",
                             {{"type", "Unigram"},
                              {"unk_id", 0},
                              {"vocab", json::array({json::array({"<unk>", 0.0}), json::array({"a", -1.0}),
                                                     json::array({"b", -1.0}), json::array({"a", -2.0})})}}}};
  EXPECT_EQ(open_tokenizer_json(description, "f")->encode("bxxa"), (std::vector<int32_t>{2, 4, 3}));
}

TEST(PrecompiledNormalizer, RefusesHostileTables) {
  for (const char* table : {"no base64!", "AA==", "/////w==", "CAAAAAAAAAAAAAAA"}) {
    const json description = {{"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", table}}},
                              {"model", {{"type", "WordLevel"}, {"vocab", {{"a", 0}}}, {"unk_token", "a"}}}};
    EXPECT_THROW(open_tokenizer_json(description, "tokenizer.json"), InputError) << table;
  }
}

}  // namespace
}  // namespace nibble
