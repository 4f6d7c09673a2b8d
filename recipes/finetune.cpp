// Fine-tuning: QLoRA, LoRA and full are the same code with sections of the recipe present or absent, next tokens and
// preferences as well.

#include <filesystem>

#include "nibble/core/train/telemetry/trace.h"
#include "nibble/recipes/models/arithmetic.h"
#include "nibble/recipes/models/fingerprints.h"
#include "nibble/recipes/train.h"
#include "nibble/recipes/training/finetuning.h"
#include "nibble/recipes/training/loop.h"

namespace nibble {

void finetune(const Recipe& recipe, RankContext& rank, const Observer& observer) {
  Finetuning opened(recipe, rank, observer);  // the data
  RunOptions options = run_options(recipe, opened.data().total_steps());
  traced(observer.trace, Phase::io, "fingerprints",
         [&] { add_fingerprints(options, opened.recipe(), opened.tokenizer(), opened.data().fingerprint()); });
  Run run = Run::open(options, rank, observer);  // lock, newest valid checkpoint, metrics

  opened.open(run.dir(), options.settings);         // model, adapter, layout over ranks, reference
  const Objective& objective = opened.objective();  // the loss
  {                                                 // the optimizer, which writing the model does without
    Training training(run, opened.model(), opened.parallel(), opened.data(), objective, opened.recipe(),
                      opened.tokenizer(), rank, observer, opened.value());
    if (Rollouts* rollouts = opened.rollouts()) {  // answers and rewards, with the model as it is
      rollouts->restore(run.state().rollouts);
      const RolloutRun of_run{run.dir() / "rollouts", [&run] { return run.stop_requested(); },
                              [&run](std::string kept) { run.keep_rollouts(std::move(kept)); }};
      training.set_before_step([rollouts, of_run](StepExecutor& executor, int64_t step) {
        return rollouts->prepare(step, executor, of_run);
      });
    }
    while (training.next_step()) {  // resumes where the checkpoint says
      training.finish_step(train_step(training.executor(), training.microbatches(), objective, training.optimizer(),
                                      training.options()));
    }
    training.finish();
  }
  opened.export_to(run.dir());  // read back, compared
}

FirstStep first_step(const Recipe& recipe, RankContext& rank, const Observer& observer,
                     const std::filesystem::path& scratch) {
  use_arithmetic(recipe.model);
  Finetuning opened(recipe, rank, observer);
  RunOptions options = run_options(recipe, opened.data().total_steps());
  add_fingerprints(options, opened.recipe(), opened.tokenizer(), opened.data().fingerprint());
  opened.open(scratch, options.settings);
  const auto executor = training_executor(opened.model(), opened.parallel(), opened.value(), recipe, rank);
  if (Rollouts* rollouts = opened.rollouts()) {
    rollouts->prepare(1, *executor, {{}, [] { return false; }, [](const std::string&) {}});
  }
  const std::vector<int64_t> mine = executor->begin_step(opened.data().step_info(1).microbatches);
  std::vector<Parameter*> parameters = opened.parallel().parameters();
  FirstStep found;
  found.sums = executor->gradients(
      opened.data().microbatches(1, mine, rank.pool), opened.objective(), parameters,
      {.step = 1, .gradient_sum = *recipe.train.gradient_sum, .compute_dtype = recipe.model.dtype()});
  const Metrics& of_block = opened.data().block_metrics();
  found.sums.metrics.insert(found.sums.metrics.begin(), of_block.begin(), of_block.end());
  if (opened.value()) {
    const std::vector<Parameter*> more = opened.value()->parameters();
    parameters.insert(parameters.end(), more.begin(), more.end());
  }
  for (const Parameter* parameter : parameters) {
    found.gradients.emplace_back(parameter->name, parameter->gradient.clone(rank.pool));
  }
  return found;
}

}  // namespace nibble
