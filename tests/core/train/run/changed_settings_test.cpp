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
  options.recipe = R"({"data": {"train": "d.jsonl"}, "rollout": {"file": "r.jsonl"}})";
  EXPECT_EQ(refusal("\"2-2\"", "\"1\""), begin + "rollout.file \"r.jsonl\" has other content");
}

}  // namespace
}  // namespace nibble
