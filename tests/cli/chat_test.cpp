// nibble chat: how a conversation ends.

#include <gmock/gmock.h>

#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Chat : public test::SmallModel {};

TEST_F(Chat, EndsWhereSomebodyWritesExit) {
  const std::string chat = "chat --model me/small --template plain --max-new-tokens 4 < ";
  for (const char* word : {"exit", "quit", "/quit", ""}) {
    test::write_bytes(root_ / "talk", std::string(word) + "\nWhat?\n");
    const Said said = run(chat + "talk 2>/dev/null");
    EXPECT_EQ(said.code, 0);
    EXPECT_THAT(said.text, Not(HasSubstr("\n"))) << word;
  }
  test::write_bytes(root_ / "talk", "exit the house\n");
  EXPECT_THAT(run(chat + "talk").text, HasSubstr("\n"));
}

}  // namespace
}  // namespace nibble
