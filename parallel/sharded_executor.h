#pragma once
// Steps of a Decoder that ParallelModel spreads over the data and the tensor axis of a mesh.

#include "nibble/core/train/step_executor.h"
#include "nibble/parallel/parallel_model.h"

namespace nibble {

/// Copies, shards, tensor-parallel ranks, or one rank. decoder, parallel and rank must outlive this.
class ShardedExecutor : public LocalExecutor {
 public:
  ShardedExecutor(Decoder& decoder, ParallelModel& parallel, RankContext& rank)
      : LocalExecutor(decoder, rank), parallel_(parallel) {}
  std::vector<int64_t> begin_step(int64_t count) override { return parallel_.begin_step(count); }
  void after_update() override { parallel_.share_values(); }
  Communicator& data_ranks() const override { return parallel_.mesh().data(); }

 protected:
  double sum(const StepWork& work) override;
  double microbatch(const StepWork& work, int64_t i) override;
  void idle_forward(const Objective& objective, bool training) override;
  double squares(const std::vector<Parameter*>& parameters) const override { return parallel_.squares(parameters); }
  ParallelModel& parallel() const { return parallel_; }

 private:
  ParallelModel& parallel_;
};

}  // namespace nibble
