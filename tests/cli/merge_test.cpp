// nibble merge, seen from outside.

#include "nibble/tests/cli/trained_model.h"

namespace nibble {
namespace {

class Merge : public test::TrainedModel {};

TEST_F(Merge, MergedIn4BitsAgainItSaysWhatThatCosts) {
  ASSERT_EQ(run("quantize --model wide --out wide-nf4").code, 0);
  ASSERT_EQ(run("train r.json model.path=wide-nf4 output.dir=run-nf4 optimizer.lr=1e-6").code, 0);
  const std::string merge = "merge --adapter run-nf4 --model wide-nf4 --out merged --force ";
  const CommandOutput rounded = run(merge + "--dtype nf4");
  EXPECT_EQ(rounded.code, 0) << rounded.text;
  EXPECT_NE(
      rounded.text.find("warning: rounding to 4 bits again moves weights at least half as far as the adapter does"),
      std::string::npos)
      << rounded.text;
  EXPECT_NE(rounded.text.find(" on average by rounding to 4 bits again\n"), std::string::npos) << rounded.text;
  EXPECT_EQ(run(merge + "--dtype bf16").text.find("4 bits again"), std::string::npos);
}

}  // namespace
}  // namespace nibble
