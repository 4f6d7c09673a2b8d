// Steps whose microbatches are no power of two: the same bits on 1, 2, 4 and 8 ranks, whatever is sharded.

#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;

const std::vector<NamedLayout>& uneven_layouts() {
  static const std::vector<NamedLayout> all = {
      {"Copies2", 2, {{"replicate", 2}}},
      {"Copies4", 4, {{"replicate", 4}}},
      {"Zero1Over2", 2, {{"shard", 2}, {"zero", 1}}},
      {"Zero1Over4", 4, {{"shard", 4}, {"zero", 1}}},
      {"Zero2Over2", 2, {{"shard", 2}, {"zero", 2}}},
      {"Zero2Over4", 4, {{"shard", 4}, {"zero", 2}}},
      {"Zero3Over2", 2, {{"shard", 2}}},
      {"Zero3Over4", 4, {{"shard", 4}}},
      {"Zero2Hybrid", 4, {{"shard", 2}, {"replicate", 2}, {"zero", 2}}},
      {"Zero3Hybrid", 4, {{"shard", 2}, {"replicate", 2}}},
      {"Zero2Over8", 8, {{"shard", 8}, {"zero", 2}}},
  };
  return all;
}

class UnevenSteps : public OwnModel, public testing::WithParamInterface<std::tuple<const char*, size_t>> {};

TEST_P(UnevenSteps, HaveTheBitsOfOneRank) {
  const auto& [mode, which] = GetParam();
  const NamedLayout& layout = uneven_layouts()[which];
  for (const int accumulate : {3, 4, 5, 6}) {
    json wanted = own_recipe(base_, 2 * accumulate + 1);  // the last step of each epoch has one microbatch
    if (accumulate == 4) wanted["data"]["train"] = make_texts(11).string();  // or three
    wanted["train"]["accumulate"] = accumulate;
    wanted["train"]["steps"] = 4;  // into the second epoch
    if (mode != std::string("full")) wanted["adapter"] = {{"r", 4}, {"lora_alpha", 8}, {"lora_dropout", 0.1}};
    const Outcome one = run(wanted, 1, "one" + std::to_string(accumulate));
    wanted["parallel"] = layout.parallel;
    if (mode == std::string("sharded")) wanted["parallel"]["shard_adapters"] = true;
    const Outcome several = run(wanted, layout.ranks, "several" + std::to_string(accumulate));
    ASSERT_EQ(one.losses.size(), 4u);
    EXPECT_EQ(several.losses, one.losses) << "accumulate " << accumulate;
    EXPECT_EQ(several.norms, one.norms) << "accumulate " << accumulate;
    EXPECT_TRUE(several.weights == one.weights) << "the trained weights differ, accumulate " << accumulate;
  }
}

INSTANTIATE_TEST_SUITE_P(All, UnevenSteps,
                         testing::Combine(testing::Values("full", "lora", "sharded"), testing::Range<size_t>(0, 11)),
                         [](const auto& which) {
                           return std::string(std::get<0>(which.param)) +
                                  uneven_layouts()[std::get<1>(which.param)].name;
                         });

/// Columns of stages give what one column of the same stages gives; stages alone only differ from one rank in the order
/// in which the squares of the gradient norm are added.
class UnevenStepsOfStages : public OwnModel, public testing::WithParamInterface<std::string> {};

TEST_P(UnevenStepsOfStages, HaveTheBitsOfOneColumn) {
  const std::vector<json> columns = {{{"replicate", 2}},
                                     {{"shard", 2}, {"zero", 1}},
                                     {{"shard", 2}, {"zero", 2}},
                                     {{"shard", 2}, {"shard_adapters", true}}};
  for (const int accumulate : {3, 5, 6}) {
    json wanted = own_recipe(base_, 2 * accumulate + 1);
    wanted["train"]["accumulate"] = accumulate;
    if (GetParam() == "lora") wanted["adapter"] = {{"r", 4}, {"lora_alpha", 8}, {"lora_dropout", 0.1}};
    const std::string name = std::to_string(accumulate);
    const Outcome rank = run(wanted, 1, "rank" + name);
    wanted["parallel"] = {{"pipeline", 2}};
    const Outcome one = run(wanted, 2, "one" + name);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(one.losses[i], rank.losses[i], 1e-9 * rank.losses[i]) << "accumulate " << accumulate;
      EXPECT_NEAR(one.norms[i], rank.norms[i], 1e-9 * rank.norms[i]) << "accumulate " << accumulate;
    }
    for (const json& column : columns) {
      SCOPED_TRACE(name + column.dump());
      wanted["parallel"] = {{"pipeline", 2}};
      wanted["parallel"].merge_patch(column);
      const Outcome two = run(wanted, 4, "two" + name + column.dump());
      EXPECT_EQ(two.losses, one.losses);
      EXPECT_EQ(two.norms, one.norms);
      EXPECT_TRUE(two.weights == one.weights) << "the trained weights differ";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, UnevenStepsOfStages, testing::Values("full", "lora"),
                         [](const auto& which) { return which.param; });

}  // namespace
}  // namespace nibble
