// A schedule played through with stages that are equal, and that are not.

#include "nibble/parallel/pipeline/schedule_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/core/models/load.h"
#include "nibble/core/nn/hooks.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/pipeline/pipelined_executor.h"

namespace nibble {
namespace {

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::naive, PipelineSchedule::gpipe,
                                           PipelineSchedule::one_f_one_b};

TEST(ScheduleTime, OfEqualStagesIsThatOfTheFormula) {
  const std::vector<StagePasses> stages(4, {1, 2});
  for (const PipelineSchedule schedule : kSchedules) {
    for (const int64_t in_flight : {3, 8}) {
      const double bubble = predicted_bubble(schedule, 4, 8, in_flight);
      const ScheduleTime time = schedule_time(schedule, stages, 8, in_flight, 0);
      EXPECT_NEAR(time.seconds, 8 * 3 / (1 - bubble), 1e-6) << testing::PrintToString(schedule) << " " << in_flight;
      EXPECT_NEAR(time.waiting.front(), bubble, 1e-6) << testing::PrintToString(schedule) << " " << in_flight;
    }
  }
}

// By hand. GPipe: the second stage has four forward passes done at 13 and gives the first a gradient at 19, 25, 31 and
// 37. 1F1B: at 10, 19, 28 and 37. Naive: nobody works beside another.
TEST(ScheduleTime, OfASlowLastStageIsMostlyWaitingForIt) {
  const std::vector<StagePasses> stages = {{1, 2}, {3, 6}};
  for (const PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
    const ScheduleTime time = schedule_time(schedule, stages, 4, 4, 0);
    EXPECT_NEAR(time.seconds, 39, 1e-6) << testing::PrintToString(schedule);
    EXPECT_NEAR(time.waiting[0], 1 - 12.0 / 39, 1e-6) << testing::PrintToString(schedule);
    EXPECT_NEAR(time.waiting[1], 1 - 36.0 / 37, 1e-6) << testing::PrintToString(schedule);
  }
  const ScheduleTime naive = schedule_time(PipelineSchedule::naive, stages, 4, 4, 0);
  EXPECT_NEAR(naive.seconds, 48, 1e-6);
  EXPECT_NEAR(naive.waiting[0], 0.75, 1e-6);
}

TEST(ScheduleTime, CountsTheWayBetweenStages) {
  const std::vector<StagePasses> stages = {{1, 2}, {1, 2}};
  EXPECT_NEAR(schedule_time(PipelineSchedule::naive, stages, 1, 1, 0.5).seconds, 7, 1e-6);
}

TEST(ScheduleTime, OfStagesThatShareOneCoreIsAllTheirWork) {
  const std::vector<StagePasses> stages = {{1, 2}, {3, 6}};
  const auto one_core = [](int64_t at_work) { return static_cast<double>(at_work); };
  EXPECT_NEAR(schedule_time(PipelineSchedule::gpipe, stages, 4, 4, 0, one_core).seconds, 48, 1e-6);
}

/// Passes of a stage take what the test says, on a clock of the rank that only they move.
class SlowStage final : public BlockHooks {
 public:
  SlowStage(StagePasses seconds, double& clock) : seconds_(seconds), clock_(clock) {}
  void before_forward(int64_t layer) override { wait(layer, seconds_.forward); }
  void before_backward(int64_t layer) override { wait(layer, seconds_.backward); }

 private:
  void wait(int64_t layer, double seconds) {
    if (layer == 0 || layer == 1) clock_ += seconds;
  }
  StagePasses seconds_;
  double& clock_;
};

/// A message carries its sender's time: the receiver's clock is not before that.
class TimedComm final : public Communicator {
 public:
  TimedComm(Communicator& comm, double& clock) : comm_(&comm), clock_(clock) {}
  TimedComm(std::unique_ptr<Communicator> comm, double& clock)
      : comm_(comm.get()), clock_(clock), own_(std::move(comm)) {}
  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  [[noreturn]] void abort(int exit_code, std::string_view reason) override {
    comm_->abort(exit_code, reason);
    std::abort();
  }

 private:
  std::unique_ptr<CommRequest> do_start_all_gather(const std::string& operation, const Tensor& part, Tensor& out,
                                                   std::span<const size_t> bounds) override {
    return comm_->start_all_gather(operation, part, out, bounds);
  }
  void do_all_to_all(const std::string& operation, const Tensor& send, std::span<const size_t> send_bounds,
                     Tensor& receive, std::span<const size_t> receive_bounds) override {
    comm_->all_to_all(operation, send, send_bounds, receive, receive_bounds);
  }
  void do_broadcast(const std::string& operation, Tensor& value, int root) override {
    comm_->broadcast(operation, value, root);
  }
  void do_send(const std::string& operation, const Tensor& value, int to) override {
    times_.push_back(Tensor::from<double>(pool_, {1}, {&clock_, 1}));  // stays until the receiver has it
    comm_->send("time", times_.back(), to);
    comm_->send(operation, value, to);
  }
  void do_receive(const std::string& operation, Tensor& value, int from) override {
    Tensor time = Tensor::empty(pool_, {1}, DType::f64, "time");
    comm_->receive("time", time, from);
    comm_->receive(operation, value, from);
    clock_ = std::max(clock_, *time.data<const double>());
  }
  std::unique_ptr<Communicator> do_split(int color, int key) override {
    return std::make_unique<TimedComm>(comm_->split(color, key), clock_);
  }

  Communicator* comm_;
  double& clock_;
  std::unique_ptr<Communicator> own_;
  MemoryPool pool_;
  std::vector<Tensor> times_;
};

// One layer and the embedding, one layer and the head; the second stage takes ten times as long. Both schedules end
// at 492, of which the first stage works 48.
TEST(PipelineBubble, IsPredictedFromHowFastTheStagesWere) {
  const DecoderConfig config = parse_decoder_config(R"({
      "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32,
      "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
      "tie_word_embeddings": false})",
                                                    "test");
  for (const PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b}) {
    run_on_threads(2, [&](Communicator& threads) {
      set_threads(1);
      double clock = 0;
      TimedComm comm(threads, clock);
      MemoryPool pool;
      RankContext rank{comm, pool, 1, 0};
      const Mesh mesh({.pipeline = 2}, comm);
      const ParameterMaker parameter = [&](const std::string& name, const Shape& shape) {
        return std::make_shared<Parameter>(
            Parameter{.name = name, .value = Tensor::zeros(pool, shape, DType::f32, name), .gradient = {}});
      };
      const LinearWeightMaker linear = [&](const std::string& module, const Shape& shape) {
        return std::make_unique<DenseWeight>(parameter(module + ".weight", shape));
      };
      Decoder stage(config, linear, parameter, rank, {mesh.stage(), mesh.stage() + 1});
      ParallelModel parallel = parallelize(stage, true, {}, mesh, rank);
      SlowStage hooks(mesh.stage() == 0 ? StagePasses{4, 8} : StagePasses{40, 80}, clock);
      stage.set_hooks(&hooks);
      PipelinedExecutor pipeline(stage, parallel, {schedule, 0, [&] { return clock; }}, rank);
      const Sample sample{.ids = {1, 2, 3}, .labels = {1, 2, 3}};
      std::vector<Batch> batches;
      for (int m = 0; m < 4; ++m) batches.push_back(make_batch({&sample, 1}, pool));
      pipeline.begin_step(4);
      pipeline.gradients(batches, NextToken(), parallel.parameters(), {.gradient_sum = GradientSum::running});
      const PipelinedExecutor::Bubble bubble = pipeline.bubble();
      EXPECT_NEAR(bubble.predicted, 444.0 / 492, 1e-9) << "the formula for equal stages says 0.2";
      EXPECT_NEAR(bubble.measured, bubble.predicted, 1e-9);
    });
  }
}

}  // namespace
}  // namespace nibble
