#pragma once
// Two models that learn from the same microbatches, each by an objective of its own: a policy and its value model.

#include <memory>
#include <vector>

#include "nibble/core/train/step_executor.h"

namespace nibble {

/// One loss, the sum of both; one gradient norm, over the parameters of both. The first model is the one that answers
/// and is evaluated. Both lie on the ranks in the same way.
class PairedExecutor final : public StepExecutor {
 public:
  struct Model {
    std::unique_ptr<StepExecutor> executor;
    std::vector<Parameter*> parameters;  ///< that this rank optimizes
  };
  /// objective: the second one's; must outlive this.
  PairedExecutor(Model first, Model second, const Objective& objective);

  std::vector<int64_t> begin_step(int64_t count) override;
  /// objective: the first one's; parameters: those of both, which are known.
  StepSums gradients(std::span<const Batch> microbatches, const Objective& objective,
                     const std::vector<Parameter*>& parameters, const StepOptions& options) override;
  void after_update() override;
  double loss_sum(const Batch* batch, const Objective& objective, const LossCounts& counts,
                  const StepContext& step) override;
  Tensor next_logits(const Batch& batch, const StepContext& step, KvCache& cache) override;
  Metrics take_metrics(const Objective& objective, const LossCounts& counts) override;
  void share_from_head(Tensor& values) override { first_.executor->share_from_head(values); }
  StepExecutor* companion() override { return second_.executor.get(); }
  std::string summary() const override { return first_.executor->summary(); }
  Communicator& data_ranks() const override { return first_.executor->data_ranks(); }

 private:
  double microbatch(const StepWork& work, int64_t i) override;

  Model first_, second_;
  const Objective& objective_;
};

}  // namespace nibble
