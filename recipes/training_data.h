#pragma once
// The data of a run: what the recipe's `data` section names, encoded and laid out in batches.

#include <optional>
#include <vector>

#include "nibble/core/data/batches.h"
#include "nibble/core/data/encoder.h"
#include "nibble/core/train/evaluate.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

struct DecoderConfig;

/// Training batches and, where the recipe asks for it, evaluation batches in file order.
class TrainingData {
 public:
  /// Reads and encodes everything; reports what was found to the observer, samples longer than `model` was made for
  /// among it. Throws as Dataset::load.
  TrainingData(const Recipe& recipe, const DecoderConfig& model, const Encoder& encoder, const Observer& observer);

  const Batches& train() const { return *train_; }
  const Batches& eval() const { return *eval_; }
  bool has_eval() const { return eval_.has_value(); }
  /// Steps of the whole run: train.steps, or train.epochs of the data.
  int64_t total_steps() const { return total_steps_; }
  /// The microbatches `which` of step `step`; one without tokens for kIdle.
  std::vector<Batch> microbatches(int64_t step, const std::vector<int64_t>& which, MemoryPool& pool) const;
  /// Loss on all evaluation batches. before: as nibble::evaluate's.
  std::optional<Evaluation> evaluate(StepExecutor& executor, const Objective& objective, DType compute_dtype,
                                     const BeforeBatch& before) const;
  /// Changes when a resumed run would see other batches.
  std::string fingerprint() const;

 private:
  std::optional<Batches> train_;
  std::optional<Batches> eval_;
  int64_t total_steps_ = 0;
};

}  // namespace nibble
