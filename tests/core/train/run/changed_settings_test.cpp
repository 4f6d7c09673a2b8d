#include "nibble/core/train/run/run_directory.h"

#include <gtest/gtest.h>

#include "nibble/core/base/error.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

TEST(ChangedSettings, DataAreNamedByKeyAndFile) {
  TrainingState before;
  before.settings = {{"data.fingerprint", "\"1-2\""}, {"data.records", "\"1\""}};
  RunOptions options;
  options.dir = "out";
  options.recipe = R"({"data": {"train": "d.jsonl"}, "rollout": {"file": null}})";
  const auto refusal = [&](const std::string& fingerprint, const std::string& records) {
    options.settings = {{"data.fingerprint", fingerprint}, {"data.records", records}};
    const std::string message =
        test::error_of<UsageError>([&] { detail::compare_settings(options, before, Observer()); });
    return message.substr(0, message.find(';'));
  };
  const std::string begin = "out: differs from the run that began here: ";
  EXPECT_EQ(refusal("\"1-2\"", "\"2\""), begin + "data.train \"d.jsonl\" has other content beside the prompts");
  EXPECT_EQ(refusal("\"2-2\"", "\"2\""), begin + "data.train \"d.jsonl\" has other content");
  EXPECT_EQ(refusal("\"1\"", "\"1\""), begin + "data.eval is gone");
  before.settings["data.fingerprint"] = "\"1\"";
  EXPECT_EQ(refusal("\"1-2\"", "\"1\""), begin + "data.eval is new");
  before.settings["data.fingerprint"] = "\"1-2\"";
  options.recipe = R"({"data": {"train": "d.jsonl"}, "rollout": {"file": "r.jsonl"}})";
  EXPECT_EQ(refusal("\"2-2\"", "\"1\""), begin + "rollout.file \"r.jsonl\" has other content");
}

// Where a constant rate makes the length no setting.
TEST(ChangedSettings, AnotherScheduleIsNamedWithoutTheLength) {
  TrainingState before;
  before.settings = {{"optimizer.schedule", "\"cosine\""}, {"train.steps", "4"}, {"train.epochs", "null"}};
  RunOptions options;
  options.settings = {{"optimizer.schedule", "\"constant\""}};
  const std::string message =
      test::error_of<UsageError>([&] { detail::compare_settings(options, before, Observer()); });
  EXPECT_NE(message.find("here: optimizer.schedule was \"cosine\" and is \"constant\"; put"), std::string::npos)
      << message;
}

// Whose other keys follow from it.
TEST(ChangedSettings, AnotherObjectiveIsNamedAloneWithWhatToDo) {
  TrainingState before;
  before.settings = {{"objective.type", "\"dpo\""}, {"objective.beta", "0.1"}, {"adapter.r", "4"}};
  RunOptions options;
  options.dir = "out";
  options.settings = {{"objective.type", "\"grpo\""},
                      {"objective.epsilon", "0.2"},
                      {"rollout.top_k", "0"},
                      {"rewards", "[]"},
                      {"adapter.r", "8"}};
  EXPECT_EQ(test::error_of<UsageError>([&] { detail::compare_settings(options, before, Observer()); }),
            "out: differs from the run that began here: adapter.r was 4 and is 8, objective.type was \"dpo\" and is "
            "\"grpo\"; put them back, or choose another output.dir (adapter.path or model.path takes over what the run "
            "here trained); to continue with the new ones: output.force=true; to start afresh, which deletes the run "
            "here: output.resume=never output.force=true");
}

}  // namespace
}  // namespace nibble
