#include "nibble/recipes/evaluation/answer.h"

#include <gmock/gmock.h>

#include "nibble/core/base/error.h"

namespace nibble {
namespace {

using ::testing::Eq;
using ::testing::Optional;

TEST(Answer, NumberIsTheLastOneWithoutWhatDoesNotChangeItsValue) {
  const std::pair<const char*, const char*> cases[] = {
      {"5 + 7 = 12, so it is\n#### 12", "12"},
      {"It costs $1,234.50.", "1234.5"},
      {"-3", "-3"},
      {"from 7-3", "3"},
      {"7.0", "7"},
      {"007", "7"},
      {"0", "0"},
      {"-0.0", "0"},
      {".5", "0.5"},
      {"-.50", "-0.5"},
      {"v.5", "5"},
      {"...5", "5"},
      {"(3,4)", "4"},
      {"1,2,345", "2345"},
      {"12,34,567 rupees", "1234567"},
      {"12345,678", "678"},
      {"0.50%", "0.5"},
      {"1,000,000 people", "1000000"},
      {"10 apples, 20 pears.", "20"},
      {"see 3.1.4", "4"},
      {"\xC3\xA9 = 4\xE2\x82\xAC", "4"},
  };
  for (const auto& [text, number] : cases) EXPECT_THAT(AnswerRule::number().find(text), Optional(Eq(number))) << text;
  EXPECT_EQ(AnswerRule::number().find("none."), std::nullopt);
  EXPECT_EQ(AnswerRule::number().find(""), std::nullopt);
}

TEST(Answer, LastLineIsTheLastThatIsNotBlank) {
  EXPECT_THAT(AnswerRule::last_line().find("because\r\n  B  \r\n\n"), Optional(Eq("B")));
  EXPECT_THAT(AnswerRule::last_line().find("B"), Optional(Eq("B")));
  EXPECT_EQ(AnswerRule::last_line().find(" \n"), std::nullopt);
}

TEST(Answer, RegexIsTheFirstGroupOfTheLastMatch) {
  const AnswerRule rule = AnswerRule::regex("#### (\\w+)");
  EXPECT_THAT(rule.find("#### a\nno,\n#### b!"), Optional(Eq("b")));
  EXPECT_EQ(rule.find("### a"), std::nullopt);
  EXPECT_THAT(AnswerRule::regex("(yes|no)|maybe").find("no. yes."), Optional(Eq("yes")));
  EXPECT_THAT(AnswerRule::regex("(\\d+)").find("it is 13, not 457."), Optional(Eq("457")));
  EXPECT_THAT(AnswerRule::regex("(\\w+)").find("a little"), Optional(Eq("little")));
  EXPECT_THAT(AnswerRule::regex("(x*)").find("xx\xC3\xA9"), Optional(Eq("")));
  EXPECT_THROW(AnswerRule::regex("("), UsageError);
}

}  // namespace
}  // namespace nibble
