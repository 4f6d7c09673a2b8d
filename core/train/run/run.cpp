#include "nibble/core/train/run/run.h"

#include "nibble/core/base/error.h"
#include "nibble/core/comm/same_everywhere.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/temporary_name.h"
#include "nibble/core/train/checkpoint/checkpoint_room.h"
#include "nibble/core/train/run/run_impl.h"

namespace nibble {

namespace fs = std::filesystem;
using detail::Clock, detail::values_of;

namespace {

// The checkpoint that the first rank chose, read by all.
std::optional<FoundCheckpoint> share(const std::optional<FoundCheckpoint>& found, Communicator& ranks) {
  const std::string path = ranks.broadcast_text("open run", found ? found->path.string() : "", 0);
  if (ranks.rank() == 0 || path.empty()) return found;
  return FoundCheckpoint{path, read_checkpoint_state(path)};
}

}  // namespace

namespace detail {

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

}  // namespace detail

Run::Impl::Impl(const RunOptions& given, RankContext& rank, const Observer& watching)
    : options(given),
      observer(watching),
      ranks(rank.comm),
      watchdog(given.stall_seconds, watching.on_stall),
      writer(checkpoints(), rank.pool, [this] { return make_room(); }) {
  if (leads()) claim.emplace(given.dir);
}

Run::Run(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Run::Run(Run&&) noexcept = default;
Run& Run::operator=(Run&&) noexcept = default;
Run::~Run() = default;

Run Run::open(const RunOptions& options, RankContext& rank, const Observer& observer) {
  require_same_everywhere(rank.comm, options.settings);
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
int64_t Run::step() const { return impl_->step; }
const TrainingState& Run::state() const { return impl_->state; }

void Run::restore(Optimizer& optimizer) {
  Impl& run = *impl_;
  if (run.start) {
    run.load(run.start->path, optimizer);
    optimizer.set_updates(run.state.optimizer_updates);
  }
  const uint64_t bytes =
      checkpoint_bytes(run.state, run.writes(values_of(optimizer)), run.writes(optimizer.state()), run.ranks);
  if (run.leads()) {
    sweep_leftovers(run.options.dir);
    for (const fs::path& path : run_contents(run.options.dir)) sweep_leftovers(path);
    detail::clear_for(run.options, run.start);
    if (!run.last_step()) run.require_room(bytes);
    run.claim->keep();
    // metrics.jsonl before recipe.json: a directory with only a recipe.json is then not one of ours.
    run.metrics = std::make_unique<MetricsFile>(run.options.dir / "metrics.jsonl", run.step,
                                                run.state.unfinished != Unfinished::evaluation);
    run.events = std::make_unique<EventFile>(run.options.dir / "tensorboard", run.start ? run.step + 1 : 0);
    write_file_atomically(run.options.dir / "recipe.json", run.options.recipe);
  }
  run.last_save = run.last_evaluation = run.step_start = Clock::now();
  run.observer.start(run.step, run.options.total_steps);
}

void Run::keep_rollouts(std::string rollouts) { impl_->state.rollouts = std::move(rollouts); }

bool Run::goes_on() const { return !impl_->last_step(); }

bool Run::next_step() {
  Impl& run = *impl_;
  run.watchdog.end("training");
  run.set_policy(&Impl::unsaved, false);
  if (run.last_step()) return false;
  ++run.step;
  run.watchdog.begin("training", "step " + std::to_string(run.step));
  run.new_best = false;
  run.step_start = Clock::now();
  return true;
}

Trace* Run::trace() const { return impl_->observer.trace; }

void Run::set_work(const Work& work, double peak) {
  impl_->work = work;
  impl_->peak = peak;
}

int64_t Run::finish(Optimizer& optimizer) {
  Impl& run = *impl_;
  run.observer.stop_policy(StopPolicy::at_once);  // what follows can be done again
  const uint64_t result = run.bytes_of_all(run.writes(values_of(optimizer)));
  if (run.leads()) {
    while (free_bytes(run.options.dir) < result && run.make_room()) {
    }
    run.report_removed("what is exported");
  }
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
