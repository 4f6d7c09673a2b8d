#pragma once
// Steps of a Decoder on the data and the tensor axis of a mesh.

#include <optional>
#include <vector>

#include "nibble/core/train/step_executor.h"
#include "nibble/parallel/parallel_model.h"

namespace nibble {

/// Copies, shards, tensor-parallel ranks, or one rank. decoder, parallel and rank must outlive this.
///
/// Sums: with GradientSum::tree the gradients have the same bits on 1, 2, 4 and 8 ranks.
class ShardedExecutor : public LocalExecutor {
 public:
  ShardedExecutor(Decoder& decoder, ParallelModel& parallel, RankContext& rank)
      : LocalExecutor(decoder, rank), parallel_(parallel) {}
  std::vector<int64_t> begin_step(int64_t count) override;
  void after_update() override { parallel_.share_values(); }
  Communicator& data_ranks() const override { return parallel_.mesh().data(); }

 protected:
  double sum(const StepWork& work) override;
  double microbatch(const StepWork& work, int64_t i) override;
  int64_t passes(const StepWork& work) const override;
  void forward_layers(const Batch* batch, const StepContext& step) override;
  void idle_forward(const Objective& objective, const StepContext& step, bool training) override;
  double squares(const std::vector<Parameter*>& parameters) const override;
  ParallelModel& parallel() const { return parallel_; }
  /// Whether passes are collective, so that a rank without a microbatch has to idle.
  bool collective() const;
  /// Whether it then computes for the others, with its experts: on idle_batch(), which changes nothing.
  bool serves() const { return decoder().experts() != nullptr; }
  const Batch& idle_batch();
  StepContext idle_context(const StepWork& work);
  /// The passes before the one with gradients that an idle rank of these makes too.
  void idle_reference(const Objective& objective, const StepContext& step);
  /// Microbatches that every rank of the data axes runs in the step begun, idle ones included.
  int64_t passes_in_step() const;

 private:
  /// Whether gradients are summed in rounds, in which every rank has one microbatch at most; by the hooks: block by
  /// block.
  bool has_rounds() const { return serves() || sums_by_block(); }
  bool sums_by_block() const { return parallel_.sharded() && parallel_.sharded()->has_rounds(); }
  /// Which ranks of the data axes have some of `count` microbatches.
  std::vector<bool> present(int64_t count) const;
  /// And which have gradients then: those with experts that the tokens of the others may choose too.
  std::vector<bool> contributing(std::vector<bool> present) const;
  double accumulate_then_reduce(const StepWork& work);
  double sum_rounds(const StepWork& work);

  ParallelModel& parallel_;
  int64_t step_count_ = 0;
  std::vector<int64_t> round_begins_;  // of the step
  std::optional<Batch> idle_batch_;
};

}  // namespace nibble
