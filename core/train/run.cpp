#include "nibble/core/train/run.h"

#include <cmath>
#include <set>
#include <sstream>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/base/trace.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/io/atomic_file.h"
#include "nibble/core/train/checkpoint_writer.h"
#include "nibble/core/train/diagnostic.h"
#include "nibble/core/train/event_file.h"
#include "nibble/core/train/metrics.h"
#include "nibble/core/train/run_directory.h"
#include "nibble/core/train/training_monitor.h"
#include "nibble/core/train/watchdog.h"

namespace nibble {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;  // the wall clock may jump

namespace {

constexpr double kRetrySeconds = 60;  // after a checkpoint that failed

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

std::vector<int64_t> of_every_rank(int64_t mine, Communicator& ranks) {
  MemoryPool pool;
  const Tensor part = Tensor::from<int64_t>(pool, {1}, std::span<const int64_t>(&mine, 1));
  Tensor all = Tensor::empty(pool, {ranks.size()}, DType::i64);
  ranks.all_gather("peak memory", part, all);
  return {all.data<const int64_t>(), all.data<const int64_t>() + ranks.size()};
}

// And an empty slice for every tensor that only other ranks have a part of, so that it is known to be in the model.
std::vector<CheckpointSlice> with_others(std::vector<CheckpointSlice> slices, Communicator& ranks) {
  if (ranks.size() == 1) return slices;
  std::string mine;
  std::set<std::string> known;
  for (const CheckpointSlice& slice : slices) {
    if (!known.insert(slice.name).second) continue;
    mine += slice.name + "\t" + (slice.value.dtype() == DType::u8 ? "1 " : "0 ");
    for (const int64_t size : slice.global_shape) mine += std::to_string(size) + " ";
    mine += "\n";
  }
  for (int r = 0; r < ranks.size(); ++r) {
    std::istringstream theirs(ranks.broadcast_text("names of slices", mine, r));
    for (std::string line; std::getline(theirs, line);) {
      const size_t tab = line.find('\t');
      const std::string name = line.substr(0, tab);
      if (!known.insert(name).second) continue;
      std::istringstream sizes(line.substr(tab + 1));
      bool is_bytes = false;
      sizes >> is_bytes;
      CheckpointSlice slice{name, {}, {}, {}};
      for (int64_t size; sizes >> size;) slice.global_shape.push_back(size);
      slice.offset = Shape(slice.global_shape.size(), 0);
      slice.value = Tensor::planned(slice.offset, is_bytes ? DType::u8 : DType::f32);
      slices.push_back(std::move(slice));
    }
  }
  return slices;
}

// The checkpoint that the first rank chose, read by all.
std::optional<FoundCheckpoint> share(const std::optional<FoundCheckpoint>& found, Communicator& ranks) {
  const std::string path = ranks.broadcast_text("open run", found ? found->path.string() : "", 0);
  if (ranks.rank() == 0 || path.empty()) return found;
  return FoundCheckpoint{path, read_checkpoint_state(path)};
}

}  // namespace

// Of several ranks the first one owns the directory and its files; checkpoints are written by all.
struct Run::Impl {
  RunOptions options;
  const Observer& observer;
  Communicator& ranks;
  std::optional<detail::Claim> claim;
  std::optional<FoundCheckpoint> start;
  Slicer reads = whole_slices, writes = whole_slices;
  std::unique_ptr<MetricsFile> metrics;
  std::unique_ptr<MetricsFile> samples;  // made with the first sample
  std::unique_ptr<EventFile> events;
  Work work;
  double peak = 0;
  TrainingState state;
  int64_t step = 0;
  double lr = 0;
  bool new_best = false;
  TrainingMonitor monitor;
  BadSteps bad_steps;
  std::optional<int64_t> best_of_save;  // the best step that the save under way knows
  bool lines_wait = false;
  std::optional<Clock::time_point> failed;  // when a checkpoint failed that no later one made good
  Clock::time_point step_start, last_save, last_evaluation;
  Watchdog watchdog;
  std::optional<CheckpointWriter::Outcome> together;  // of a save by several ranks
  CheckpointWriter writer;                            // last: it is done before the metrics close and the lock goes

  Impl(const RunOptions& given, RankContext& rank, const Observer& watching)
      : options(given),
        observer(watching),
        ranks(rank.comm),
        watchdog(given.stall_seconds, watching.on_stall),
        writer(checkpoints(), rank.pool) {
    if (leads()) claim.emplace(given.dir);
  }

  fs::path checkpoints() const { return options.dir / "checkpoints"; }
  bool stopped_early() const { return options.early_stop > 0 && state.evaluations_since_best >= options.early_stop; }
  bool last_step() const { return step >= options.total_steps || stopped_early(); }
  bool leads() const { return ranks.rank() == 0; }
  /// What the first rank says, on all ranks.
  bool agree(const char* on, bool mine) const {
    return ranks.size() == 1 ? mine : ranks.all_reduce_sum(on, leads() && mine ? 1 : 0) > 0;
  }
  bool save_due() const {
    if (bad_steps.in_a_row() > 0) return false;  // what led to them may be in the weights already
    return agree("save due",
                 is_due(options.save_every, step, last_save) || (failed && seconds_since(*failed) >= kRetrySeconds)) ||
           (options.keep_best && new_best);
  }
  void load(const fs::path& checkpoint, Optimizer& optimizer) const {
    load_checkpoint_tensors(checkpoint, with_others(reads(values_of(optimizer)), ranks),
                            with_others(reads(optimizer.state()), ranks));
  }
  void save_together(Optimizer& optimizer);
  void write_line(const std::string& line);
  void begin_save(Optimizer& optimizer, bool behind = true);
  bool take_outcome(bool is_last);
  void save_last(Optimizer& optimizer);
};

// A full disk must not end a run: the lines are kept and come with a later one.
void Run::Impl::write_line(const std::string& line) {
  if (!leads()) return;
  const bool written = metrics->append(line);
  if (!written && !lines_wait) {
    observer.message("warning: " + (options.dir / "metrics.jsonl").string() +
                     " cannot be written; its lines are kept until it can: free space on its device");
  }
  lines_wait = !written;
}

void Run::Impl::begin_save(Optimizer& optimizer, bool behind) {
  const TraceSpan span(observer.trace, Phase::io, "checkpoint");  // the snapshot: the writing goes on behind
  if (writer.under_way() || together) take_outcome(false);
  state.step = step;
  state.optimizer_updates = optimizer.updates();
  best_of_save = options.keep_best && state.best_loss ? std::optional<int64_t>(state.best_step) : std::nullopt;
  last_save = Clock::now();
  if (ranks.size() > 1) return save_together(optimizer);
  watchdog.begin("saving", checkpoint_name(step));
  writer.start(
      state, writes(values_of(optimizer)), writes(optimizer.state()), [this] { metrics->sync(); },
      [this] { watchdog.end("saving"); }, behind);
}

// Several ranks wait for one another while they write, so they do it here and not behind the training.
void Run::Impl::save_together(Optimizer& optimizer) {
  CheckpointWriter::Outcome outcome;
  outcome.step = step;
  try {
    if (leads()) metrics->sync();
    outcome.path =
        save_checkpoint(checkpoints(), state, writes(values_of(optimizer)), writes(optimizer.state()), ranks);
  } catch (const IoError& error) {
    outcome.failure = error.what();
    outcome.exit_code = error.exit_code();
  }
  together = outcome;
}

// In the middle of a run a full disk costs a checkpoint, not the run: older ones are still there.
bool Run::Impl::take_outcome(bool is_last) {
  const CheckpointWriter::Outcome outcome = together ? *together : writer.outcome();
  together.reset();
  if (!outcome.failure.empty()) {
    failed = Clock::now();
    if (is_last && outcome.exit_code == 5) throw NumericError(options.dir.string(), outcome.failure);
    if (is_last) {
      throw IoError(options.dir.string(), "the last checkpoint failed: " + outcome.failure,
                    "then run the same command: it continues from the checkpoint before");
    }
    observer.message("warning: checkpoint failed, training goes on without it: " + outcome.failure);
    return false;
  }
  failed.reset();
  if (!leads()) return true;
  try {
    prune_checkpoints(checkpoints(), outcome.step, options.keep_last, best_of_save);
  } catch (const IoError& error) {
    observer.message(std::string("warning: an older checkpoint stays: ") + error.what());
  }
  observer.checkpoint(outcome.step, outcome.path.string());
  return true;
}

void Run::Impl::save_last(Optimizer& optimizer) {
  begin_save(optimizer, false);
  take_outcome(true);
}

Run::Run(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Run::Run(Run&&) noexcept = default;
Run& Run::operator=(Run&&) noexcept = default;
Run::~Run() = default;

Run Run::open(const RunOptions& options, RankContext& rank, const Observer& observer) {
  auto impl = std::make_unique<Impl>(options, rank, observer);
  if (impl->leads()) {
    impl->start = detail::choose_start(options, observer);
    if (impl->start) detail::compare_settings(options, impl->start->state, observer);
  }
  impl->start = share(impl->start, rank.comm);
  if (impl->start) impl->state = impl->start->state;
  if (impl->state.step > options.total_steps) {
    throw UsageError("the checkpoint is at step " + std::to_string(impl->state.step) + ", the recipe ends at " +
                         std::to_string(options.total_steps),
                     "set train.steps to more, or choose another output.dir", options.dir.string());
  }
  impl->state.settings = options.settings;
  impl->state.recipe = options.recipe;
  impl->step = impl->state.step;
  return Run(std::move(impl));
}

void Run::set_slicers(Slicer reads, Slicer writes) {
  impl_->reads = std::move(reads);
  impl_->writes = std::move(writes);
}

const fs::path& Run::dir() const { return impl_->options.dir; }
std::optional<fs::path> Run::resumed_from() const {
  return impl_->start ? std::optional<fs::path>(impl_->start->path) : std::nullopt;
}
int64_t Run::step() const { return impl_->step; }
const TrainingState& Run::state() const { return impl_->state; }

void Run::restore(Optimizer& optimizer) {
  Impl& run = *impl_;
  if (run.start) {
    run.load(run.start->path, optimizer);
    optimizer.set_updates(run.state.optimizer_updates);
  }
  if (run.leads()) {
    detail::clear_for(run.options, run.start);
    const uint64_t bytes = bytes_of(run.writes(values_of(optimizer))) + bytes_of(run.writes(optimizer.state()));
    require_free_bytes(run.options.dir, bytes, "a checkpoint of this run");
    run.claim->keep();
    // metrics.jsonl before recipe.json: a directory with only a recipe.json is then not one of ours.
    run.metrics = std::make_unique<MetricsFile>(run.options.dir / "metrics.jsonl", run.step);
    run.events = std::make_unique<EventFile>(run.options.dir / "tensorboard", run.start ? run.step + 1 : 0);
    write_file_atomically(run.options.dir / "recipe.json", run.options.recipe);
  }
  run.last_save = run.last_evaluation = Clock::now();
  run.observer.start(run.step, run.options.total_steps);
}

bool Run::next_step() {
  Impl& run = *impl_;
  run.watchdog.end("training");
  if (run.last_step()) return false;
  ++run.step;
  run.watchdog.begin("training", "step " + std::to_string(run.step));
  run.new_best = false;
  run.step_start = Clock::now();
  return true;
}

void Run::log(const StepResult& result, double lr) {
  Impl& run = *impl_;
  run.lr = lr;
  if (!result.nonfinite.empty()) {
    run.observer.message("warning: step " + std::to_string(run.step) + " skipped: " + result.nonfinite.front());
    run.bad_steps.add({run.step, lr, result.loss, result.grad_norm, result.nonfinite});
    if (run.bad_steps.in_a_row() >= run.options.max_bad_steps) {
      if (run.writer.under_way() || run.together) run.take_outcome(false);
      run.bad_steps.give_up(run.leads() ? run.options.dir / "diagnostic.json" : fs::path());
    }
    return;
  }
  run.bad_steps.clear();
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
  if (run.ranks.size() > 1) report.rank_peak_memory_bytes = of_every_rank(report.peak_memory_bytes, run.ranks);
  if (run.peak > 0) {
    const double done = run.work.per_token * static_cast<double>(result.tokens) +
                        run.work.per_label_token * static_cast<double>(result.label_tokens);
    report.share_of_peak = done / std::max(report.seconds, 1e-9) / run.peak;
  }
  if (run.observer.trace) run.observer.trace->count("loss", report.loss);
  if (run.step % run.options.log_every == 0 || run.step == run.options.total_steps) {
    run.write_line(metrics_line(report));
    if (run.leads()) run.events->add_scalars(report.step, event_values(report));
  }
  run.observer.step(report);
  for (const std::string& warning : run.monitor.after_step(report)) run.observer.message(warning);
  run.step_start = Clock::now();  // an evaluation may follow
}

Trace* Run::trace() const { return impl_->observer.trace; }

void Run::set_work(const Work& work, double peak) {
  impl_->work = work;
  impl_->peak = peak;
}

void Run::log(const SampleReport& sample) {
  Impl& run = *impl_;
  if (!run.leads()) return;
  if (!run.samples) run.samples = std::make_unique<MetricsFile>(run.options.dir / "samples.jsonl", run.step - 1);
  run.samples->append(sample_line(sample));
  run.events->add_text(sample.step, "samples", "**" + sample.prompt + "**\n\n" + sample.text);
  run.observer.sample(sample);
}

bool Run::evaluation_due() const {
  const Impl& run = *impl_;
  return run.options.evaluates &&
         (run.step == run.options.total_steps ||
          run.agree("evaluation due", is_due(run.options.eval_every, run.step, run.last_evaluation)));
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
  run.write_line(metrics_line(report));
  const std::pair<std::string_view, double> values[] = {{"eval/loss", report.loss},
                                                        {"eval/perplexity", report.perplexity}};
  if (run.leads()) run.events->add_scalars(report.step, values);
  run.last_evaluation = Clock::now();
  run.observer.evaluation(report);
  for (const std::string& warning : run.monitor.after_evaluation(report)) run.observer.message(warning);
}

void Run::checkpoint_if_due(Optimizer& optimizer) {
  Impl& run = *impl_;
  for (const std::string& warning : run.monitor.after_update(run.step, run.lr, optimizer.parameters())) {
    run.observer.message(warning);
  }
  if (run.writer.done() || run.together) run.take_outcome(false);
  const bool asked = run.observer.stop();  // a signal may have reached one rank before the others
  const bool stop = run.ranks.size() == 1 ? asked : run.ranks.all_reduce_sum("stop", asked ? 1 : 0) > 0;
  if (run.last_step() || stop) {
    run.save_last(optimizer);
    if (run.last_step()) return;
    throw Interrupted(run.options.dir.string(), "stopped after step " + std::to_string(run.step) + ", checkpoint saved",
                      "run the same command to continue");
  }
  if (run.save_due()) run.begin_save(optimizer);
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
  run.load(best, optimizer);
  run.observer.message("exporting the weights of step " + std::to_string(state.best_step) +
                       ", which had the lowest evaluation loss");
  return state.best_step;
}

}  // namespace nibble
