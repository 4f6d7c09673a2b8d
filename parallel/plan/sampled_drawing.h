#pragma once
// Drawing answers without bytes, of which a plan runs some passes.

#include <functional>
#include <utility>
#include <vector>

#include "nibble/core/train/step_executor.h"
#include "nibble/parallel/plan/step_cost.h"

namespace nibble::detail {

/// Passes that give every text one more token are alike but for what attention sees. The first 64 tokens of a text are
/// run, then two of every 64, and the last; the costs of the others lie on a straight line between them. Windows that
/// are multiples of 64 begin to cut where a pass is run. Caches have grown after each 64 as if all had been run.
class SampledDrawing final : public StepExecutor {
 public:
  /// longest: tokens of a prompt and its answer. take: what was counted since it was called last. look_up: what a pass
  /// that is not run would look up in the embedding.
  SampledDrawing(StepExecutor& executor, int64_t longest, std::function<StepCost()> take,
                 std::function<void(const Batch&)> look_up)
      : StepExecutor(executor.rank()),
        executor_(executor),
        longest_(longest),
        take_(std::move(take)),
        look_up_(std::move(look_up)) {}

  Tensor next_logits(const Batch& batch, const StepContext& step, KvCache& cache) override;
  double loss_sum(const Batch* batch, const Objective& objective, const LossCounts& counts,
                  const StepContext& step) override {
    return executor_.loss_sum(batch, objective, counts, step);
  }
  Communicator& data_ranks() const override { return executor_.data_ranks(); }
  /// Of all passes, with what was counted between them.
  StepCost cost();

 private:
  double microbatch(const StepWork&, int64_t) override { NIBBLE_CHECK(false, "only draws"); }
  bool is_alike(const Batch& batch, const KvCache& cache) const;

  StepExecutor& executor_;
  int64_t longest_;
  std::function<StepCost()> take_;
  std::function<void(const Batch&)> look_up_;
  StepCost cost_, last_;                      // of all, of the last pass that was run
  int64_t skipped_ = 0;                       // since then
  std::vector<int64_t> sequences_, lengths_;  // of the last pass, and with its tokens
  int64_t columns_ = 0;                       // of logits
};

}  // namespace nibble::detail
