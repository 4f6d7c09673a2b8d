#include "nibble/recipes/loop.h"

namespace nibble {

void run_steps(Run& run, Decoder& model, const TrainingData& data, const Recipe& recipe, RankContext& rank) {
  Optimizer optimizer(trainable_parameters(model), recipe.optimizer.options(), rank.pool);
  const Schedule schedule = recipe.optimizer.schedule_for(data.total_steps());
  run.restore(optimizer);

  StepOptions options;
  options.max_grad_norm = recipe.train.max_grad_norm;
  options.gradient_sum = *recipe.train.gradient_sum;
  options.compute_dtype = *recipe.model.compute_dtype;
  while (run.next_step()) {
    options.step = run.step();
    options.lr = schedule.lr_at(run.step() - 1);
    const std::vector<Batch> microbatches = data.microbatches(run.step(), rank.pool);
    run.log(train_step(model, microbatches, optimizer, options, rank), options.lr);
    if (data.has_eval() && run.evaluation_due()) run.log(data.evaluate(model, options.compute_dtype, rank));
    run.checkpoint_if_due(optimizer);
  }
  run.finish(optimizer);
}

}  // namespace nibble
