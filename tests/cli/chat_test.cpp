// nibble chat: how a conversation goes and ends.

#include <gmock/gmock.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "nibble/tests/assets.h"
#include "nibble/tests/cli/small_model.h"
#include "nibble/tests/cli/word_tokenizer.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Chat : public test::SmallModel {
 protected:
  std::filesystem::path model_with_room(int64_t positions) const {
    std::filesystem::path model = root_ / "hub/models--me--small/snapshots/abc";
    nlohmann::json config = nlohmann::json::parse(test::read_bytes(model / "config.json"));
    config["max_position_embeddings"] = positions;
    test::write_bytes(model / "config.json", config.dump());
    return model;
  }
};

TEST_F(Chat, EndsWhereSomebodyWritesExit) {
  const std::string chat = "chat --model me/small --template plain --max-new-tokens 4 < ";
  for (const char* word : {"exit", "quit", "/quit", ""}) {
    test::write_bytes(root_ / "talk", std::string(word) + "\nWhat?\n");
    const CommandOutput output = run(chat + "talk 2>/dev/null");
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
  const CommandOutput output = run(chat + "chatml 2>&1");
  EXPECT_EQ(output.code, 0);
  EXPECT_THAT(output.text,
              HasSubstr("warning: the tokenizer has no token <|im_start|>, which the template chatml writes"));
  EXPECT_THAT(output.text, HasSubstr("<|im_end|>"));
  EXPECT_THAT(run(chat + "plain 2>&1").text, Not(HasSubstr("warning")));
}

constexpr const char* kCtrlC = "\x03";
constexpr const char* kTerminate = "SIGTERM";
constexpr const char* kShorten = "shorten";
constexpr std::string_view kMarksPastes = "\x1b[?2004h", kMarksNothing = "\x1b[?2004l";

// What a terminal shows of a conversation. `typed`: what is typed at each prompt, but what has Ctrl-C where an answer
// is written, where the model is shortened too, and SIGTERM is sent. Either ends it, and it leaves the terminal as it
// was.
std::string chat_on_a_terminal(const std::filesystem::path& model, const std::vector<std::string>& typed,
                               const char* max_new_tokens = "1") {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    setenv("TERM", "vt100", 1);
    execl(kProgram, kProgram, "chat", "--model", model.c_str(), "--template", "plain", "--max-new-tokens",
          max_new_tokens, nullptr);
    _exit(127);
  }
  std::string shown;
  std::array<char, 4096> piece{};
  std::jthread typist;
  size_t seen = 0;  // of `shown`, when something was typed last
  auto next = typed.begin();
  // It waits for a line, and edits it, once the terminal does nothing more with what is typed.
  const auto edits = [&] {
    termios state{};
    return tcgetattr(terminal, &state) == 0 && (state.c_lflag & (ICANON | IEXTEN)) == 0;
  };
  for (;;) {
    if (pollfd output{terminal, POLLIN, 0}; poll(&output, 1, 1) > 0) {
      const ssize_t count = read(terminal, piece.data(), piece.size());
      if (count <= 0) break;
      shown.append(piece.data(), static_cast<size_t>(count));
    }
    if (next == typed.end()) continue;
    const std::string_view line = std::string_view(shown).substr(shown.find_last_of('\n') + 1);
    const bool in_answer = *next == kShorten || next->find(kCtrlC) != std::string::npos;
    const bool is_there = in_answer ? !edits() && !line.empty() && shown.find('\n', seen) != std::string::npos
                                    : edits() && shown.find("> ", seen) != std::string::npos;
    if (!is_there) continue;
    if (*next == kTerminate) {
      kill(child, SIGTERM);
    } else if (*next == kShorten) {
      resize_file(model / "model.safetensors", 0);
    } else {
      typist = std::jthread([terminal, text = std::string_view(*next)]() mutable {  // waits while the terminal is full
        for (ssize_t sent = 1; sent > 0 && !text.empty(); text.remove_prefix(static_cast<size_t>(sent))) {
          sent = std::max<ssize_t>(0, write(terminal, text.data(), text.size()));
        }
      });
    }
    seen = shown.size();
    ++next;
  }
  if (typist.joinable()) typist.join();
  int status = 0;
  waitpid(child, &status, 0);
  termios left{};
  EXPECT_EQ(tcgetattr(terminal, &left), 0);
  EXPECT_EQ(left.c_lflag & (ICANON | ECHO | IEXTEN), static_cast<tcflag_t>(ICANON | ECHO | IEXTEN));
  EXPECT_GT(shown.rfind(kMarksNothing), shown.rfind(kMarksPastes));
  close(terminal);
  EXPECT_EQ(status, typed.back() == kTerminate ? SIGTERM
                    : typed.back() == kShorten ? 4 << 8
                                               : 0)
      << "as waitpid tells how it ended";
  return shown;
}

TEST_F(Chat, LinesAreEditedOnATerminal) {
  // "xhelp", back to its start, the x deleted, a slash in its place; then the line before comes back and is left.
  const std::string shown =
      chat_on_a_terminal(root_ / "hub/models--me--small/snapshots/abc", {"xhelp\x01\x04/\r\x1b[A\x15/quit\r"});
  EXPECT_THAT(shown, HasSubstr("/adapter on|off"));
  EXPECT_THAT(shown, HasSubstr("/adapter alone"));
  EXPECT_THAT(shown, Not(HasSubstr("is no command")));
}

TEST_F(Chat, APastedTextOfSeveralLinesIsOneMessage) {
  const std::filesystem::path model = root_ / "hub/models--me--small/snapshots/abc";
  const std::string shown =
      chat_on_a_terminal(model, {"\x1b[200~/\xc3\xa9t\xc3\xa9\r\n\r/third\x1b[201~\r", "/quit\r"});
  EXPECT_THAT(shown, HasSubstr("/\xc3\xa9t\xc3\xa9\\x0a\\x0a/third is no command"));
  EXPECT_GT(shown.rfind(kMarksNothing), shown.rfind(kMarksPastes)) << "behind the last prompt";
}

TEST_F(Chat, ASignalThatEndsItLeavesTheTerminalAsItWas) {
  const std::string shown = chat_on_a_terminal(root_ / "hub/models--me--small/snapshots/abc", {kTerminate});
  ASSERT_THAT(shown, HasSubstr(std::string(kMarksPastes)));
  EXPECT_NE(shown.find(kMarksNothing, shown.rfind(kMarksPastes)), std::string::npos);
}

TEST_F(Chat, AModelThatIsShortenedInAnAnswerEndsItInOneLine) {
  const std::string shown = chat_on_a_terminal(model_with_room(1 << 20), {"What?\r", kShorten}, "1000000");
  EXPECT_THAT(shown, HasSubstr("model.safetensors: was shortened or its disk failed while it was in use"));
}

TEST_F(Chat, CtrlCEndsTheAnswerAndNotTheConversation) {
  const std::filesystem::path model = model_with_room(1 << 20);  // the answer ends by the key alone
  const std::string shown = chat_on_a_terminal(model, {"What?\r", kCtrlC, "/reset\r", "/quit\r"}, "1000000");
  EXPECT_THAT(shown, HasSubstr("ending the answer; Ctrl-C again leaves"));
  EXPECT_THAT(shown, HasSubstr("the conversation is forgotten"));
}

TEST_F(Chat, ATextPastedIntoAnAnswerIsTheNextMessage) {
  const std::string paste = "\x1b[200~/first\r\r/third\x1b[201~\r";
  const std::string shown =
      chat_on_a_terminal(model_with_room(1 << 20), {"What?\r", paste + kCtrlC, "/quit\r"}, "1000000");
  EXPECT_THAT(shown, HasSubstr("/first\\x0a\\x0a/third is no command"));
  EXPECT_THAT(shown, Not(HasSubstr("200~"))) << "shown in the answer";
}

TEST_F(Chat, CtrlCBehindALongTextPastedIntoAnAnswerEndsIt) {
  const std::string text = "/" + std::string(20000, 'x');
  const std::string typed = "\x1b[200~" + text + "\x1b[201~\r" + kCtrlC;
  const std::string shown = chat_on_a_terminal(model_with_room(1 << 20), {"What?\r", typed, "/quit\r"}, "1000000");
  EXPECT_NE(shown.find(text + "\r\n  is no command"), std::string::npos);
}

TEST_F(Chat, AMessageThatFindsNoRoomIsLeftOutAndTheConversationGoesOn) {
  model_with_room(24);
  test::write_bytes(root_ / "talk", std::string(200, '1') + "\n/again\nWhat?\n/again\n/quit\n");
  const CommandOutput output = run("chat --model me/small --template plain --max-new-tokens 4 < talk");
  EXPECT_EQ(output.code, 3) << "a pipe is told";
  EXPECT_THAT(output.text, HasSubstr("error: the conversation: has "));
  EXPECT_THAT(output.text, HasSubstr("the model holds 24 positions; the message is left out: shorten it, or forget"));
  EXPECT_THAT(output.text, HasSubstr("nothing was asked yet"));
  EXPECT_THAT(output.text, HasSubstr("error: 1 line got no answer"));
  test::write_bytes(root_ / "talk", "What?\nWho is she?\n");
  EXPECT_THAT(run("chat --model me/small --template plain --max-new-tokens 99 < talk").text,
              HasSubstr("the model's 24 positions are full: /reset forgets the conversation"));
}

TEST_F(Chat, AnAdapterWhoseTokensTheTemplateWritesStaysOn) {
  create_directory(root_ / "marks");
  test::write_bytes(root_ / "marks/tokenizer.json", test::word_tokenizer({{300, "<|im_start|>"}, {301, "<|im_end|>"}}));
  test::write_bytes(root_ / "d.jsonl",
                    R"({"messages": [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}]})");
  test::write_bytes(root_ / "r.json", R"({"model": {"path": "me/small", "tokenizer": "marks"},
    "adapter": {"r": 2}, "data": {"train": "d.jsonl", "template": "chatml"}, "train": {"steps": 1},
    "output": {"dir": "run"}})");
  for (const char* command : {"validate r.json", "preview r.json"}) {
    const CommandOutput output = run(command);
    EXPECT_THAT(output.text, HasSubstr("note: 2 tokens were added to the tokenizer: each gets a row of its own"));
    EXPECT_THAT(output.text, Not(HasSubstr("no token that ends a text"))) << "<|im_end|> does";
  }
  const CommandOutput trained = run("train r.json");
  ASSERT_EQ(trained.code, 0) << trained.text;
  test::write_bytes(root_ / "talk", "w1\n/adapter off\n/again\n/adapter\n");
  const CommandOutput output = run("chat --model me/small --adapter run --max-new-tokens 4 < talk");
  EXPECT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr("the adapter stays on: the chat template writes tokens that came with it"));
  EXPECT_THAT(output.text, Not(HasSubstr("the adapter is off")));
}

TEST_F(Chat, AModelWithoutAChatTemplateIsABadInput) {
  test::write_bytes(root_ / "talk", "exit\n");
  const CommandOutput output = run("chat --model me/small < talk");
  EXPECT_EQ(output.code, 3);
  EXPECT_THAT(output.text, HasSubstr("error: the model has no chat template; name a built-in one ("));
}

}  // namespace
}  // namespace nibble
