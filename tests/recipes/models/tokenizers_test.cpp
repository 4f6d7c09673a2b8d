#include "nibble/recipes/models/tokenizers.h"

#include <gtest/gtest.h>

#include "nibble/tests/assets.h"

namespace nibble {
namespace {

TEST(Texts, OfAnswersHaveNothingInPlaceOfSpecialTokens) {
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(test::data_path("tokenizers/spm-bpe").string());
  std::vector<int32_t> ids = tokenizer->encode("a cat", false);
  ids.push_back(*tokenizer->eos_id());
  for (const int32_t id : tokenizer->encode("at night", false)) ids.push_back(id);
  EXPECT_EQ(answer_text(tokenizer.get(), ids), tokenizer->decode(ids, true));
  EXPECT_EQ(answer_text(tokenizer.get(), ids).find('\n'), std::string::npos);
  EXPECT_NE(text_of(tokenizer.get(), ids).find('\n'), std::string::npos) << "for people";
  EXPECT_EQ(answer_text(nullptr, std::vector<int32_t>{3, 14}), "3 14");
}

}  // namespace
}  // namespace nibble
