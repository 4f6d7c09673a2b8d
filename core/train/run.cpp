#include "nibble/core/train/run.h"

#include <cmath>
#include <set>
#include <sstream>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/io/atomic_file.h"
#include "nibble/core/io/directory_lock.h"
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

}  // namespace

struct Run::Impl {
  RunOptions options;
  const Observer& observer;
  Communicator& ranks;
  Slicer reads = whole_slices, writes = whole_slices;
  std::unique_ptr<DirectoryLock> lock;
  std::optional<fs::path> resumed_from;
  std::unique_ptr<MetricsFile> metrics;
  TrainingState state;
  int64_t step = 0;
  bool new_best = false;
  Clock::time_point step_start, last_save, last_evaluation;

  fs::path checkpoints() const { return options.dir / "checkpoints"; }
  bool stopped_early() const { return options.early_stop > 0 && state.evaluations_since_best >= options.early_stop; }
  bool last_step() const { return step >= options.total_steps || stopped_early(); }
  bool leads() const { return ranks.rank() == 0; }
  /// What the first rank says, on all ranks.
  bool agree(const char* on, bool mine) const {
    return ranks.size() == 1 ? mine : ranks.all_reduce_sum(on, leads() && mine ? 1 : 0) > 0;
  }
  void load(const fs::path& checkpoint, Optimizer& optimizer) const {
    load_checkpoint_tensors(checkpoint, with_others(reads(values_of(optimizer)), ranks),
                            with_others(reads(optimizer.state()), ranks));
  }
  void save(Optimizer& optimizer);
  void save_or_warn(Optimizer& optimizer);
};

void Run::Impl::save(Optimizer& optimizer) {
  state.step = step;
  state.optimizer_updates = optimizer.updates();
  if (leads()) metrics->sync();
  const fs::path saved =
      save_checkpoint(checkpoints(), state, writes(values_of(optimizer)), writes(optimizer.state()), ranks);
  last_save = Clock::now();
  if (!leads()) return;
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

namespace {

// The checkpoint that the first rank chose, read by all.
std::optional<FoundCheckpoint> share(const std::optional<FoundCheckpoint>& found, Communicator& ranks) {
  const std::string path = ranks.broadcast_text("open run", found ? found->path.string() : "", 0);
  if (ranks.rank() == 0 || path.empty()) return found;
  return FoundCheckpoint{path, read_checkpoint_state(path)};
}

}  // namespace

Run Run::open(const RunOptions& options, RankContext& rank, const Observer& observer) {
  auto impl = std::make_unique<Impl>(Impl{options, observer, rank.comm});
  std::optional<FoundCheckpoint> found;
  if (impl->leads()) {
    impl->lock = detail::claim_directory(options.dir);
    found = detail::choose_start(options, observer);
    if (found) detail::compare_settings(options, found->state, observer);
  }
  found = share(found, rank.comm);
  if (found) {
    impl->resumed_from = found->path;
    impl->state = found->state;
  }
  if (impl->state.step > options.total_steps) {
    throw UsageError("the checkpoint is at step " + std::to_string(impl->state.step) + ", the recipe ends at " +
                         std::to_string(options.total_steps),
                     "set train.steps to more, or choose another output.dir", options.dir.string());
  }
  impl->state.settings = options.settings;
  impl->state.recipe = options.recipe;
  impl->step = impl->state.step;
  if (impl->leads()) {
    detail::clear_for(options, found);
    // metrics.jsonl before recipe.json: a directory with only a recipe.json is then not one of ours.
    impl->metrics = std::make_unique<MetricsFile>(options.dir / "metrics.jsonl", impl->step);
    write_file_atomically(options.dir / "recipe.json", options.recipe);
  }
  return Run(std::move(impl));
}

void Run::set_slicers(Slicer reads, Slicer writes) {
  impl_->reads = std::move(reads);
  impl_->writes = std::move(writes);
}

const fs::path& Run::dir() const { return impl_->options.dir; }
std::optional<fs::path> Run::resumed_from() const { return impl_->resumed_from; }
int64_t Run::step() const { return impl_->step; }
const TrainingState& Run::state() const { return impl_->state; }

void Run::restore(Optimizer& optimizer) {
  Impl& run = *impl_;
  if (run.resumed_from) {
    run.load(*run.resumed_from, optimizer);
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
  if (run.ranks.size() > 1) report.rank_peak_memory_bytes = of_every_rank(report.peak_memory_bytes, run.ranks);
  if (run.leads() && (run.step % run.options.log_every == 0 || run.step == run.options.total_steps)) {
    run.metrics->append(metrics_line(report));
  }
  run.observer.step(report);
  run.step_start = Clock::now();  // an evaluation may follow
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
  if (run.leads()) run.metrics->append(metrics_line(report));
  run.last_evaluation = Clock::now();
  run.observer.evaluation(report);
}

void Run::checkpoint_if_due(Optimizer& optimizer) {
  Impl& run = *impl_;
  const bool asked = run.observer.stop();  // a signal may have reached one rank before the others
  const bool stop = run.ranks.size() == 1 ? asked : run.ranks.all_reduce_sum("stop", asked ? 1 : 0) > 0;
  if (run.last_step() || stop) {
    run.save(optimizer);
    if (run.last_step()) return;
    throw Interrupted(run.options.dir.string(), "stopped after step " + std::to_string(run.step) + ", checkpoint saved",
                      "run the same command to continue");
  }
  if (run.agree("save due", is_due(run.options.save_every, run.step, run.last_save)) ||
      (run.options.keep_best && run.new_best)) {
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
  run.load(best, optimizer);
  run.observer.message("exporting the weights of step " + std::to_string(state.best_step) +
                       ", which had the lowest evaluation loss");
  return state.best_step;
}

}  // namespace nibble
