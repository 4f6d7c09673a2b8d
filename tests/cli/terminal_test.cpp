// How lines look on a terminal, which is a pseudoterminal of the test.

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

constexpr size_t kColumns = 60;

/// What `nibble WORDS` writes to a terminal of kColumns.
std::string on_terminal(const std::string& words) {
  winsize size{24, kColumns, 0, 0};
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", (std::string(kProgram) + " " + words).c_str(), nullptr);
    _exit(127);
  }
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t got = 0; (got = read(terminal, piece.data(), piece.size())) > 0;) text.append(piece.data(), got);
  close(terminal);
  waitpid(child, nullptr, 0);
  std::erase(text, '\r');
  return text;
}

std::string in_a_pipe(const std::string& words) {
  return test::output_of(std::string(kProgram) + " " + words + " 2>&1").text;
}

std::vector<std::string> parts_of(const std::string& text, char between) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, between);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::vector<std::string> words_of(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return parts_of(text, ' ');
}

TEST(Terminal, LinesBreakAtWordsThereAndNowhereElse) {
  for (const std::string words : {"train --help", "--help", "validate /nowhere/no-such-recipe-in-a-long-path.json",
                                  "train --model a-model --data the-data.jsonl --out here"}) {
    const std::string shown = on_terminal(words), piped = in_a_pipe(words);
    EXPECT_EQ(words_of(shown), words_of(piped)) << words;
    EXPECT_GT(std::ranges::max(parts_of(piped, '\n'), {}, &std::string::size).size(), kColumns) << words;
    for (const std::string& line : parts_of(shown, '\n')) {
      if (line.starts_with("Example: ")) continue;
      EXPECT_LE(line.size(), kColumns) << words << "\n" << line;
    }
  }
}

TEST(Terminal, WhatFollowsABreakIsIndentedAndACommandToCopyStaysWhole) {
  const std::vector<std::string> error = parts_of(on_terminal("train --model m --data d.jsonl"), '\n');
  ASSERT_GT(error.size(), 1u);
  EXPECT_TRUE(error[0].starts_with("error: "));
  EXPECT_TRUE(error[1].starts_with("  ") && error[1][2] != ' ') << error[1];
  const std::string help = on_terminal("train --help");
  EXPECT_NE(help.find("\nExample: nibble train qlora.json model.path=llama data.train=my.jsonl output.dir=runs/mine\n"),
            std::string::npos)
      << help;
}

using RanksOnATerminal = test::SmallModel;

TEST_F(RanksOnATerminal, TheirStepsAreOneLineThatIsRenewed) {
  std::string records;
  for (int i = 0; i < 8; ++i) records += "{\"prompt\": \"What?\", \"completion\": \" It is this.\"}\n";
  test::write_bytes(root_ / "d.jsonl", records);
  test::write_bytes(root_ / "r.yaml", "model: {path: " + (root_ / "hub/models--me--small/snapshots/abc").string() +
                                          "}\nadapter: {r: 2}\ndata: {train: " + (root_ / "d.jsonl").string() +
                                          ", pack: false}\ntrain: {steps: 2, microbatch_size: 1, accumulate: 2}\n"
                                          "output: {dir: " +
                                          (root_ / "run").string() + "}\n");
  const std::string text = on_terminal("launch -n 2 --threads 1 -- train " + (root_ / "r.yaml").string());
  for (const std::string step : {"step 1/2  loss ", "step 2/2  loss "}) {
    const size_t begin = text.find(step), end = text.find("\x1b[K", begin);
    ASSERT_NE(begin, std::string::npos) << text;
    ASSERT_NE(end, std::string::npos) << text;
    EXPECT_EQ(text.substr(begin, end - begin).find('\n'), std::string::npos) << text;
    EXPECT_LT(end - begin, kColumns) << text;
  }
}

// With an mpirun that says what ranks may say.
TEST(Terminal, LaunchSaysBelowALineThatIsRenewedWhatOthersSay) {
  const test::TemporaryDirectory directory;
  for (const char* name : {"mpirun", "mpiexec.hydra"}) {
    test::write_bytes(directory / name,
                      "#!/bin/sh\n"
                      "printf 'step 1/2\\rstep 2/2\\rrank 1 is slow\\n\\nsaved\\nexport 0/4\\r\\rdone\\n' >&2\n");
    permissions(directory / name, std::filesystem::perms::owner_all);
  }
  const std::string path = std::getenv("PATH");
  setenv("PATH", (directory.path().string() + ":" + path).c_str(), 1);
  const std::string text = on_terminal("launch -n 2 --threads 1 -- train r.json");
  setenv("PATH", path.c_str(), 1);
  EXPECT_NE(text.find("step 1/2\x1b[Kstep 2/2\x1b[K\nrank 1 is slow\nsaved\nexport 0/4\x1b[K\x1b[Kdone\n"),
            std::string::npos)
      << text;
}

using AnswersOnATerminal = test::SmallModel;

TEST_F(AnswersOnATerminal, AreCountedWhileTheyAreDrawnAndJudged) {
  test::write_bytes(root_ / "d.jsonl", "{\"prompt\": \"What?\"}\n");
  test::write_bytes(root_ / "r.yaml",
                    "model: {path: " + (root_ / "hub/models--me--small/snapshots/abc").string() +
                        "}\nobjective: {type: grpo}\nrollout: {completions: 2, max_new_tokens: 4}\n"
                        "rewards: [{type: command, argv: [sh, -c, 'while read -r l; do echo 1; done']}]\n"
                        "data: {train: " +
                        (root_ / "d.jsonl").string() +
                        ", max_length: 64}\n"
                        "train: {steps: 2, threads: 1, microbatch_size: 2, accumulate: 1}\n"
                        "output: {dir: " +
                        (root_ / "run").string() + "}\n");
  const std::string text = on_terminal("train " + (root_ / "r.yaml").string());
  size_t at = 0;
  for (const char* line : {"step 1  drawing 0/2\x1b[K", "step 1  judging 0/2\x1b[K", "step 1/2  loss ",
                           "step 2  drawing 0/2\x1b[K", "step 2  judging 0/2\x1b[K", "step 2/2  loss "}) {
    at = text.find(line, at);
    ASSERT_NE(at, std::string::npos) << line << "\n" << text;
  }
}

TEST_F(AnswersOnATerminal, WhatPreviewSaysOfTheDataFits) {
  test::write_bytes(root_ / "d.jsonl", "{\"prompt\": \"What?\", \"completion\": \" It is this.\"}\n");
  test::write_bytes(root_ / "r.yaml", "model: {path: " + (root_ / "hub/models--me--small/snapshots/abc").string() +
                                          "}\ndata: {train: " + (root_ / "d.jsonl").string() +
                                          "}\ntrain: {steps: 1}\noutput: {dir: " + (root_ / "run").string() + "}\n");
  const std::string text = on_terminal("preview " + (root_ / "r.yaml").string());
  const size_t data = text.find("--- lengths in tokens\n");
  ASSERT_NE(data, std::string::npos) << text;
  EXPECT_NE(text.find(" ###", data), std::string::npos) << text;
  for (const std::string& line : parts_of(text.substr(data), '\n')) EXPECT_LE(line.size(), kColumns) << line;
}

// Only a path may be longer than a line.
void expect_words_fit(const std::string& text) {
  for (const std::string& line : parts_of(text, '\n')) {
    EXPECT_TRUE(line.size() <= kColumns || line.find('/') != std::string::npos) << line;
  }
}

TEST_F(AnswersOnATerminal, WhatInspectAndCompareSayOfRunsFits) {
  const std::string model = (root_ / "hub/models--me--small/snapshots/abc").string();
  test::write_bytes(root_ / "d.jsonl", "{\"text\": \"It is this.\"}\n");
  test::write_bytes(root_ / "r.yaml", "model: {path: " + model + "}\ndata: {train: " + (root_ / "d.jsonl").string() +
                                          "}\ntrain: {steps: 1, threads: 1}\nadapter: {r: 2}\n");
  std::vector<std::string> runs;
  for (const std::string name : {"one-of-two-runs-with-long-names", "the-other-one-of-these-two-runs"}) {
    runs.push_back((root_ / name).string());
    const CommandOutput trained =
        run("train r.yaml optimizer.lr=1e-" + std::to_string(runs.size()) + " output.dir=" + name);
    ASSERT_EQ(trained.code, 0) << trained.text;
  }
  const std::string table = on_terminal("compare " + runs[0] + " " + runs[1]);
  expect_words_fit(table);
  const std::string head = "run" + std::string(runs[0].size() - root_.path().string().size() - 4, ' ') + "  ";
  EXPECT_EQ(table.find(head + "steps"), 0u) << table;
  const std::vector<std::string> lines = parts_of(table, '\n');
  const auto last = std::ranges::find_if(lines, [](const std::string& line) { return line.ends_with("memory"); });
  ASSERT_NE(last, lines.end()) << table;
  EXPECT_TRUE(last != lines.begin() && last->starts_with(head)) << "below the others\n" << table;

  const std::string recipe = on_terminal("inspect " + runs[0]);
  expect_words_fit(recipe);
  EXPECT_NE(recipe.find("\n  optimizer.lr                       0.1\n"), std::string::npos) << recipe;
  expect_words_fit(on_terminal("inspect " + model));
  expect_words_fit(on_terminal("recipes ls"));
  expect_words_fit(on_terminal("recipes models"));
  const std::string models = run("recipes models").text;
  EXPECT_NE(models.find("  parallel.pipeline=8 train.accumulate=32\n"), std::string::npos) << models;
}

TEST_F(AnswersOnATerminal, AreCountedWhileEvalLooksAtThem) {
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "completion": " That."})");
  const std::string text =
      on_terminal("eval --exact-match --max-new-tokens 1 --model " +
                  (root_ / "hub/models--me--small/snapshots/abc").string() + " --data " + (root_ / "d.jsonl").string());
  EXPECT_NE(text.find("evaluation 0/1\x1b[K"), std::string::npos) << text;
  EXPECT_NE(text.find("answer 0/1\x1b[K"), std::string::npos) << text;
}

TEST_F(AnswersOnATerminal, AreCountedWhileLogprobsComputesThem) {
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "chosen": " That.", "rejected": " No."})");
  const std::string text =
      on_terminal("logprobs --model " + (root_ / "hub/models--me--small/snapshots/abc").string() + " --data " +
                  (root_ / "d.jsonl").string() + " --out " + (root_ / "l.jsonl").string());
  EXPECT_NE(text.find("answer 0/2\x1b[K"), std::string::npos) << text;
}

class DecodedText : public test::SmallModel {};

TEST_F(DecodedText, ShowsNoEscapesThere) {
  const std::string model = (root_.path() / "hub/models--me--small/snapshots/abc").string();
  test::write_bytes(root_ / "text", "\x1b[2J");
  std::string ids = run("tokenize --model me/small --no-special --file text").text;
  std::ranges::replace(ids, ' ', ',');
  const std::string decode = "tokenize --model " + model + " --decode " + ids;
  EXPECT_EQ(on_terminal(decode), "\\x1b[2J\n") << ids;
  EXPECT_EQ(in_a_pipe(decode), "\x1b[2J\n") << ids;
}

}  // namespace
}  // namespace nibble
