// A step put together from parts that were measured.

#include "nibble/parallel/plan/machine_time.h"

#include <gtest/gtest.h>

#include "nibble/recipes/plan/machine_speed.h"
#include "nibble/recipes/plan/plan_job.h"

namespace nibble {
namespace {

constexpr int64_t kLayers = 8, kMicrobatches = 4;
constexpr double kForward = 1, kBackward = 2;

class StepHere : public testing::Test {
 protected:
  StepHere() {
    const Recipe recipe = parse_recipe(R"({
      "model": {"path": "none", "compute_dtype": "bf16"}, "data": {"train": "none.jsonl", "max_length": 64},
      "train": {"steps": 1, "accumulate": 4}, "adapter": {"r": 4}, "output": {"dir": "none"}})",
                                       "test");
    job_ = plan_job(recipe, parse_decoder_config(R"({
      "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
      "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512,
      "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
      "tie_word_embeddings": false})",
                                                 "test"));
    PartSeconds& parts = speed_.parts[1];
    parts.forward.assign(kLayers, kForward);
    parts.backward.assign(kLayers, kBackward);
    parts.forward_recompute.assign(kLayers, kForward);
    parts.backward_recompute.assign(kLayers, kBackward + kForward);
    speed_.cores = 4;
  }

  StepTime step(const PlanLayout& layout, const std::vector<int64_t>& stages) const {
    return step_time_here(job_, layout, plan_memory(job_, layout, stages, 1), speed_);
  }

  PlanJob job_;
  MachineSpeed speed_;
};

TEST_F(StepHere, IsTheSumOfItsPassesOnOneRank) {
  speed_.parts[1].head = 5;
  speed_.parts[1].embed = 0.5;
  const double values = static_cast<double>(job_.model.trained_values());
  speed_.parts[1].update = 3 / values;
  speed_.parts[1].zero_grad = 1 / values;
  speed_.parts[1].accumulate = 2 / values;
  // Below the head a gradient of the stream, 64 x 64 values, starts as zeros.
  const double passes = kLayers * (kForward + kBackward) + 5 + 0.5 + 64 * 64 / values;
  EXPECT_NEAR(step({}, {0, kLayers}).seconds, kMicrobatches * (passes + 1) + (kMicrobatches - 1) * 2 + 3, 1e-6);
  PlanLayout again;
  again.recompute = Recompute::block;
  EXPECT_NEAR(step(again, {0, kLayers}).seconds - step({}, {0, kLayers}).seconds, kMicrobatches * kLayers * kForward,
              1e-6);
}

TEST_F(StepHere, IsLongerWhereRanksShareCores) {
  PlanLayout copies;
  copies.mesh.replicate = 4;
  const double alone = step(copies, {0, kLayers}).seconds;
  EXPECT_NEAR(alone, kLayers * (kForward + kBackward), 1e-6);  // a microbatch each
  speed_.cores = 2;
  EXPECT_NEAR(step(copies, {0, kLayers}).seconds, 2 * alone, 1e-6);
}

TEST_F(StepHere, OfEqualStagesWaitsAsPredicted) {
  const double stage = kLayers / 4 * (kForward + kBackward);
  for (const PipelineSchedule schedule :
       {PipelineSchedule::naive, PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
    PlanLayout layout;
    layout.mesh.pipeline = 4;
    layout.schedule = schedule;
    const double bubble = predicted_bubble(schedule, 4, kMicrobatches, kMicrobatches);
    EXPECT_NEAR(step(layout, {0, 2, 4, 6, 8}).seconds, kMicrobatches * stage / (1 - bubble), 1e-6)
        << testing::PrintToString(schedule);
  }
}

TEST_F(StepHere, OfANaivePipelineTakesNoLongerOnOneCore) {
  PlanLayout layout;
  layout.mesh.pipeline = 4;
  layout.schedule = PipelineSchedule::naive;
  const double apart = step(layout, {0, 2, 4, 6, 8}).seconds;
  speed_.cores = 1;
  EXPECT_NEAR(step(layout, {0, 2, 4, 6, 8}).seconds, apart, 1e-6);  // one stage works at a time
  layout.schedule = PipelineSchedule::gpipe;
  EXPECT_NEAR(step(layout, {0, 2, 4, 6, 8}).seconds, apart, 1e-6);  // the work of all, one after the other
}

TEST_F(StepHere, CountsWhatAFileOfActivationsWasMeasuredToAdd) {
  PlanLayout offloaded;
  offloaded.offload = true;
  EXPECT_NEAR(step(offloaded, {0, kLayers}).seconds, step({}, {0, kLayers}).seconds, 1e-6);  // it was not measured
  PartSeconds& parts = speed_.offloaded[1] = speed_.parts[1];
  parts.forward.assign(kLayers, kForward + 0.5);
  parts.backward.assign(kLayers, kBackward + 0.25);
  parts.forward_recompute.assign(kLayers, kForward + 0.125);
  const double kept = kMicrobatches * kLayers * 0.75, inputs = kMicrobatches * kLayers * 0.125;
  const StepTime time = step(offloaded, {0, kLayers});
  EXPECT_NEAR(time.seconds - step({}, {0, kLayers}).seconds, kept, 1e-6);
  EXPECT_NEAR(time.spilling, kept, 1e-6);
  EXPECT_NEAR(time.computing + time.communicating + time.waiting + time.spilling, time.seconds, 1e-6);
  PlanLayout again;
  again.recompute = offloaded.recompute = Recompute::block;
  EXPECT_NEAR(step(offloaded, {0, kLayers}).seconds - step(again, {0, kLayers}).seconds, inputs, 1e-6);
}

TEST_F(StepHere, CountsTheSumOfGradientsOverRanks) {
  PlanLayout copies;
  copies.mesh.replicate = 2;
  const double before = step(copies, {0, kLayers}).seconds;
  const double bytes = 4 * static_cast<double>(job_.model.trained_values());
  speed_.exchange[2].sum = ByteCost({{1, 0}, {bytes, 7}});
  EXPECT_NEAR(step(copies, {0, kLayers}).seconds, before + 7, 1e-6);
}

TEST_F(StepHere, GathersATiedEmbeddingForTheHeadToo) {
  PlanLayout sharded;
  sharded.mesh.shard = 2;
  const auto gathering = [&] {
    speed_.exchange[2].gather = {};
    const double before = step(sharded, {0, kLayers}).seconds;
    speed_.exchange[2].gather = ByteCost({{1, 1e-9}, {1e9, 1}});  // as many seconds as gigabytes
    return step(sharded, {0, kLayers}).seconds - before;
  };
  const double apart = gathering();
  job_.model.config.tied_head = true;
  job_.runs = {};
  const double embedding = static_cast<double>(job_.model.group(-1).frozen_bytes);
  ASSERT_GT(embedding, 0);
  // The head's weights are as large as the embedding's.
  EXPECT_NEAR(gathering(), apart, 1e-3 * apart);
  EXPECT_GT(apart, kMicrobatches / 2 * 2 * embedding * 1e-9);
}

TEST(ByteCost, LiesBetweenWhatWasMeasured) {
  const ByteCost cost({{100, 1}, {1100, 2}});
  EXPECT_DOUBLE_EQ(cost.seconds(10), 1);
  EXPECT_DOUBLE_EQ(cost.seconds(600), 1.5);
  EXPECT_DOUBLE_EQ(cost.seconds(11000), 20);
  EXPECT_DOUBLE_EQ(cost.seconds(2200, 2), 4);
  EXPECT_DOUBLE_EQ(cost.seconds(0), 0);
}

TEST(MachineSpeed, GoesThroughJson) {
  MachineSpeed speed;
  speed.cores = 3.5;
  speed.threads = 2;
  speed.parts[2] = {
      .forward = {1, 2}, .backward = {3, 4}, .backward_recompute = {5, 6}, .embed = 7, .head = 8, .accumulate = 1e-9};
  speed.offloaded[2].forward_recompute = {9};
  speed.exchange[4].sum = ByteCost({{1, 2}, {3, 4}});
  const MachineSpeed back = machine_speed_from_json(to_json(speed));
  EXPECT_EQ(to_json(back), to_json(speed));
  EXPECT_EQ(back.parts.at(2).backward_recompute, (std::vector<double>{5, 6}));
  EXPECT_EQ(back.offloaded.at(2).forward_recompute, (std::vector<double>{9}));
  EXPECT_DOUBLE_EQ(back.among(4).sum.seconds(2), 3);
}

}  // namespace
}  // namespace nibble
