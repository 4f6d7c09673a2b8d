#pragma once
// The batches of a run as a pure function of (seed, step): nothing to save, resuming is O(1).

#include <memory>

#include "nibble/core/data/dataset.h"
#include "nibble/core/data/packing.h"
#include "nibble/core/models/batch.h"

namespace nibble {

struct BatchOptions {
  EpochOptions order;
  int64_t microbatch_size = 1;  ///< sequences in a microbatch
  int64_t accumulate = 1;       ///< microbatches in a step, over all data-parallel ranks together
};

/// What a step consists of, known before its forward pass.
struct StepInfo {
  int64_t epoch = 0;          ///< from 0
  int64_t step_in_epoch = 0;  ///< from 0
  int64_t microbatches = 0;   ///< accumulate, fewer in an epoch's last step
  int64_t sequences = 0;
  int64_t samples = 0;  ///< documents
  int64_t tokens = 0;
  int64_t label_tokens = 0;  ///< what the loss and gradient sums are divided by; at least 1
};

/// Steps count from 1. Step k of an epoch takes sequences [(k - 1) * n, k * n) of its plan, n = microbatch_size *
/// accumulate, in that order; the last step of an epoch takes what is left (so an epoch has ceil(sequences / n) steps)
/// and no step spans two epochs. How a step is cut into microbatches changes neither its samples nor their indices.
/// Thread-safe.
class Batches {
 public:
  /// Throws UsageError for sizes below 1, InputError where no sequence has a token to predict, or the first epoch none
  /// by its weights.
  Batches(Dataset dataset, BatchOptions options);
  ~Batches();
  Batches(Batches&&) noexcept;
  Batches& operator=(Batches&&) noexcept;

  const Dataset& dataset() const;

  int64_t steps_in_epoch(int64_t epoch) const;
  /// Steps of `epochs` epochs, part of an epoch rounded up.
  int64_t steps_in(double epochs) const;

  StepInfo info(int64_t step) const;
  /// Documents of microbatch `microbatch` (from 0) of `step`.
  std::vector<Sample> samples(int64_t step, int64_t microbatch) const;
  /// The same as one flat batch.
  Batch at(int64_t step, int64_t microbatch, MemoryPool& pool) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
