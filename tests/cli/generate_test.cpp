// Which tokens nibble generate and nibble chat draw, their logits, and what nibble tokenize takes.

#include <gmock/gmock.h>

#include "nibble/core/io/npy.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/cli/small_model.h"
#include "nibble/tests/cli/word_tokenizer.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Generate : public test::SmallModel {
 protected:
  std::vector<float> logits(const std::string& words) {
    const CommandOutput output = run("logits --model me/small --compute-dtype f32 --out l.npy --ids " + words);
    EXPECT_EQ(output.code, 0) << output.text;
    const Tensor read = read_npy(root_ / "l.npy");
    return {read.data<const float>(), read.data<const float>() + read.numel()};
  }
};

TEST_F(Generate, LogitsOfPackedDocumentsAreThoseOfEach) {
  const std::vector<float> first = logits("1,4,5"), second = logits("9,2"), packed = logits("1,4,5,9,2 --lengths 3,2");
  ASSERT_EQ(packed.size(), first.size() + second.size());
  for (size_t i = 0; i < packed.size(); ++i) {
    EXPECT_NEAR(packed[i], i < first.size() ? first[i] : second[i - first.size()], 1e-5) << i;
  }
  EXPECT_GT(std::abs(logits("1,4,5,9,2").back() - packed.back()), 1e-3) << "a document of its own";
  for (const char* lengths : {"3", "3,3", "5,0", "-1,6", "9223372036854775807,1"}) {
    const CommandOutput refused =
        run("logits --model me/small --out l.npy --ids 1,4,5,9,2 --lengths=" + std::string(lengths));
    EXPECT_EQ(refused.code, 2) << lengths;
    EXPECT_THAT(refused.text, HasSubstr("--lengths: the documents do not fill rows of 5 ids")) << lengths;
  }
}

TEST_F(Generate, TokenizeNamesTheFileThatIsNoUtf8) {
  test::write_bytes(root_ / "a.txt", std::string("\xff\xfeh\0i\0", 6));
  test::write_bytes(root_ / "b.txt", "caf\xe9");
  const CommandOutput wide = run("tokenize --model me/small --file a.txt"),
                      latin = run("tokenize --model me/small --file b.txt");
  EXPECT_EQ(wide.code, 3);
  EXPECT_EQ(wide.text, "error: a.txt: is UTF-16; save it as UTF-8\n");
  EXPECT_EQ(latin.code, 3);
  EXPECT_THAT(latin.text, HasSubstr("error: b.txt: "));
}

// Models have more rows than their tokenizers ids, for the sake of speed.
TEST_F(Generate, TextHasOnlyTokensThatTheTokenizerKnows) {
  nlohmann::json config = nlohmann::json::parse(test::read_bytes(root_ / "config.json"));
  config["vocab_size"] = 3000;
  test::write_bytes(root_ / "padded.json", config.dump());
  ASSERT_EQ(run("init --config padded.json --out padded").code, 0);
  test::write_bytes(root_ / "padded/tokenizer.json", test::word_tokenizer({{299, "<|im_end|>"}}));
  for (const char* how : {"--prompt w1", "--prompt w1 --temperature 1", "--ids 1 --temperature 1 --top-k 2000"}) {
    const CommandOutput output = run("generate --model padded --max-new-tokens 20 --json " + std::string(how));
    ASSERT_EQ(output.code, 0) << output.text;
    const auto parsed = nlohmann::json::parse(output.text);
    for (const int id : parsed["ids"]) EXPECT_LT(id, 300);
  }
  test::write_bytes(root_ / "talk", "w1\n");
  const CommandOutput answered = run("chat --model padded --template plain --temperature 1 --max-new-tokens 20 < talk");
  EXPECT_EQ(answered.code, 0) << answered.text;
}

// Before a model is opened.
TEST_F(Generate, SamplingThatCannotBeIsRefused) {
  for (const char* how : {"--temperature inf", "--top-p 0"}) {
    const CommandOutput output = run("generate --model missing --ids 1 " + std::string(how));
    EXPECT_EQ(output.code, 2) << output.text;
    EXPECT_EQ(run("chat --model missing " + std::string(how)).code, 2);
  }
}

TEST_F(Generate, WhatIsForDrawingIsNotedWhereNothingIsDrawn) {
  for (const std::string flag : {"--top-k", "--top-p", "--seed"}) {
    for (const std::string command :
         {"generate --model me/small --ids 1,2 ", "chat --model me/small --template plain "}) {
      const std::string note = "note: " + flag + " has no effect at temperature 0: nothing is drawn\n";
      const CommandOutput greedy = run(command + flag + " 1 --max-new-tokens 1 < /dev/null");
      EXPECT_EQ(greedy.code, 0) << command + flag;
      EXPECT_THAT(greedy.text, HasSubstr(note)) << command + flag;
      const CommandOutput drawn = run(command + flag + " 1 --temperature 1 --max-new-tokens 1 < /dev/null");
      EXPECT_EQ(drawn.code, 0) << command + flag;
      EXPECT_THAT(drawn.text, Not(HasSubstr(note))) << command + flag;
    }
  }
}

TEST_F(Generate, TokenizeRefusesWhatItDoesNotLookAt) {
  test::write_bytes(root_ / "x.jsonl", "\"a\"\n \t\r\n\n\"b\"\n");
  const std::string words = "tokenize --model me/small ";
  const std::pair<const char*, const char*> cases[] = {
      {"--text hi --skip-special", "--skip-special without --decode; add it"},
      {"--decode 1,2 --no-special", "--no-special with --decode; leave it out"}};
  for (const auto& [flags, message] : cases) {
    const CommandOutput output = run(words + flags);
    EXPECT_EQ(output.code, 2) << flags;
    EXPECT_THAT(output.text, HasSubstr(message));
  }
  const CommandOutput lines = run(words + "--jsonl x.jsonl --no-special");
  EXPECT_EQ(lines.code, 0) << lines.text;
  EXPECT_EQ(std::ranges::count(lines.text, '\n'), 2) << "blank lines are no records, as in data";
}

// With line and column in the file, not in the line.
TEST_F(Generate, ALineThatIsNoJsonHasOnePlace) {
  test::write_bytes(root_ / "bad.jsonl", "\"a\"\n{bad\n");
  test::write_bytes(root_ / "bad_choice.jsonl", "{\"question\": \"a\", bad\n");
  const std::string at = "error: bad.jsonl:2:2: ";
  EXPECT_THAT(run("tokenizer train --data bad.jsonl --vocab-size 300 --out t").text,
              ::testing::StartsWith(at + "is not"));
  const CommandOutput lines = run("tokenize --model me/small --jsonl bad.jsonl");
  EXPECT_THAT(lines.text, HasSubstr(at));
  EXPECT_THAT(
      run("eval --model me/small --data bad_choice.jsonl --format choices").text,
      ::testing::StartsWith("error: bad_choice.jsonl:1:19: is not JSON: invalid literal; correct the record\n"));
}

TEST_F(Generate, TheEndOfWhatTheModelWasMadeForIsReported) {
  nlohmann::json config = nlohmann::json::parse(test::read_bytes(root_ / "config.json"));
  config["max_position_embeddings"] = 16;
  test::write_bytes(root_ / "short.json", config.dump());
  ASSERT_EQ(run("init --config short.json --out short").code, 0);
  const std::string note = "note: ended after 14 tokens: the model was made for 16, the prompt included";
  for (const char* how : {"", " --json"}) {
    const std::string words = "generate --model short --ids 1,2" + std::string(how) + " --max-new-tokens ";
    EXPECT_NE(run(words + "15").text.find(note), std::string::npos) << how;
    EXPECT_EQ(run(words + "14").text.find("note: "), std::string::npos) << how;
  }
}

// Not another one, as the conversions of C make it.
TEST_F(Generate, ANumberThatDoesNotFitIsRefused) {
  const std::string words = "generate --model me/small --ids 1,2 --max-new-tokens 1 ";
  for (const std::string flag :
       {"--seed -1", "--seed 18446744073709551616", "--seed 1.5", "--top-k 9223372036854775808"}) {
    const CommandOutput output = run(words + flag);
    EXPECT_EQ(output.code, 2) << output.text;
    EXPECT_NE(output.text.find(flag.substr(flag.find(' ') + 1) + " is not a whole number from "), std::string::npos)
        << output.text;
  }
  EXPECT_EQ(run(words + "--temperature 1 --seed 18446744073709551615").code, 0);
}

}  // namespace
}  // namespace nibble
