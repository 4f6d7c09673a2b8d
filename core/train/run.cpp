#include "nibble/core/train/run.h"

#include <cmath>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/base/trace.h"
#include "nibble/core/io/atomic_file.h"
#include "nibble/core/io/directory_lock.h"
#include "nibble/core/train/event_file.h"
#include "nibble/core/train/metrics.h"
#include "nibble/core/train/run_directory.h"

namespace nibble {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;  // the wall clock may jump

namespace {

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool is_due(const Interval& interval, int64_t step, Clock::time_point last) {
  if (interval.steps > 0) return step % interval.steps == 0;
  return interval.seconds > 0 && seconds_since(last) >= interval.seconds;
}

std::vector<std::pair<std::string_view, double>> event_values(const StepReport& report) {
  std::vector<std::pair<std::string_view, double>> values = {
      {"train/loss", report.loss},
      {"train/lr", report.lr},
      {"train/grad_norm", report.grad_norm},
      {"train/tokens_per_second", report.tokens_per_second},
      {"train/peak_memory_bytes", static_cast<double>(report.peak_memory_bytes)}};
  if (report.share_of_peak > 0) values.emplace_back("train/share_of_peak", report.share_of_peak);
  return values;
}

std::vector<NamedTensor> values_of(const Optimizer& optimizer) {
  std::vector<NamedTensor> values;
  for (const Parameter* parameter : optimizer.parameters()) values.push_back({parameter->name, parameter->value});
  return values;
}

}  // namespace

struct Run::Impl {
  RunOptions options;
  const Observer& observer;
  std::unique_ptr<DirectoryLock> lock;
  std::optional<fs::path> resumed_from;
  std::unique_ptr<MetricsFile> metrics;
  std::unique_ptr<MetricsFile> samples;  // made with the first sample
  std::unique_ptr<EventFile> events;
  Work work;
  double peak = 0;
  TrainingState state;
  int64_t step = 0;
  bool new_best = false;
  Clock::time_point step_start, last_save, last_evaluation;

  fs::path checkpoints() const { return options.dir / "checkpoints"; }
  bool stopped_early() const { return options.early_stop > 0 && state.evaluations_since_best >= options.early_stop; }
  bool last_step() const { return step >= options.total_steps || stopped_early(); }
  void save(Optimizer& optimizer);
  void save_or_warn(Optimizer& optimizer);
};

void Run::Impl::save(Optimizer& optimizer) {
  const TraceSpan span(observer.trace, Phase::io, "checkpoint");
  state.step = step;
  state.optimizer_updates = optimizer.updates();
  metrics->sync();
  const fs::path saved =
      save_checkpoint(checkpoints(), state, whole_slices(values_of(optimizer)), whole_slices(optimizer.state()));
  last_save = Clock::now();
  const bool keeps_best = options.keep_best && state.best_loss;
  prune_checkpoints(checkpoints(), step, options.keep_last,
                    keeps_best ? std::optional<int64_t>(state.best_step) : std::nullopt);
  observer.checkpoint(step, saved.string());
}

// A full disk in the middle of a run costs a checkpoint, not the run: older ones are still there.
void Run::Impl::save_or_warn(Optimizer& optimizer) {
  try {
    save(optimizer);
  } catch (const IoError& error) {
    last_save = Clock::now();
    observer.message(std::string("checkpoint failed, training goes on without it: ") + error.what());
  }
}

Run::Run(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Run::Run(Run&&) noexcept = default;
Run& Run::operator=(Run&&) noexcept = default;
Run::~Run() = default;

Run Run::open(const RunOptions& options, RankContext&, const Observer& observer) {
  auto impl = std::make_unique<Impl>(Impl{options, observer});
  impl->lock = detail::claim_directory(options.dir);
  const std::optional<FoundCheckpoint> found = detail::choose_start(options, observer);
  if (found) {
    detail::compare_settings(options, found->state, observer);
    impl->resumed_from = found->path;
    impl->state = found->state;
  }
  if (impl->state.step > options.total_steps) {
    throw UsageError("the checkpoint is at step " + std::to_string(impl->state.step) + ", the recipe ends at " +
                         std::to_string(options.total_steps),
                     "set train.steps to more, or choose another output.dir", options.dir.string());
  }
  detail::clear_for(options, found);
  impl->state.settings = options.settings;
  impl->state.recipe = options.recipe;
  impl->step = impl->state.step;
  // metrics.jsonl before recipe.json: a directory with only a recipe.json is then not one of ours.
  impl->metrics = std::make_unique<MetricsFile>(options.dir / "metrics.jsonl", impl->step);
  impl->events = std::make_unique<EventFile>(options.dir / "tensorboard", found ? impl->step + 1 : 0);
  write_file_atomically(options.dir / "recipe.json", options.recipe);
  return Run(std::move(impl));
}

const fs::path& Run::dir() const { return impl_->options.dir; }
std::optional<fs::path> Run::resumed_from() const { return impl_->resumed_from; }
int64_t Run::step() const { return impl_->step; }
const TrainingState& Run::state() const { return impl_->state; }

void Run::restore(Optimizer& optimizer) {
  Impl& run = *impl_;
  if (run.resumed_from) {
    load_checkpoint_tensors(*run.resumed_from, whole_slices(values_of(optimizer)), whole_slices(optimizer.state()));
    optimizer.set_updates(run.state.optimizer_updates);
  }
  run.last_save = run.last_evaluation = Clock::now();
  run.observer.start(run.step, run.options.total_steps);
}

bool Run::next_step() {
  Impl& run = *impl_;
  if (run.last_step()) return false;
  ++run.step;
  run.new_best = false;
  run.step_start = Clock::now();
  return true;
}

void Run::log(const StepResult& result, double lr) {
  Impl& run = *impl_;
  if (!result.updated) {
    run.observer.message("step " + std::to_string(run.step) + " has no token with a label: skipped");
    return;
  }
  StepReport report;
  report.step = run.step;
  report.total_steps = run.options.total_steps;
  report.loss = result.loss;
  report.lr = lr;
  report.grad_norm = result.grad_norm;
  report.label_tokens = result.label_tokens;
  report.tokens = result.tokens;
  report.seconds = seconds_since(run.step_start);
  report.tokens_per_second = static_cast<double>(result.tokens) / std::max(report.seconds, 1e-9);
  report.peak_memory_bytes = peak_memory_bytes();
  if (run.peak > 0) {
    const double done = run.work.per_token * static_cast<double>(result.tokens) +
                        run.work.per_label_token * static_cast<double>(result.label_tokens);
    report.share_of_peak = done / std::max(report.seconds, 1e-9) / run.peak;
  }
  if (run.observer.trace) run.observer.trace->count("loss", report.loss);
  if (run.step % run.options.log_every == 0 || run.step == run.options.total_steps) {
    run.metrics->append(metrics_line(report));
    run.events->add_scalars(report.step, event_values(report));
  }
  run.observer.step(report);
  run.step_start = Clock::now();  // an evaluation may follow
}

Trace* Run::trace() const { return impl_->observer.trace; }

void Run::set_work(const Work& work, double peak) {
  impl_->work = work;
  impl_->peak = peak;
}

void Run::log(const SampleReport& sample) {
  Impl& run = *impl_;
  if (!run.samples) run.samples = std::make_unique<MetricsFile>(run.options.dir / "samples.jsonl", run.step - 1);
  run.samples->append(sample_line(sample));
  run.events->add_text(sample.step, "samples", "**" + sample.prompt + "**\n\n" + sample.text);
  run.observer.sample(sample);
}

bool Run::evaluation_due() const {
  const Impl& run = *impl_;
  return run.options.evaluates &&
         (run.step == run.options.total_steps || is_due(run.options.eval_every, run.step, run.last_evaluation));
}

void Run::log(const Evaluation& evaluation) {
  Impl& run = *impl_;
  EvaluationReport report;
  report.step = run.step;
  report.loss = evaluation.loss;
  report.perplexity = evaluation.perplexity;
  report.label_tokens = evaluation.label_tokens;
  report.tokens = evaluation.tokens;
  report.seconds = seconds_since(run.step_start);
  report.best = !run.state.best_loss || evaluation.loss < *run.state.best_loss;
  if (report.best) {
    run.state.best_loss = evaluation.loss;
    run.state.best_step = run.step;
    run.state.evaluations_since_best = 0;
    run.new_best = true;
  } else {
    ++run.state.evaluations_since_best;
  }
  run.metrics->append(metrics_line(report));
  const std::pair<std::string_view, double> values[] = {{"eval/loss", report.loss},
                                                        {"eval/perplexity", report.perplexity}};
  run.events->add_scalars(report.step, values);
  run.last_evaluation = Clock::now();
  run.observer.evaluation(report);
}

void Run::checkpoint_if_due(Optimizer& optimizer) {
  Impl& run = *impl_;
  const bool stop = run.observer.stop();
  if (run.last_step() || stop) {
    run.save(optimizer);
    if (run.last_step()) return;
    throw Interrupted(run.options.dir.string(), "stopped after step " + std::to_string(run.step) + ", checkpoint saved",
                      "run the same command to continue");
  }
  if (is_due(run.options.save_every, run.step, run.last_save) || (run.options.keep_best && run.new_best)) {
    run.save_or_warn(optimizer);
  }
}

int64_t Run::finish(Optimizer& optimizer) {
  Impl& run = *impl_;
  const TrainingState& state = run.state;
  if (!run.options.keep_best || !state.best_loss || state.best_step == run.step) return run.step;
  const fs::path best = run.checkpoints() / checkpoint_name(state.best_step);
  if (!fs::exists(best)) {
    run.observer.message("the best checkpoint (step " + std::to_string(state.best_step) +
                         ") is gone; the last weights are exported");
    return run.step;
  }
  read_checkpoint_state(best);  // verifies
  load_checkpoint_tensors(best, whole_slices(values_of(optimizer)), whole_slices(optimizer.state()));
  run.observer.message("exporting the weights of step " + std::to_string(state.best_step) +
                       ", which had the lowest evaluation loss");
  return state.best_step;
}

}  // namespace nibble
