#include "nibble/recipes/loop.h"

#include "nibble/core/base/peak_flops.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/train/trace_hooks.h"
#include "nibble/recipes/samples.h"

namespace nibble {

void run_steps(Run& run, Decoder& model, const TrainingData& data, const Recipe& recipe, const std::string& tokenizer,
               RankContext& rank) {
  Optimizer optimizer(trainable_parameters(model), recipe.optimizer.options(), rank.pool);
  const Schedule schedule = recipe.optimizer.schedule_for(data.total_steps());
  run.restore(optimizer);
  run.set_work(training_work(model), peak_flops(*recipe.model.compute_dtype == DType::bf16));
  TraceHooks hooks(run.trace(), model.config().layers);
  if (run.trace()) model.set_hooks(&hooks);

  StepOptions options;
  options.max_grad_norm = recipe.train.max_grad_norm;
  options.gradient_sum = *recipe.train.gradient_sum;
  options.compute_dtype = *recipe.model.compute_dtype;
  options.trace = run.trace();
  const Samples samples(data, tokenizer, rank.comm.size() == 1 ? recipe.train.samples : 0);
  if (run.step() == 0) samples.write(run, model, options.compute_dtype, rank);
  while (run.next_step()) {
    options.step = run.step();
    options.lr = schedule.lr_at(run.step() - 1);
    const std::vector<Batch> microbatches =
        traced(run.trace(), Phase::data, "microbatches", [&] { return data.microbatches(run.step(), rank.pool); });
    const StepResult result = traced(run.trace(), Phase::other, "step",
                                     [&] { return train_step(model, microbatches, optimizer, options, rank); });
    run.log(result, options.lr);
    const bool evaluate = data.has_eval() && run.evaluation_due();
    if (evaluate) {
      run.log(traced(run.trace(), Phase::evaluation, "evaluation",
                     [&] { return data.evaluate(model, options.compute_dtype, rank); }));
    }
    if (evaluate || run.step() == data.total_steps()) samples.write(run, model, options.compute_dtype, rank);
    run.checkpoint_if_due(optimizer);
  }
  model.set_hooks(nullptr);
  run.finish(optimizer);
}

}  // namespace nibble
