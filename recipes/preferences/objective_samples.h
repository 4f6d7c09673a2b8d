#pragma once
// What an objective asks of the samples of a data set before they become batches.

#include <functional>
#include <span>
#include <vector>

#include "nibble/core/data/batches.h"
#include "nibble/core/objectives/options.h"

namespace nibble {

/// Log-probabilities that a reference gives to the samples of a data set, and to what Objective::survey looks at.
struct ReferenceLogProbs {
  std::vector<std::vector<float>> samples, surveyed;  ///< by row of the data set, then by token
};

class ObjectiveSamples {
 public:
  /// order: how `dataset`, which must outlive this, is gone through. step_samples: samples of a step where that is in
  /// the order of the files and each is a sequence; else 0.
  ObjectiveSamples(const ObjectiveOptions& options, const Dataset& dataset, int64_t max_length, int64_t step_samples);

  /// Samples of the data set as a batch.
  Batch make(std::vector<Sample> samples, MemoryPool& pool) const;
  /// See make_batch; no as it starts.
  void set_share(bool share) { share_ = share; }

  /// Samples that a reference is computed for: those of the row, and what is surveyed in its place.
  Sample sample(int64_t row) const { return dataset_->sample(row); }
  /// KTO: the row's prompt with an answer to another one, which measures how far the policy has gone from the
  /// reference. That one is the sample before it in its step (the first one's is the last), or, where steps are drawn
  /// by chance, the one half of the data set further on: a set that does not depend on microbatches and ranks.
  Sample surveyed(int64_t row) const;
  bool surveys() const { return surveys_; }
  int64_t size() const { return dataset_->size(); }

  /// That of the row, by token; empty: not known.
  std::vector<float> reference(int64_t row) const {
    return reference_.samples.empty() ? std::vector<float>() : reference_.samples[static_cast<size_t>(row)];
  }
  void set_reference(ReferenceLogProbs reference) { reference_ = std::move(reference); }

 private:
  const Dataset* dataset_;
  int64_t max_length_, step_samples_;
  bool surveys_ = false, prompt_counts_ = false, share_ = false;
  ReferenceLogProbs reference_;
};

}  // namespace nibble
