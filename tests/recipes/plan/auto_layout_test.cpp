#include "nibble/recipes/plan/auto_layout.h"

#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;

using NoDegrees = OwnModel;

TEST_F(NoDegrees, AreReplicasWithTheBitsOfOneRank) {
  json wanted = own_recipe(base_, 9);
  wanted["adapter"] = {{"r", 4}, {"lora_alpha", 8}};
  const Outcome one = run(wanted, 1, "one");
  const Outcome several = run(wanted, 2, "several");
  EXPECT_EQ(several.losses, one.losses);
  EXPECT_TRUE(several.weights == one.weights);
  wanted["parallel"] = {{"shard", 4}};
  EXPECT_NE(error_of<UsageError>([&] { run(wanted, 2, "refused"); }).find("= 4, the job has 2 ranks"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble
