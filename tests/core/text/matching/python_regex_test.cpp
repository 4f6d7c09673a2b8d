#include "nibble/core/text/matching/python_regex.h"

#include <gtest/gtest.h>

#include "nibble/core/base/error.h"

namespace nibble {
namespace {

TEST(PythonRegex, WholeMatchTriesEveryAlternative) {
  // re.fullmatch("a|ab", "ab") matches in Python, though re.match takes only "a"
  EXPECT_TRUE(PythonRegex("a|ab").matches_whole("ab"));
  EXPECT_FALSE(PythonRegex("a").matches_whole("ab"));
  EXPECT_TRUE(PythonRegex("a").matches_start("ab"));
  EXPECT_FALSE(PythonRegex("b").matches_start("ab"));
  EXPECT_TRUE(PythonRegex("b$").matches_whole("b"));
}

TEST(PythonRegex, KnowsThePythonDialect) {
  EXPECT_TRUE(PythonRegex(R"(.*\.(?P<kind>q|v)_proj)").matches_whole("layers.0.v_proj"));
  EXPECT_TRUE(PythonRegex(R"((?!.*\.1\.).*q_proj)").matches_whole("layers.0.q_proj"));
  EXPECT_FALSE(PythonRegex(R"((?!.*\.1\.).*q_proj)").matches_whole("layers.1.q_proj"));
  EXPECT_TRUE(PythonRegex("(?i)LAYERS.*").matches_whole("layers.0"));
}

TEST(PythonRegex, SearchesAsPythonDoes) {
  EXPECT_TRUE(PythonRegex("b+").matches_within("abb"));
  EXPECT_FALSE(PythonRegex(R"(^\d+$)").matches_within("a\n1\nb")) << "not at every line";
  EXPECT_TRUE(PythonRegex(R"((?m)^\d+$)").matches_within("a\n1\nb"));
  EXPECT_TRUE(PythonRegex("(?s)^a.*b$").matches_within("a\nb"));
  EXPECT_FALSE(PythonRegex("^a.*b$").matches_within("a\nb"));
  EXPECT_TRUE(PythonRegex(R"((?P<x>a)\1)").matches_within("baa"));
}

TEST(PythonRegex, GivesTheFirstGroup) {
  EXPECT_EQ(PythonRegex(R"(.*?\.[^.]*\.(\d+)\.)").first_group("model.layers.12.mlp.experts.3.w1"), "12");
  EXPECT_EQ(PythonRegex(R"(x(\d)?)").first_group("x"), std::nullopt);
}

TEST(PythonRegex, RefusesWhatIsNoPatternAndNamesIt) {
  try {
    PythonRegex("q_proj(");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("\"q_proj(\""), std::string::npos) << error.what();
  }
}

TEST(PythonRegex, AnExplodingPatternEndsWithAnError) {
  const PythonRegex pattern(R"((a+)+\.b)");
  EXPECT_THROW(pattern.matches_whole(std::string(60, 'a')), UsageError);
}

}  // namespace
}  // namespace nibble
