#pragma once
// The data of a run: what the recipe's `data` section names, encoded and laid out in batches.

#include <optional>
#include <string>
#include <vector>

#include "nibble/core/data/batches.h"
#include "nibble/core/data/encoder.h"
#include "nibble/core/train/evaluate.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/preferences/objective_samples.h"

namespace nibble {

struct DecoderConfig;

/// Whether the prompt of a pair, or of the answers that a microbatch has to it, stands once: not where that changes a
/// sum. Dropout would let each answer see another prompt, and a score may be read in the prompt.
bool shares_prompts(const Recipe& recipe, const DecoderConfig& config);

/// "150 pairs, 9,310 tokens" of a run's data: pairs, prompts or samples.
std::string counts_text(const Recipe& recipe, const DatasetReport& report);
/// "3 truncated, 1 malformed record left out"; "" where all counts.
std::string left_out_text(const DatasetReport& report);
/// Whether tokens of the data are trained: not those of prompts whose answers the run draws, nor of texts that get one
/// score each.
bool trains_tokens(const Recipe& recipe);

/// Training batches and, where the recipe asks for it, evaluation batches in file order.
class TrainingData {
 public:
  /// Reads and encodes everything; reports what was found to the observer, samples longer than `model` was made for
  /// among it. Throws as Dataset::load.
  TrainingData(const Recipe& recipe, const DecoderConfig& model, const Encoder& encoder, const Observer& observer);

  const Batches& train() const { return *train_; }
  const Batches& eval() const { return *eval_; }
  bool has_eval() const { return eval_.has_value(); }
  /// Encoder::tokenizer_size.
  int64_t tokenizer_size() const { return tokenizer_size_; }
  /// Steps of the whole run: train.steps, or train.epochs of the data.
  int64_t total_steps() const { return total_steps_; }
  /// The recipe for a plan of the run on these data: data.max_length is no more than a sequence can have of them, with
  /// the answers that are drawn, or the mean of the largest microbatch where these are known.
  Recipe planned(Recipe recipe) const;
  /// Of pairs: tokens of the largest microbatch of the first steps, with prompts once that pairs share. Else 0.
  int64_t microbatch_rows() const { return pair_rows_; }
  /// What step `step` consists of; of answers that are still to be given, at most.
  StepInfo step_info(int64_t step) const;
  /// The microbatches `which` of step `step`; one without tokens for kIdle.
  std::vector<Batch> microbatches(int64_t step, const std::vector<int64_t>& which, MemoryPool& pool) const;
  /// Loss on all evaluation batches. before: as nibble::evaluate's.
  std::optional<Evaluation> evaluate(StepExecutor& executor, const Objective& objective, DType compute_dtype,
                                     const BeforeBatch& before) const;
  /// Objectives with rollouts: `number` (from 1) of the blocks of answers that steps_per_block() steps each use; the
  /// prompts of a block, or its given answers; and what its steps are to compute on, whose metrics are logged with
  /// theirs.
  int64_t block_of(int64_t step) const { return (step - 1) / iterations_ + 1; }
  /// Whether a step is the first that computes on its answers.
  bool is_first_use(int64_t step) const { return (step - 1) % iterations_ < mini_batches_; }
  std::vector<Sample> block(int64_t number) const { return train_->samples(number, 0); }
  void set_block(std::vector<Sample> answers, Metrics metrics);
  const Metrics& block_metrics() const { return block_metrics_; }
  /// Whether batches have tokens once that the samples of a group begin with (make_batch); no as it starts.
  void set_share(bool share);
  /// What the objective makes of the samples; eval: nothing without evaluation data.
  ObjectiveSamples& train_samples() { return *train_samples_; }
  std::optional<ObjectiveSamples>& eval_samples() { return eval_samples_; }
  /// Changes when a resumed run would see other batches.
  std::string fingerprint() const;

 private:
  /// [begin, end) of a block of `samples` in the order of its epoch that step `step` computes on.
  std::pair<int64_t, int64_t> mini_batch(int64_t step, int64_t samples) const;
  /// Those of the block that step `step` computes on: all, or by num_mini_batches some, drawn anew in each epoch.
  std::vector<size_t> rows_of(int64_t step) const;
  void count_rows(const Recipe& recipe, bool pairs, bool share);
  void lay_out_blocks(const Recipe& recipe, DataOptions& data, BatchOptions& batching);
  std::vector<Sample> samples(int64_t step, int64_t microbatch) const;

  std::optional<Batches> train_;
  std::optional<Batches> eval_;
  std::optional<ObjectiveSamples> train_samples_, eval_samples_;
  int64_t tokenizer_size_, microbatch_size_, total_steps_ = 0;
  int64_t iterations_ = 1, mini_batches_ = 1;
  int64_t sequence_rows_ = 0, pair_rows_ = 0;  // of the largest microbatch: by sequence; of pairs
  uint64_t seed_ = 0;
  int64_t completions_ = 0, max_new_tokens_ = 0;  // 0 completions: the data are no prompts
  bool rollouts_ = false, share_ = false;
  std::vector<Sample> block_;
  Metrics block_metrics_;
};

}  // namespace nibble
