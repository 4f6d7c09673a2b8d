// What `nibble completion bash` makes of what somebody has typed.

#include <gmock/gmock.h>

#include <string>

#include "nibble/tests/assets.h"
#include "nibble/tests/command_output.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The answers, a blank around each; `words` as bash parts them, the last one under the cursor.
std::string completed(const std::string& words, int cursor) {
  const std::string script = "source <(" + std::string(kProgram) + " completion bash); COMP_WORDS=(" + words +
                             "); COMP_CWORD=" + std::to_string(cursor) +
                             "; _nibble; printf \" %s\" \"${COMPREPLY[@]}\"; printf \" \"";
  const test::CommandOutput output = test::output_of("cd / && bash -c '" + script + "'");
  EXPECT_EQ(output.code, 0) << output.text;
  return output.text;
}

TEST(Completion, CommandsAndFlags) {
  EXPECT_THAT(completed("nibble tra", 1), HasSubstr(" train "));
  EXPECT_THAT(completed("nibble recipes l", 2), HasSubstr(" ls "));
  EXPECT_EQ(completed("nibble train --pro", 2), " --profile ");
}

TEST(Completion, NamesOfRecipes) {
  EXPECT_EQ(completed("nibble recipes cp ql", 3), " qlora ");
  EXPECT_THAT(completed("nibble recipes cat llama-3.2-1b-q", 3), HasSubstr(" llama-3.2-1b-qlora "));
  EXPECT_EQ(completed("nibble recipes cp qlora /et", 4), " /etc ") << "the file to write";
}

TEST(Completion, KeysOfRecipes) {
  EXPECT_EQ(completed("nibble train r.json train.gradi", 3), " train.gradient_sum= train.gradient_checkpointing= ");
  EXPECT_THAT(completed("nibble plan r.json optim", 3), HasSubstr(" optimizer.lr= "));
  EXPECT_THAT(completed("nibble merge optim", 2), Not(HasSubstr("optimizer")));
}

TEST(Completion, ValuesOfKeysThatListThem) {
  EXPECT_EQ(completed("nibble train r.json model.quantize \"=\"", 4), " none nf4 fp4 ");
  EXPECT_EQ(completed("nibble train r.json model.quantize \"=\" n", 5), " none nf4 ");
  EXPECT_EQ(completed("nibble train r.json model.quantize=f", 3), " model.quantize=fp4 ") << "without = in word breaks";
  EXPECT_THAT(completed("nibble train r.json data.train \"=\" /et", 5), HasSubstr(" /etc ")) << "else files";
}

TEST(Completion, ValuesOfFlagsThatListThem) {
  EXPECT_EQ(completed("nibble export --type q", 3), " q8_0 q4_0 q6_k q5_k_m q4_k_m ");
  EXPECT_EQ(completed("nibble export --type \"=\" q4", 4), " q4_0 q4_k_m ");
  EXPECT_EQ(completed("nibble quantize --type n", 3), " nf4 ") << "another command's";
}

TEST(Completion, KeysOfASweepWithoutTheirSection) {
  EXPECT_EQ(completed("nibble sweep r.json lr", 3), " lr= ");
  EXPECT_EQ(completed("nibble sweep r.json optimizer.lr", 3), " optimizer.lr= ");
  EXPECT_EQ(completed("nibble sweep r.json quantize \"=\" f", 5), " fp4 ");
  EXPECT_THAT(completed("nibble train r.json lr", 3), Not(HasSubstr("lr=")));
}

}  // namespace
}  // namespace nibble
