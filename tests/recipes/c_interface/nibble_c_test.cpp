// What the C interface refuses, and with which code.

#include "nibble/nibble_c.h"

#include <gmock/gmock.h>

#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(CInterface, AnOverrideThatIsNullIsAWrongArgument) {
  const char* const overrides[] = {"train.steps=1", nullptr};
  nibble_error error;
  EXPECT_EQ(nibble_train("{}", overrides, 2, nullptr, &error), NIBBLE_USAGE);
  EXPECT_STREQ(error.message, "overrides[1] is NULL");
}

TEST(CInterface, NegativeNumbersAreWrongArguments) {
  const std::string path = test::data_path("stories-llama").string();
  nibble_error error;
  EXPECT_EQ(nibble_model_open(path.c_str(), nullptr, nullptr, -1, &error), nullptr);
  EXPECT_EQ(error.code, NIBBLE_USAGE);
  EXPECT_THAT(error.message, HasSubstr("threads must be 0 (all cores) or positive"));
  nibble_model* const model = nibble_model_open(path.c_str(), nullptr, nullptr, 1, &error);
  ASSERT_NE(model, nullptr) << error.message;
  const int32_t prompt[] = {1, 2};
  size_t count = 7;
  nibble_generate_options options = {-1, 0, 0, 1, 0};
  EXPECT_EQ(nibble_generate(model, prompt, 2, &options, nullptr, nullptr, nullptr, 0, &count, &error), NIBBLE_USAGE);
  EXPECT_THAT(error.message, HasSubstr("max_new_tokens must be 0 or positive"));
  options.max_new_tokens = 0;
  EXPECT_EQ(nibble_generate(model, prompt, 2, &options, nullptr, nullptr, nullptr, 0, &count, &error), NIBBLE_OK);
  EXPECT_EQ(count, 0u);
  nibble_model_close(model);
}

TEST(CInterface, MergeOverADirectorySaysWhatACallerCanDo) {
  const test::TemporaryDirectory directory;
  test::write_bytes(directory / "mine", "x");
  nibble_error error;
  const std::string model = test::data_path("stories-llama").string(),
                    adapter = (test::data_path("lora-golden") / "lora_fp32.adapter-after20").string();
  EXPECT_EQ(nibble_merge(adapter.c_str(), model.c_str(), directory.path().c_str(), &error), NIBBLE_USAGE);
  EXPECT_THAT(error.message,
              EndsWith(": exists already; choose another name, or remove it (--force replaces what nibble wrote)"));
}

}  // namespace
}  // namespace nibble
