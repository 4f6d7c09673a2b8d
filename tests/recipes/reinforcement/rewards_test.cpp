#include "nibble/recipes/reinforcement/rewards.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>
#include <thread>

#include "nibble/core/base/error.h"
#include "nibble/recipes/reinforcement/rollout.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::error_of;
using ::testing::HasSubstr;

TEST(Rewards, NumberComparesTheLastNumbers) {
  EXPECT_EQ(number_reward("6 times 7 is 42.", "#### 42"), 1);
  EXPECT_EQ(number_reward("so 1,234.50", "1234.5"), 1);
  EXPECT_EQ(number_reward("it is -3", "-3"), 1);
  EXPECT_EQ(number_reward("it is 5-3", "3"), 1) << "a difference, not a sign";
  EXPECT_EQ(number_reward("it is -3", "3"), 0);
  EXPECT_EQ(number_reward("I do not know", "3"), 0);
  EXPECT_EQ(number_reward("42 or 43", "42"), 0);
  EXPECT_EQ(number_reward("it is -.5", "-0.5"), 1);
  EXPECT_EQ(number_reward("it is -.5", "5"), 0);
  EXPECT_EQ(number_reward("the point (3,4)", "34"), 0);
  const std::string many(400, '9');  // more than a double holds
  EXPECT_EQ(number_reward(many, "9"), 0);
  EXPECT_EQ(number_reward(many, many + "9"), 0);
  EXPECT_EQ(number_reward(many, many), 1);
}

TEST(Rewards, ExactLeavesBlanksOut) {
  EXPECT_EQ(exact_reward(" yes\n", "yes"), 1);
  EXPECT_EQ(exact_reward("yes.", "yes"), 0);
}

TEST(Rewards, LengthAndRepetitionAreTrls) {  // trl.rewards, with max_completion_len 10 and soft_punish_cache 4
  EXPECT_EQ(length_reward(6, 10, 4), 0);
  EXPECT_EQ(length_reward(7, 10, 4), -0.25);
  EXPECT_EQ(length_reward(10, 10, 4), -1);
  EXPECT_EQ(length_reward(11, 10, 4), -1);
  EXPECT_EQ(repetition_reward("a b", 3, -1), 0);
  EXPECT_DOUBLE_EQ(repetition_reward("a b A b a", 2, -2), -1) << "ab ba, each twice";
}

TEST(Rewards, ReadColumnsOfTheRecord) {
  Recipe recipe;
  recipe.rewards = {{.type = RewardRecipe::Type::exact, .column = "answer"},
                    {.type = RewardRecipe::Type::regex, .pattern = "^[a-z]+$"},
                    {.type = RewardRecipe::Type::regex, .pattern = "x"}};
  recipe.data.fields = {{"answer", "solution"}};
  Rewards rewards(recipe);
  EXPECT_EQ(rewards.names(), (std::vector<std::string>{"exact", "regex", "regex_2"}));
  const auto path = std::make_shared<const std::string>("p.jsonl");
  const PromptRecord record{path, {R"({"prompt": "?", "solution": "yes"})", 6}};
  const PromptRecord other{path, {R"({"prompt": "?", "solution": null, "answer": 7})", 7, 3}};
  std::vector<JudgedAnswer> answers = {{.prompt = "?", .answer = "yes", .ids = {}, .record = &record},
                                       {.prompt = "?", .answer = "No x", .ids = {}, .record = &record}};
  EXPECT_EQ(rewards.score(answers), (std::vector<std::vector<double>>{{1, 0}, {1, 0}, {0, 1}}));
  answers[1].record = &other;
  const std::string refused =
      R"(p.jsonl:7:3: has no field "solution" for rewards (exact); the record has "prompt", "solution" (null), "answer")"
      "; give the field to every prompt, or name another column";
  EXPECT_EQ(error_of<InputError>([&] { rewards.score(answers); }), refused);
  EXPECT_EQ(error_of<InputError>([&] { rewards.check(other); }), refused);
  rewards.check(record);
  recipe.rewards = {{.type = RewardRecipe::Type::regex, .pattern = "(a"}};
  EXPECT_THAT(error_of<InputError>([&] { Rewards{recipe}; }), HasSubstr("rewards (regex)"));
}

TEST(Rewards, RefuseAColumnWithoutTheNumberThatIsCompared) {
  Recipe recipe;
  recipe.rewards = {{.type = RewardRecipe::Type::number, .column = "answer"}};
  recipe.data.fields = {{"answer", "solution"}};
  const Rewards rewards(recipe);
  const auto path = std::make_shared<const std::string>("p.jsonl");
  const auto refused = [&](const char* text) {
    const PromptRecord record{path, {text, 4}};
    return error_of<InputError>([&] { rewards.check(record); });
  };
  EXPECT_EQ(refused(R"({"prompt": "?", "solution": "forty-two"})"),
            R"(p.jsonl:4:1: has no number in "solution" for rewards (number): "forty-two"; give every prompt a number )"
            "there, or take another column or reward, such as exact");
  EXPECT_THAT(refused(R"({"prompt": "?", "solution": ""})"), HasSubstr(R"(rewards (number): ""; give)"));
  EXPECT_THAT(refused(R"({"prompt": "?", "solution": [true]})"), HasSubstr("rewards (number): [true]; give"));
  for (const char* right : {R"({"prompt": "?", "solution": "#### 42"})", R"({"prompt": "?", "solution": -7})"}) {
    rewards.check({path, {right, 4}});
  }
}

TEST(Rewards, CompareANumberOfTheRecordByAllItsDigits) {
  Recipe recipe;
  recipe.rewards = {{.type = RewardRecipe::Type::number, .column = "answer"}};
  Rewards rewards(recipe);
  const auto path = std::make_shared<const std::string>("p.jsonl");
  const auto score = [&](const std::string& expected, const std::string& answer) {
    const std::string text = R"({"prompt": "?", "answer": )" + expected + "}";
    const PromptRecord record{path, {text, 1}};
    return rewards.score({{.prompt = "?", .answer = answer, .ids = {}, .record = &record}})[0][0];
  };
  EXPECT_EQ(score("12345678901234567890123", "22"), 0) << "the exponent";
  EXPECT_EQ(score("12345678901234567890123", "12345678901234567890123"), 1);
  EXPECT_EQ(score("1e-05", "0.00001"), 1);
  EXPECT_EQ(score("1e-05", "-5"), 0);
  EXPECT_EQ(score("2.0", "2"), 1);
  const std::string given = R"(case "$l" in *'"answer":12345678901234567890123,'*) echo 3;; *) echo 2;; esac)";
  recipe.rewards = {
      {.type = RewardRecipe::Type::exact, .column = "answer"},
      {.type = RewardRecipe::Type::command, .argv = {"/bin/sh", "-c", "while read -r l; do " + given + "; done"}}};
  Rewards exact(recipe);
  const PromptRecord whole{path, {R"({"prompt": "?", "answer": 12345678901234567890123})", 1}},
      floating{path, {R"({"prompt": "?", "answer": 2.0})", 1}};
  const auto scores = exact.score({{.prompt = "?", .answer = "12345678901234567890123", .ids = {}, .record = &whole},
                                   {.prompt = "?", .answer = "2.0", .ids = {}, .record = &floating}});
  EXPECT_EQ(scores, (std::vector<std::vector<double>>{{1, 1}, {3, 2}}));
}

TEST(Rewards, PatternsAreThoseOfPython) {
  Recipe recipe;
  recipe.rewards = {{.type = RewardRecipe::Type::regex, .pattern = "(?s)^<a>.*</a>$"}};
  const auto score = [&](const std::string& answer) {
    return Rewards(recipe).score({{.prompt = "?", .answer = answer, .ids = {}}})[0][0];
  };
  EXPECT_EQ(score("<a>x\ny</a>"), 1);
  EXPECT_EQ(score("Well:\n<a>x</a>"), 0) << "^ is the beginning of the answer";
}

TEST(CommandReward, KeepsOneProcessAndReadsWhateverTheCommandBuffers) {
  CommandReward counts({.type = RewardRecipe::Type::command,
                        .argv = {"/bin/sh", "-c", "i=0; while read -r l; do i=$((i+1)); echo $i; done"}},
                       "rewards (command)");
  EXPECT_EQ(counts.score({"{}", "{}"}), (std::vector<double>{1, 2}));
  const std::vector<std::string> many(20000, std::string(100, 'x'));  // more than pipes hold
  EXPECT_EQ(counts.score(many).back(), 20002);
}

TEST(CommandReward, NullIsNothingAndExtraLinesAreRefused) {
  RewardRecipe recipe{.type = RewardRecipe::Type::command,
                      .argv = {"/bin/sh", "-c", "read -r l; printf 'null\\n2\\n'; read -r l"}};
  CommandReward once(recipe, "rewards (command)");
  EXPECT_THAT(error_of<InputError>([&] { once.score({"{}"}); }), HasSubstr("beyond one line for each answer"));
  recipe.argv[2] = "read -r l; echo null; read -r l; echo 2";
  EXPECT_TRUE(std::isnan(CommandReward(recipe, "rewards (command)").score({"{}"}).front()));
}

TEST(CommandReward, ThatIsNotStartedAgainFailsAsOneThatEnds) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path program = directory / "once";
  test::write_bytes(program, "#!/bin/sh\nrm \"$0\"\nexit 3\n");
  permissions(program, std::filesystem::perms::owner_all);
  CommandReward once({.type = RewardRecipe::Type::command, .argv = {program.string()}, .null_on_failure = true},
                     "rewards (command)");
  for (const char* reason : {"ended with exit code 3", "is not started again", "is not started again"}) {
    const std::vector<double> scores = once.score({"{}", "{}"});
    EXPECT_TRUE(scores.size() == 2 && std::isnan(scores.front()) && std::isnan(scores.back()));
    EXPECT_THAT(once.failure(), HasSubstr(reason));
  }
}

// Nothing here ignores SIGPIPE, as `nibble` does.
TEST(CommandReward, ThatReadsNoMoreDoesNotEndTheProgram) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path program = directory / "deaf";
  test::write_bytes(program, "#!/bin/sh\nexec <&-\nrm \"$0\"\nexit 3\n");
  permissions(program, std::filesystem::perms::owner_all);
  CommandReward deaf({.type = RewardRecipe::Type::command, .argv = {program.string()}, .null_on_failure = true},
                     "rewards (command)");
  EXPECT_TRUE(deaf.score({}).empty());  // it is started
  while (exists(program)) std::this_thread::yield();
  EXPECT_EQ(deaf.score({"{}"}).size(), 1u);
  EXPECT_THAT(deaf.failure(), HasSubstr("ended with exit code 3"));
}

TEST(CommandReward, ThatClosesItsOutputAndStaysIsNotWaitedForWithoutEnd) {
  CommandReward silent({.type = RewardRecipe::Type::command,
                        .argv = {"/bin/sh", "-c", "read -r l; echo 1; exec >&-; exec sleep 1000"},
                        .timeout_seconds = 0.2},
                       "rewards (command)");
  EXPECT_THAT(error_of<InputError>([&] { silent.score({"{}", "{}"}); }), HasSubstr("timeout_seconds (0.2)"));
}

TEST(Rewards, SayHowManyScoresOfCommandsAreThere) {
  const RewardRecipe command = {.type = RewardRecipe::Type::command,
                                .argv = {"sh", "-c", "while read -r line; do echo 1; done"}};
  Recipe recipe;
  recipe.rewards = {command, {.type = RewardRecipe::Type::regex, .pattern = "x"}, command};
  Rewards rewards(recipe);
  const std::vector<JudgedAnswer> answers(3, {.prompt = "?", .answer = "x", .ids = {}});
  std::set<size_t> told;
  const auto stop = [&](size_t done, size_t of) {
    EXPECT_EQ(of, 6u);
    told.insert(done);
    return false;
  };
  EXPECT_EQ(rewards.score(answers, stop).size(), 3u);
  EXPECT_TRUE(told.contains(0) && told.contains(3) && *told.rbegin() < 6)
      << "each command begins behind the one before";
  EXPECT_TRUE(rewards.score(answers, [](size_t done, size_t) { return done >= 3; }).empty());
}

TEST(Rollout, IsReadAsItWasWritten) {
  Rollout rollout;
  rollout.position = 3;
  rollout.sequence = 17;
  rollout.record = 2;
  rollout.prompt = {1, 5};
  rollout.answer = {7, 9, 2};
  rollout.sampled = {-0.1f, -1e-7f, -3.3333333f};
  rollout.rewards = {0.1, std::nan("")};
  rollout.reward = 0.1;
  rollout.advantage = -1.0 / 3;
  const std::vector<std::string> names = {"exact", "judge"};
  const std::string lines = write_rollouts({rollout, rollout}, names, {});
  const std::vector<Rollout> again = read_rollouts(lines, names);
  EXPECT_EQ(write_rollouts(again, names, {}), lines);
  EXPECT_EQ(again[1].sampled, rollout.sampled);
  EXPECT_EQ(again[1].advantage, rollout.advantage);
  EXPECT_TRUE(std::isnan(again[1].rewards[1]));
}

}  // namespace
}  // namespace nibble
