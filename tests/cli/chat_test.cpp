// nibble chat: how a conversation ends.

#include <gmock/gmock.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "nibble/tests/assets.h"
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
    const Said output = run(chat + "talk 2>/dev/null");
    EXPECT_EQ(output.code, 0);
    EXPECT_THAT(output.text, Not(HasSubstr("\n"))) << word;
  }
  test::write_bytes(root_ / "talk", "exit the house\n");
  EXPECT_THAT(run(chat + "talk").text, HasSubstr("\n"));
}

TEST_F(Chat, CommandsSayWhatTheyDid) {
  const std::string chat = "chat --model me/small --template plain --max-new-tokens 4 < talk";
  test::write_bytes(root_ / "talk", "/again\n/system Be kind.\n/again\n/system\n/reset\n/quit\n");
  EXPECT_EQ(run(chat).text,
            "nothing was asked yet that could be answered again\n"
            "the conversation starts again with this system message\n"
            "nothing was asked yet that could be answered again\n"
            "the conversation starts again with no system message\n"
            "the conversation is forgotten\n");
  EXPECT_THAT(run("chat --help").text, HasSubstr("--temperature FLOAT=0 "));
}

// The small model's tokenizer knows no marks of ChatML: an answer would never end as the template says.
TEST_F(Chat, SaysWhichMarksOfABuiltInTemplateTheTokenizerLacks) {
  test::write_bytes(root_ / "talk", "exit\n");
  const std::string chat = "chat --model me/small --max-new-tokens 4 < talk --template ";
  const Said output = run(chat + "chatml 2>&1");
  EXPECT_EQ(output.code, 0);
  EXPECT_THAT(output.text,
              HasSubstr("warning: the tokenizer has no token <|im_start|>, which the template chatml writes"));
  EXPECT_THAT(output.text, HasSubstr("<|im_end|>"));
  EXPECT_THAT(run(chat + "plain 2>&1").text, Not(HasSubstr("warning")));
}

// What a terminal shows of a conversation of `typed`.
std::string on_a_terminal(const std::filesystem::path& model, const std::string& typed) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    setenv("TERM", "vt100", 1);
    execl(kProgram, kProgram, "chat", "--model", model.c_str(), "--template", "plain", "--max-new-tokens", "1",
          nullptr);
    _exit(127);
  }
  std::string shown;
  std::array<char, 4096> piece{};
  bool asked = false;
  for (ssize_t count = 0; (count = read(terminal, piece.data(), piece.size())) > 0;) {
    shown.append(piece.data(), static_cast<size_t>(count));
    if (asked || shown.find("> ") == std::string::npos) continue;
    asked = true;  // it waits for a line, and edits it once the terminal hands on what is typed as it is
    termios state{};
    while (tcgetattr(terminal, &state) == 0 && (state.c_lflag & ICANON) != 0) usleep(1000);
    EXPECT_EQ(write(terminal, typed.data(), typed.size()), static_cast<ssize_t>(typed.size()));
  }
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return shown;
}

TEST_F(Chat, LinesAreEditedOnATerminal) {
  // "xhelp", back to its start, the x deleted, a slash in its place; then the line before comes back and is left.
  const std::string shown =
      on_a_terminal(root_ / "hub/models--me--small/snapshots/abc", "xhelp\x01\x04/\r\x1b[A\x15/quit\r");
  EXPECT_THAT(shown, HasSubstr("/adapter on|off"));
  EXPECT_THAT(shown, Not(HasSubstr("is no command")));
}

}  // namespace
}  // namespace nibble
