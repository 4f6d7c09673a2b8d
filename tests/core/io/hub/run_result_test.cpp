#include "nibble/core/io/hub/run_result.h"

#include <gmock/gmock.h>

#include "nibble/core/base/error.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

class RunResult : public testing::Test {
 protected:
  std::string make(const std::string& name, const std::string& file) {
    create_directories((root_ / name / file).parent_path());
    test::write_bytes(root_ / name / "metrics.jsonl", "");
    test::write_bytes(root_ / name / file, "{}");
    return (root_ / name).string();
  }
  static std::string refusal(std::string (*find)(const std::string&), const std::string& named) {
    try {
      return "found " + find(named);
    } catch (const InputError& error) {
      return error.what();
    }
  }
  test::TemporaryDirectory root_;
};

TEST_F(RunResult, IsWhatTheRunLeft) {
  const std::string full = make("full", "model/config.json"), lora = make("lora", "adapter/adapter_config.json");
  EXPECT_EQ(find_model(full), full + "/model");
  EXPECT_EQ(find_model(full + "/model"), full + "/model");
  EXPECT_EQ(find_adapter(lora), lora + "/adapter");
  EXPECT_EQ(find_scorer(full), full + "/model");
  EXPECT_EQ(find_scorer(lora), lora + "/adapter");
  EXPECT_EQ(find_model("nowhere"), "nowhere");
  EXPECT_EQ(find_model(""), "");
}

TEST_F(RunResult, OfAnotherKindOrOfAnUnfinishedRunIsRefused) {
  EXPECT_THAT(
      refusal(find_adapter, make("full", "model/config.json")),
      HasSubstr("full: is the directory of a run that left no adapter; name its model with --model, or model.path"));
  EXPECT_THAT(
      refusal(find_model, make("lora", "adapter/adapter_config.json")),
      HasSubstr(
          "lora: is the directory of a run that left no model; name its adapter with --adapter, or adapter.path"));
  const std::string half = make("half", "checkpoints/step-1/state.json");
  EXPECT_THAT(refusal(find_adapter, half), HasSubstr("half: is the directory of a run that has not finished; give its "
                                                     "command again, which goes on and leaves its result in " +
                                                     half + "/adapter"));
  EXPECT_THAT(refusal(find_model, half), HasSubstr("has not finished"));
}

}  // namespace
}  // namespace nibble
