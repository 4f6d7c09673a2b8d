#pragma once
// What the loops of all recipes share: steps on any layout, evaluations, checkpoints, until the run is done or stopped.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nibble/core/models/decoder.h"
#include "nibble/core/train/run/run.h"
#include "nibble/core/train/train_step.h"
#include "nibble/parallel/parallel_model.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble {

class ValueModel;

/// The layers of this rank's stage: parallel.stages, or as place_stages() says for the rank's memory budget. Throws
/// UsageError when the list does not fit the model.
LayerRange stage_layers(const Recipe& recipe, const DecoderConfig& config, const Mesh& mesh, const RankContext& rank);

/// What the recipe's `parallel` section and the rest say to parallelize().
ParallelOptions parallel_options(const Recipe& recipe);

/// What computes the steps of `model`, and those of its value model where there is one.
std::unique_ptr<StepExecutor> training_executor(Decoder& model, ParallelModel& parallel, ValueModel* value,
                                                const Recipe& recipe, RankContext& rank);

/// Warns where none of optimizer.no_decay fits a tensor that is trained on any rank. By all ranks.
void warn_of_no_decay(const std::vector<std::string>& patterns, const std::vector<Parameter*>& trained,
                      Communicator& ranks, const Observer& observer);

/// What a recipe's loop works with: the optimizer, the schedule, the layout over ranks, evaluations, texts and
/// checkpoints. A recipe shows the loop itself (finetune.cpp):
///
///   Training training(run, model, parallel, data, objective, recipe, tokenizer, rank, observer);
///   while (training.next_step()) {
///     training.finish_step(train_step(training.executor(), training.microbatches(), objective, training.optimizer(),
///                                     training.options()));
///   }
///   training.finish();
///
/// All of them throw Interrupted when the observer asks to stop. What is given must outlive this.
class Training {
 public:
  /// Restores what `run` continues from, and does what an interrupted run left to do after its last step. tokenizer:
  /// where it lies, to show train.samples as text. value: learns from the same steps; null: there is none.
  Training(Run& run, Decoder& model, ParallelModel& parallel, const TrainingData& data, const Objective& objective,
           const Recipe& recipe, const std::string& tokenizer, RankContext& rank, const Observer& observer,
           ValueModel* value = nullptr);
  ~Training();

  /// Called before each step with its number: makes what the step computes on with the parameters as they are. False:
  /// it was asked to stop. Where it throws RewardError the last step is saved.
  using BeforeStep = std::function<bool(StepExecutor& executor, int64_t step)>;
  void set_before_step(BeforeStep prepare);
  /// Advances to the next step; false when the run is at its end.
  bool next_step();
  /// Those of the step that this rank computes.
  std::vector<Batch> microbatches() const;
  StepExecutor& executor();
  Optimizer& optimizer();
  /// For the step.
  const StepOptions& options() const;
  /// Metrics, and what is due after the update: evaluation, texts, checkpoint. Throws NumericError for too many bad
  /// steps.
  void finish_step(const StepResult& result);
  /// Afterwards the parameters are those to export (the best ones with output.keep_best).
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
