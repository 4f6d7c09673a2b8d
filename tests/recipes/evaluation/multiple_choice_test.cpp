#include "nibble/recipes/evaluation/multiple_choice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::TemporaryDirectory;

std::vector<ChoiceQuestion> read(const std::string& text, const std::string& name = "q.jsonl") {
  const TemporaryDirectory directory;
  test::write_bytes(directory / name, text);
  return read_choice_questions({{(directory / name).string()}});
}

TEST(ChoiceQuestions, AnswersAreIndicesLettersLabelsOrTexts) {
  const auto questions = read(
      "{\"question\": \"q\", \"choices\": [\"x\", \"y\"], \"answer\": 1}\n\n"
      "{\"prompt\": \"q\", \"options\": [\"x\", \"y\"], \"label\": \"B\"}\n"
      "{\"query\": \"q\", \"choices\": {\"text\": [\"x\", \"y\"], \"label\": [\"1\", \"2\"]}, \"answerKey\": \"2\"}\n"
      "{\"ctx\": \"q\", \"endings\": [\"x\", \"y\"], \"gold\": \"y\"}");
  ASSERT_EQ(questions.size(), 4u);
  for (const ChoiceQuestion& question : questions) EXPECT_EQ(question.answer, 1u) << question.place;
  EXPECT_TRUE(questions[1].place.ends_with("q.jsonl:3:1"));
}

TEST(ChoiceQuestions, AreReadFromWhatDataAreReadFrom) {
  const std::string one = "{\"question\": \"q\", \"choices\": [\"x\", \"y\"], \"answer\": 1}";
  EXPECT_EQ(read("[" + one + ",\n" + one + "]", "q.json").size(), 2u);
  const auto row = read("question,choices,answer\nq,\"[\"\"x\"\", \"\"y\"\"]\",B\n", "q.csv");
  ASSERT_EQ(row.size(), 1u);
  EXPECT_EQ(row[0].choices, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(row[0].answer, 1u);
  const TemporaryDirectory directory;
  test::write_bytes(directory / "train.jsonl", one + "\n" + one + "\n");
  test::write_bytes(directory / "test.jsonl", one + "\n");
  EXPECT_EQ(read_choice_questions({{directory.path().string()}}).size(), 1u) << "the split to evaluate on";
  EXPECT_NE(test::error_of<InputError>([] { read("text", "q.txt"); }).find("holds texts, no questions"),
            std::string::npos);
}

TEST(ChoiceQuestions, MessagesNameLineAndFix) {
  const auto message = [](const std::string& text) { return test::error_of<InputError>([&] { read(text); }); };
  EXPECT_NE(message("{\"question\": \"q\", \"choices\": [\"x\", \"y\"], \"answer\": 2}")
                .find(":1:1: answer 2 is none of the choices; give its index from 0, its letter, or its text"),
            std::string::npos);
  EXPECT_NE(message("{\"question\": \"q\", \"answer\": 0}").find("has none of the fields \"choices\""),
            std::string::npos);
  EXPECT_NE(message("{\"question\": \"q\", \"choices\": [\"x\"], \"answer\": 0}").find("fewer than two"),
            std::string::npos);
  EXPECT_NE(message("").find("holds no question"), std::string::npos);
}

TEST(MultipleChoice, ModelOfStoriesFindsTheLikelierEnding) {
  const std::filesystem::path path = test::data_path("stories-llama");
  LocalRank rank(1);
  ModelRecipe base;
  base.path = path.string();
  Decoder model = open_model(base, "", Train::nothing, rank.context());
  const auto tokenizer = load_tokenizer(path);
  const StepContext step{.rank = rank.context()};
  const std::vector<ChoiceQuestion> questions = {
      {"Once upon a", {"qxzk", "time"}, 1, "a"},
      {"One day, a little girl named Lily went to the", {"park", "zzqv"}, 0, "b"},
      {"They were very", {"happy", "Xj9 kk"}, 0, "c"},
  };
  const ChoiceAccuracy all = multiple_choice(model, *tokenizer, questions, 0, step);
  EXPECT_EQ(all.asked, 3);
  EXPECT_EQ(all.right, 3);
  std::vector<ChoiceQuestion> blank = questions;
  for (ChoiceQuestion& question : blank) question.prompt += " ";
  EXPECT_EQ(multiple_choice(model, *tokenizer, blank, 0, step).right, 3);
  std::vector<ChoiceQuestion> wrong = questions;
  for (ChoiceQuestion& question : wrong) question.answer = 1 - question.answer;
  EXPECT_EQ(multiple_choice(model, *tokenizer, wrong, 0, step).right, 0);
  EXPECT_EQ(multiple_choice(model, *tokenizer, questions, 2, step).asked, 2);
}

TEST(MultipleChoice, AModelThatComputesNoNumbersIsRefused) {
  const std::filesystem::path path = test::data_path("stories-llama");
  LocalRank rank(1);
  ModelRecipe base;
  base.path = path.string();
  Decoder model = open_model(base, "", Train::nothing, rank.context());
  model.visit([](Parameter& parameter) {
    if (parameter.name == "model.norm.weight") parameter.value.data<float>()[10] = std::nanf("");
  });
  const auto tokenizer = load_tokenizer(path);
  const std::string message = test::error_of<NumericError>([&] {
    multiple_choice(model, *tokenizer, {{"Once upon a", {"qxzk", "time"}, 0, "q:1"}}, 0, {.rank = rank.context()});
  });
  EXPECT_EQ(message,
            "q:1: log-probability of a choice: not finite: model.norm.weight, element 10 of 64, is nan; "
            "check the model's weights");
}

}  // namespace
}  // namespace nibble
