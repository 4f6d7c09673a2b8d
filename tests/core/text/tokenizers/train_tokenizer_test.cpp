// Training a tokenizer: small, repeatable, able to spell everything.

#include "nibble/core/text/tokenizers/train_tokenizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_tokenizer.h"
#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {
namespace {

std::string corpus() {
  std::string text;
  for (int k = 0; k < 400; ++k)
    text += "the cat number " + std::to_string(k) + " sat on the mat\nand said hello again\n";
  return text;
}

std::string train(const std::string& text, int32_t vocab_size) {
  bool given = false;
  TokenizerTraining training;
  training.vocab_size = vocab_size;
  return train_sentencepiece(
      [&](std::string& out) {
        if (std::exchange(given, true)) return false;
        out = text;
        return true;
      },
      training);
}

TEST(TrainTokenizer, TheSameTextGivesTheSameBytes) { EXPECT_EQ(train(corpus(), 320), train(corpus(), 320)); }

TEST(TrainTokenizer, HasLlamasFormAndSpellsWhatItNeverSaw) {
  const auto tokenizer = open_sentencepiece(train(corpus(), 320), "model");
  EXPECT_EQ(tokenizer->vocab_size(), 320);
  EXPECT_EQ(tokenizer->token(0), "<unk>");
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->token(3 + 0x0A), "<0x0A>");
  EXPECT_LT(tokenizer->encode("the cat sat on the mat", false).size(), 16U);
  for (const std::string text : {"line\nbreak", "  two blanks", "\xF0\x9F\x98\x80 \xE4\xBD\xA0", "tab\there"})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text), true), text);
}

TEST(TrainTokenizer, WritesADirectoryThatLoads) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / ("nibble-tokenizer-" + std::to_string(getpid()));
  const std::string model = train(corpus(), 300);
  write_tokenizer(model, directory);
  const auto tokenizer = load_tokenizer(directory);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_FALSE(tokenizer->pad_id().has_value());
  EXPECT_THROW(write_tokenizer(model, directory), UsageError);
  std::filesystem::remove_all(directory);
}

TEST(TrainTokenizer, NoTextOrTooSmallAVocabularyIsRefused) {
  EXPECT_THROW(train("", 300), InputError);
  EXPECT_THROW(train("\n\n", 300), InputError);
  EXPECT_THROW(train(corpus(), 100), UsageError);
  EXPECT_THROW(train(corpus(), 262), UsageError);
}

TEST(TrainTokenizer, TooFewPiecesForTheCharactersOfTheTextAreCounted) {
  std::string text = corpus();
  for (char32_t c = 0x430; c < 0x450; ++c)
    text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  try {
    train(text, 280);
    FAIL();
  } catch (const UsageError& error) {
    const std::string said = error.what(),
                      begin = "a vocabulary of 280 cannot hold the characters of the text; ask for ";
    ASSERT_EQ(said.substr(0, begin.size()), begin);
    const int needed = std::stoi(said.substr(begin.size()));
    EXPECT_NO_THROW(train(text, needed));
    EXPECT_THROW(train(text, needed - 1), UsageError);
  }
}

}  // namespace
}  // namespace nibble
