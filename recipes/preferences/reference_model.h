#pragma once
// A reference that is a model of its own beside the policy: a directory's, or what the policy began as.

#include <memory>
#include <optional>

#include "nibble/core/models/decoder.h"
#include "nibble/core/train/step_executor.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/parallel/experts/expert_parallel.h"
#include "nibble/parallel/parallel_model.h"
#include "nibble/parallel/tensor/tensor_parallel.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// Whether it has to stay beside the policy: answers that are drawn while training are compared with it.
bool keeps_reference(const Recipe& recipe);

/// The sections `model` and `adapter` as they are for the reference; no adapter where that is a directory.
ModelRecipe reference_base(const Recipe& recipe);
std::optional<AdapterRecipe> reference_adapter(const Recipe& recipe);

class ReferenceModel {
 public:
  /// Opens it on the layout of the policy, whose tokenizer has `rows` tokens. What is given must outlive this. Throws
  /// as open_base and open_adapter, and InputError for a directory's vocabulary that is smaller.
  ReferenceModel(const Recipe& recipe, int64_t rows, const Mesh& mesh, RankContext& rank, const Observer& observer);
  ~ReferenceModel();
  ReferenceModel(const ReferenceModel&) = delete;
  ReferenceModel& operator=(const ReferenceModel&) = delete;

  StepExecutor& executor() { return *executor_; }

 private:
  std::unique_ptr<LayerSharding> tensor_;
  std::unique_ptr<ExpertExchange> experts_;
  std::optional<Decoder> model_;
  std::optional<ParallelModel> parallel_;
  std::unique_ptr<StepExecutor> executor_;
};

}  // namespace nibble
