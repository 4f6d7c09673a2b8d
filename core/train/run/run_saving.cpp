// When a run saves, and what a save that fails costs.

#include <set>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/train/run/run_impl.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

namespace fs = std::filesystem;
using detail::Clock, detail::is_due, detail::seconds_since, detail::values_of;

namespace {

constexpr double kRetrySeconds = 60;  // after a checkpoint that failed

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

void Run::Impl::load(const fs::path& checkpoint, Optimizer& optimizer) const {
  load_checkpoint_tensors(checkpoint, with_others(reads(values_of(optimizer)), ranks),
                          with_others(reads(optimizer.state()), ranks));
}

bool Run::Impl::save_due() const {
  if (bad_steps.in_a_row() > 0) return false;  // what led to them may be in the weights already
  return agree("save due",
               is_due(options.save_every, step, last_save) || (failed && seconds_since(*failed) >= kRetrySeconds)) ||
         (options.keep_best && new_best);
}

void Run::Impl::set_policy(bool Impl::*what, bool value) {
  const std::lock_guard lock(policy_mutex);  // a save ends on its own thread
  this->*what = value;
  observer.stop_policy(unsaved || saving || unpublished ? StopPolicy::finish_save : StopPolicy::finish_step);
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
  set_policy(&Impl::saving, true);
  const auto ended = [this](bool published) {
    watchdog.end("saving");
    set_policy(&Impl::unpublished, !published);
    set_policy(&Impl::saving, false);
  };
  writer.start(
      state, writes(values_of(optimizer)), writes(optimizer.state()), [this] { metrics->sync(); }, ended, behind);
}

// Several ranks wait for one another while they write, so they do it here and not behind the training.
void Run::Impl::save_together(Optimizer& optimizer) {
  CheckpointWriter::Outcome outcome;
  outcome.step = step;
  try {
    if (leads()) metrics->sync();
    outcome.path =
        save_checkpoint(checkpoints(), state, writes(values_of(optimizer)), writes(optimizer.state()), ranks);
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    outcome.failure = error.what();
    outcome.exit_code = error.exit_code();
  }
  set_policy(&Impl::unpublished, !outcome.failure.empty());
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

void Run::checkpoint_if_due(Optimizer& optimizer) {
  Impl& run = *impl_;
  for (const std::string& warning : run.monitor.after_update(run.step, run.lr, optimizer.parameters())) {
    run.observer.message(warning);
  }
  if (run.writer.done() || run.together) run.take_outcome(false);
  run.state.unfinished = Unfinished::nothing;
  const bool stop = stop_asked();
  if (run.last_step()) return run.save_last(optimizer);
  if (stop) save_and_interrupt(optimizer, Unfinished::nothing);
  if (run.save_due()) run.begin_save(optimizer);
}

bool Run::stop_asked() const {
  const bool asked = impl_->observer.stop();  // a signal may have reached one rank before the others
  return impl_->ranks.size() == 1 ? asked : impl_->ranks.all_reduce_sum("stop", asked ? 1 : 0) > 0;
}

void Run::save_and_interrupt(Optimizer& optimizer, Unfinished rest) {
  Impl& run = *impl_;
  run.state.unfinished = rest;
  std::string where = "stopped before the first step";
  if (run.step > 0) {
    run.save_last(optimizer);
    where = "stopped after step " + std::to_string(run.step) + ", checkpoint saved";
  }
  throw Interrupted(run.options.dir.string(), where, "run the same command to continue");
}

}  // namespace nibble
