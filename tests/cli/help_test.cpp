// What the program says of its commands: --help, nibble man, nibble completion.

#include <gtest/gtest.h>

#include "nibble/tests/assets.h"
#include "nibble/tests/cli/small_recipe.h"

namespace nibble {
namespace {

using test::CommandOutput;
using test::output_of_nibble;

TEST(Help, ToolsForCheckingStandUnderAHeadingOfTheirOwn) {
  const std::string help = output_of_nibble("--help 2>&1").text;
  const size_t heading = help.find("Tools for checking");
  ASSERT_NE(heading, std::string::npos) << help;
  for (const char* tool : {"logits", "gradients", "tokenize ", "template"}) {
    EXPECT_GT(help.find("\n  " + std::string(tool)), heading) << tool;
  }
  EXPECT_LT(help.find("\n  train"), heading);
}

TEST(Help, ManualPagesAndCompletionsComeFromTheCommands) {
  const test::TemporaryDirectory directory;
  ASSERT_EQ(output_of_nibble("man --out " + directory.path().string()).code, 0);
  const std::string page = test::read_bytes(directory / "nibble-train.1");
  EXPECT_TRUE(page.starts_with(".TH nibble-train 1"));
  EXPECT_NE(page.find("\\-\\-profile"), std::string::npos);
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const CommandOutput output = output_of_nibble(std::string("completion ") + shell);
    EXPECT_EQ(output.code, 0);
    EXPECT_NE(output.text.find("sagemaker-train"), std::string::npos) << shell;
  }
  EXPECT_EQ(output_of_nibble("completion tcsh 2>/dev/null").code, 2);
}

}  // namespace
}  // namespace nibble
