#include "nibble/recipes/loop.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>

#include "nibble/core/base/error.h"
#include "nibble/core/base/peak_flops.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/train/trace_hooks.h"
#include "nibble/parallel/pipeline/pipeline.h"
#include "nibble/parallel/plan/memory.h"
#include "nibble/recipes/plan_job.h"
#include "nibble/recipes/run_facts.h"
#include "nibble/recipes/samples.h"

namespace nibble {

ParallelOptions parallel_options(const Recipe& recipe) {
  if (recipe.parallel.tensor > 1 && recipe.optimizer.type == OptimizerKind::adamw8bit) {
    throw UsageError("adamw8bit keeps its state in blocks that parallel.tensor would cut",
                     "use adamw, or parallel.shard", "optimizer.type");
  }
  ParallelOptions options;
  options.level = static_cast<ShardLevel>(recipe.parallel.zero);
  options.shard_trainable = !recipe.adapter || recipe.parallel.shard_adapters;
  options.reshard_after_forward = recipe.parallel.reshard_after_forward;
  options.prefetch = recipe.parallel.prefetch;
  options.wire.dtype = recipe.parallel.wire_dtype;
  options.gradient_sum = *recipe.train.gradient_sum;
  return options;
}

LayerRange stage_layers(const Recipe& recipe, const DecoderConfig& config, const Mesh& mesh, const RankContext& rank) {
  const int64_t stages = mesh.shape().pipeline;
  if (stages == 1) return {0, config.layers};
  if (stages > config.layers) {
    throw UsageError("has more stages than the model has layers (" + std::to_string(config.layers) + ")", "use fewer",
                     "parallel.pipeline");
  }
  const std::vector<int64_t>& given = recipe.parallel.stages;
  if (!given.empty() && (static_cast<int64_t>(given.size()) != stages ||
                         std::accumulate(given.begin(), given.end(), int64_t{0}) != config.layers)) {
    throw UsageError("must have one number for each of the " + std::to_string(stages) + " stages, " +
                         std::to_string(config.layers) + " in all",
                     "leave it out", "parallel.stages");
  }
  const std::vector<int64_t> begins =
      place_stages(plan_job(recipe), plan_layout(recipe), rank.threads, static_cast<int64_t>(rank.pool.budget()));
  const auto stage = static_cast<size_t>(mesh.stage());
  return {begins[stage], begins[stage + 1]};
}

namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f%%", 100 * share);
  return text;
}

}  // namespace

void run_steps(Run& run, Decoder& model, ParallelModel& parallel, const TrainingData& data, const Recipe& recipe,
               const std::string& tokenizer, RankContext& rank, const Observer& observer) {
  Optimizer optimizer(parallel.parameters(), recipe.optimizer.options(), rank.pool, rank.comm.size() > 1,
                      [&](const Parameter& part) { return parallel.whole_size(part); });
  const Schedule schedule = recipe.optimizer.schedule_for(data.total_steps());
  Pipeline pipeline(model, {recipe.parallel.schedule, recipe.parallel.microbatches}, parallel.mesh(), rank);
  const bool staged = parallel.mesh().shape().pipeline > 1;
  if (staged) {
    parallel.set_idle([&] { pipeline.next(); });
    pipeline.set_tied_gradient([&] { return parallel.tied_gradient(); });
  }
  run.set_slicers(parallel.slicer(), parallel.written_slicer());
  run.restore(optimizer);
  parallel.share_values();
  const bool alone = rank.comm.size() == 1;
  write_run_facts(run.dir(), recipe, model, parallel.mesh(), data, rank.threads);
  TraceHooks hooks(run.trace(), model.config().layers, alone ? nullptr : &parallel);
  if (alone) run.set_work(training_work(model), peak_flops(*recipe.model.compute_dtype == DType::bf16));
  if (run.trace()) model.set_hooks(&hooks);

  StepOptions options;
  options.max_grad_norm = recipe.train.max_grad_norm;
  options.gradient_sum = *recipe.train.gradient_sum;
  options.compute_dtype = *recipe.model.compute_dtype;
  options.trace = run.trace();
  const Samples samples(data, tokenizer, recipe.train.samples);
  // What follows an update. The state is that of the step all the while: a stop saves it with what is left to do.
  const auto finish_step = [&](Unfinished rest) {
    if (rest == Unfinished::evaluation) {
      const auto go_on = [&](int64_t batch, int64_t batches) { return run.evaluating(batch, batches); };
      const std::optional<Evaluation> evaluation = traced(run.trace(), Phase::evaluation, "evaluation", [&] {
        return data.evaluate(model, pipeline, parallel.mesh(), options.compute_dtype, rank, go_on);
      });
      if (!evaluation) run.leave(optimizer, rest);
      run.log(*evaluation);
    }
    const bool shows = rest != Unfinished::nothing || run.step() == data.total_steps();
    if (shows && !samples.write(run, model, pipeline, options.compute_dtype, rank)) {
      run.leave(optimizer, Unfinished::samples);
    }
    if (run.step() > 0) run.checkpoint_if_due(optimizer);
  };
  const Unfinished left = run.step() == 0 ? Unfinished::samples : run.state().unfinished;
  if (left != Unfinished::nothing) finish_step(left);
  const StepLayout layout = traced(pipeline.over_stages(parallel.layout()), run.trace());
  const LossAndGradients compute = [&](const Batch& batch, const StepContext& step, float gradient_scale) {
    return staged ? pipeline.next() : model.loss_sum_and_gradients(batch, step, gradient_scale);
  };
  while (run.next_step()) {
    options.step = run.step();
    options.lr = schedule.lr_at(run.step() - 1);
    const StepInfo info = data.train().info(run.step());
    const std::vector<int64_t> mine = parallel.begin_step(info.microbatches);
    const std::vector<Batch> microbatches = traced(run.trace(), Phase::data, "microbatches",
                                                   [&] { return data.microbatches(run.step(), mine, rank.pool); });
    std::vector<Batch> spare;
    if (staged) {
      spare = data.microbatches(run.step(), {0}, rank.pool);
      const StepContext step{rank, options.compute_dtype, true, static_cast<uint64_t>(options.step), {}};
      const int64_t passes = parallel.collective() ? parallel.passes_in_step() : 0;
      pipeline.begin_step(microbatches, spare.front(), passes,
                          static_cast<float>(1.0 / static_cast<double>(info.label_tokens)), step);
    }
    const StepResult result = traced(run.trace(), Phase::other, "step", [&] {
      return train_step(compute, microbatches, optimizer, options, rank, layout);
    });
    run.log(result, options.lr);
    finish_step(data.has_eval() && run.evaluation_due() ? Unfinished::evaluation : Unfinished::nothing);
  }
  if (staged) {
    const Pipeline::Bubble bubble = pipeline.bubble();
    observer.message("pipeline: the first stage waited " + percent(bubble.measured) + " of the time, the schedule of " +
                     "stages as fast as these predicts " + percent(bubble.predicted));
  }
  model.set_hooks(&parallel);
  run.finish(optimizer);
  parallel.share_values();
}

}  // namespace nibble
