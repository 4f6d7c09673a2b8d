#include "nibble/recipes/training/loop.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/nonfinite.h"
#include "nibble/core/ops/cpu/peak_flops.h"
#include "nibble/core/train/telemetry/trace_hooks.h"
#include "nibble/parallel/pipeline/pipelined_executor.h"
#include "nibble/parallel/plan/memory.h"
#include "nibble/parallel/plan/work.h"
#include "nibble/recipes/environment/run_facts.h"
#include "nibble/recipes/evaluation/samples.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/reinforcement/rollouts.h"
#include "nibble/recipes/reinforcement/value_model.h"
#include "nibble/recipes/training/run_banner.h"

namespace nibble {

ParallelOptions parallel_options(const Recipe& recipe) {
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

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Whether Transformers computes the norms by torch.nn.LayerNorm.
bool has_layer_norms(const DecoderConfig& config) {
  return config.norm.kind == NormKind::layer && !config.family.starts_with("cohere");
}

std::vector<Parameter*> parameters_of(const ParallelModel& parallel, ValueModel* value) {
  std::vector<Parameter*> all = parallel.parameters();
  if (!value) return all;
  const std::vector<Parameter*> more = value->parameters();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

// Patterns may be those of several models; where none fits a tensor that any rank trains, they are a slip.
void warn_of_no_decay(const std::vector<std::string>& patterns, const std::vector<Parameter*>& trained,
                      Communicator& ranks, const Observer& observer) {
  const auto fits = [&](const Parameter* parameter) {
    return std::ranges::any_of(patterns, [&](const auto& pattern) { return name_matches(pattern, parameter->name); });
  };
  const auto fitting = static_cast<double>(std::ranges::count_if(trained, fits));
  if (patterns.empty() || ranks.all_reduce_sum("check no_decay", fitting) > 0 || ranks.rank() != 0) return;
  observer.message("warning: optimizer.no_decay fits no tensor that is trained");
}

std::unique_ptr<StepExecutor> training_executor(Decoder& model, ParallelModel& parallel, ValueModel* value,
                                                const Recipe& recipe, RankContext& rank) {
  auto executor = make_executor(model, parallel, {recipe.parallel.schedule, recipe.parallel.microbatches}, rank);
  return value ? value->pair(std::move(executor), parallel.parameters()) : std::move(executor);
}

struct Training::Impl {
  Run& run;
  Decoder& model;
  ParallelModel& parallel;
  const TrainingData& data;
  const Objective& objective;
  const Recipe& recipe;
  RankContext& rank;
  const Observer& observer;
  ValueModel* value;
  Samples samples;
  Optimizer optimizer{parameters_of(parallel, value), recipe.optimizer.options(has_layer_norms(model.config())),
                      rank.pool, rank.comm.size() > 1, [this](const Parameter& part) {
                        const bool of_value = part.name.starts_with(kValuePrefix);
                        return of_value ? value->global_shape(part) : parallel.global_shape(part);
                      }};
  Schedule schedule = recipe.optimizer.schedule_for(data.total_steps());
  std::unique_ptr<StepExecutor> executor = training_executor(model, parallel, value, recipe, rank);
  TraceHooks hooks{run.trace(), model.config().layers, parallel.sharded()};
  StepOptions options = {};
  BeforeStep before_step = {};
  Clock::time_point began = Clock::now(), step_began = began;
  int64_t first_step = run.step() + 1;
  std::optional<std::string> bad_base = {};  // nonfinite_text of the frozen weights, once it was asked for

  void name_bad_base(std::vector<std::string>& nonfinite);
  void add_clock(StepResult& logged) const;
  void tell_evaluations_ahead() const;
  void after_update(Unfinished rest);
};

Training::Training(Run& run, Decoder& model, ParallelModel& parallel, const TrainingData& data,
                   const Objective& objective, const Recipe& recipe, const std::string& tokenizer, RankContext& rank,
                   const Observer& observer, ValueModel* value)
    : impl_(new Impl{run, model, parallel, data, objective, recipe, rank, observer, value,
                     Samples(data, tokenizer, recipe.data.chat_template, recipe.train.samples)}) {
  if (value) {
    run.set_slicers(value->slicer(parallel.slicer()), value->written_slicer(parallel.written_slicer()));
  } else {
    run.set_slicers(parallel.slicer(), parallel.written_slicer());
  }
  warn_of_no_decay(recipe.optimizer.no_decay, impl_->optimizer.parameters(), rank.comm, observer);
  run.restore(impl_->optimizer);
  parallel.share_values();
  if (value) value->share_values();
  const WeightCounts counts = count_weights(model, parallel.mesh());
  // Of products in 8 bits the peak in floats is none.
  const bool shares = rank.comm.size() == 1 && !recipe.model.int8();
  const double peak = shares ? peak_flops(recipe.model.multiplies_bf16()) : 0;
  const Work work = rank.comm.size() > 1 ? Work() : training_work(plan_job(data.planned(recipe), model.config()));
  if (rank.comm.rank() == 0) {
    write_run_facts(run.dir(), recipe, model, counts, parallel.mesh(), data, rank.threads);
    for (const std::string& line : run_banner(recipe, model, counts, parallel.mesh(), data, rank, work, peak)) {
      observer.message(line);
    }
  }
  if (rank.comm.size() == 1) run.set_work(work, peak);
  if (run.trace()) model.set_hooks(&impl_->hooks);
  impl_->options.max_grad_norm = recipe.train.max_grad_norm;
  impl_->options.neftune_noise_alpha = recipe.train.neftune_noise_alpha;
  impl_->options.gradient_sum = *recipe.train.gradient_sum;
  impl_->options.compute_dtype = recipe.model.dtype();
  impl_->options.trace = run.trace();
  const Unfinished left = run.step() == 0 ? Unfinished::samples : run.state().unfinished;
  if (left != Unfinished::nothing) impl_->after_update(left);
}

Training::~Training() { impl_->model.set_hooks(impl_->parallel.sharded()); }

void Training::set_before_step(BeforeStep prepare) { impl_->before_step = std::move(prepare); }
StepExecutor& Training::executor() { return *impl_->executor; }
Optimizer& Training::optimizer() { return impl_->optimizer; }
const StepOptions& Training::options() const { return impl_->options; }

bool Training::next_step() {
  impl_->step_began = Clock::now();
  Run& run = impl_->run;
  try {
    if (impl_->before_step && run.goes_on() && !impl_->before_step(*impl_->executor, run.step() + 1)) {
      run.save_and_interrupt(impl_->optimizer, Unfinished::nothing);
    }
  } catch (const RewardError&) {
    run.save(impl_->optimizer, Unfinished::nothing);
    throw;
  }
  if (!impl_->run.next_step()) return false;
  impl_->options.step = impl_->run.step();
  impl_->options.lr = impl_->schedule.lr_at(impl_->run.step() - 1);
  return true;
}

std::vector<Batch> Training::microbatches() const {
  const int64_t step = impl_->run.step();
  const std::vector<int64_t> mine = impl_->executor->begin_step(impl_->data.step_info(step).microbatches);
  return traced(impl_->run.trace(), Phase::data, "microbatches",
                [&] { return impl_->data.microbatches(step, mine, impl_->rank.pool); });
}

void Training::finish_step(const StepResult& result) {
  StepResult logged = result;
  const Metrics& of_block = impl_->data.block_metrics();
  logged.metrics.insert(logged.metrics.begin(), of_block.begin(), of_block.end());
  if (impl_->before_step) impl_->add_clock(logged);
  if (!logged.nonfinite.empty()) impl_->name_bad_base(logged.nonfinite);
  impl_->tell_evaluations_ahead();
  impl_->run.log(logged, impl_->options.lr);
  impl_->after_update(impl_->data.has_eval() && impl_->run.evaluation_due() ? Unfinished::evaluation
                                                                            : Unfinished::nothing);
}

// A frozen weight of any rank that is not finite is why the rest is not, and comes first. By all ranks, of which every
// one knows of a bad step; frozen weights are looked at once.
void Training::Impl::name_bad_base(std::vector<std::string>& nonfinite) {
  if (!bad_base) {
    std::set<std::string> trained;
    for (const Parameter* parameter : parallel.decoder_parameters()) trained.insert(parameter->name);
    std::string here;
    parallel.visit_unsharded([&](std::vector<NamedTensor> tensors) {
      std::erase_if(tensors, [&](const NamedTensor& tensor) { return trained.contains(tensor.name); });
      if (here.empty()) here = nonfinite_text(tensors);
    });
    bad_base = "";
    for (int r = 0; r < rank.comm.size() && bad_base->empty(); ++r) {
      bad_base = rank.comm.broadcast_text("finite check", here, r);
    }
  }
  if (!bad_base->empty()) nonfinite.insert(nonfinite.begin(), *bad_base);
}

// Of steps on answers: the tokens that are new, and the time with what it took to have them.
void Training::Impl::add_clock(StepResult& logged) const {
  const int64_t step = run.step();
  if (!data.is_first_use(step)) logged.new_tokens = 0;
  logged.metrics.emplace_back("step_time", seconds_since(step_began));
  if (recipe.objective.type != ObjectiveType::ppo) return;
  const int64_t block = data.block_of(step), here = block - data.block_of(first_step) + 1;
  const auto answers = static_cast<double>(recipe.train.microbatch_size * recipe.train.accumulate);
  logged.metrics.emplace_back("episode", static_cast<double>(block) * answers);
  logged.metrics.emplace_back("eps", static_cast<double>(here) * answers / seconds_since(began));
}

// Those after this step and later ones.
void Training::Impl::tell_evaluations_ahead() const {
  if (!data.has_eval()) return;
  const Interval& every = recipe.train.eval_every;
  const int64_t step = run.step(), last = data.total_steps();
  int64_t times = 1;  // after the last step
  if (every.steps > 0) {
    times += (last - 1) / every.steps - (step - 1) / every.steps;
  } else if (every.seconds > 0) {
    const double steps = seconds_since(began) + static_cast<double>(last - step) * seconds_since(step_began);
    times += static_cast<int64_t>(steps / every.seconds);
  }
  // A step goes forward, back to inputs, and to the weights where all are trained; forward again where it recomputes.
  const bool recomputes = recipe.train.gradient_checkpointing == Recompute::block;
  const int64_t passes = 2 + (recipe.adapter ? 0 : 1) + (recomputes ? 1 : 0);
  observer.evaluations_ahead(times * data.eval().dataset().report().tokens / passes);
}

// Evaluation, samples, checkpoint. The state stays that of the step: a stop saves it with what is left to do.
void Training::Impl::after_update(Unfinished rest) {
  if (rest == Unfinished::evaluation) {
    const auto go_on = [&](int64_t batch, int64_t batches) { return run.evaluating(batch, batches); };
    const std::optional<Evaluation> evaluation = traced(run.trace(), Phase::evaluation, "evaluation", [&] {
      return data.evaluate(*executor, objective, options.compute_dtype, go_on);
    });
    if (!evaluation) run.save_and_interrupt(optimizer, rest);
    run.log(*evaluation);
  }
  const bool shows = rest != Unfinished::nothing || run.step() == data.total_steps();
  if (shows && !samples.write(run, model, *executor, options.compute_dtype)) {
    run.save_and_interrupt(optimizer, Unfinished::samples);
  }
  if (run.step() > 0) run.checkpoint_if_due(optimizer);
}

void Training::finish() {
  const std::string summary = impl_->executor->summary();
  if (!summary.empty()) impl_->observer.message(summary);
  impl_->model.set_hooks(impl_->parallel.sharded());
  impl_->run.finish(impl_->optimizer);
  impl_->parallel.share_values();
  if (impl_->value) impl_->value->share_values();
}

}  // namespace nibble
