// When a run saves, and what a save that fails costs.

#include <set>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/train/checkpoint/checkpoint_room.h"
#include "nibble/core/train/run/run_impl.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

namespace fs = std::filesystem;
using detail::Clock, detail::is_due, detail::seconds_since, detail::values_of;

namespace {

constexpr double kRetrySeconds = 60;  // after a checkpoint that failed

// Bytes of the lines of `steps` steps in metrics.jsonl and in TensorBoard's file. What evaluations, samples and the
// metrics of objectives take comes on top.
uint64_t log_bytes(int64_t steps, int64_t log_every) {
  constexpr int64_t kStepBytes = 480;
  return static_cast<uint64_t>(kStepBytes * (steps / std::max<int64_t>(log_every, 1)));
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

void Run::Impl::load(const fs::path& checkpoint, Optimizer& optimizer) const {
  load_checkpoint_tensors(checkpoint, with_others(reads(values_of(optimizer)), ranks),
                          with_others(reads(optimizer.state()), ranks));
}

uint64_t Run::Impl::bytes_of_all(const std::vector<CheckpointSlice>& slices) const {
  const uint64_t mine = bytes_of(slices);
  if (ranks.size() == 1) return mine;
  return static_cast<uint64_t>(ranks.all_reduce_sum("bytes of a checkpoint", static_cast<double>(mine)));
}

// The result takes the place that the next checkpoint would.
void Run::Impl::require_room(uint64_t bytes) const {
  const auto held = static_cast<int64_t>(checkpoint_steps(checkpoints()).size());
  const int64_t every = options.save_every.steps, left = options.total_steps - step;
  const int64_t coming = every > 0 ? (left + every - 1) / every : 1;  // saves that are certain
  const int64_t stay = options.keep_best && state.best_loss && state.best_step != step ? 2 : 1;
  if (held <= stay) {
    const bool next_too = held == 0 && coming > 1;
    const uint64_t first_blocks = held == 0 ? 3 * kDiskBlock : 0;  // of recipe.json and the logs
    const uint64_t logs = log_bytes(std::min(left, (next_too ? 2 : 1) * every), options.log_every);
    require_free_bytes(options.dir, bytes * (next_too ? 2 : 1) + logs + first_blocks,
                       next_too ? "this run's first two checkpoints" : "a checkpoint of this run");
  }
  int64_t wanted = options.keep_last + (options.keep_best ? 2 : 1);
  if (options.save_every.seconds <= 0 && !options.keep_best) wanted = std::min(wanted, held + coming);
  const uint64_t answers = static_cast<uint64_t>(left * options.answer_bytes), free = free_bytes(options.dir);
  const uint64_t logs = log_bytes(left, options.log_every) + answers;
  const int64_t room = held + static_cast<int64_t>((free - std::min(free, logs)) / bytes);
  if (room >= wanted) return;
  const bool fails = room < std::min(stay + 1, held + coming);  // the newest never makes room
  observer.message("warning: " + options.dir.string() + " has room for " + count_text(room, "checkpoint") +
                   " of this run, each of " + bytes_text(static_cast<double>(bytes)) + ", beside " +
                   bytes_text(static_cast<double>(logs)) +
                   (answers > 0 ? " of metrics and answers; output.keep_last=" : " of metrics; output.keep_last=") +
                   std::to_string(options.keep_last) +
                   (options.keep_best ? " and output.keep_best=true need " : " needs ") + std::to_string(wanted) +
                   ", one of them while it is written: " +
                   (fails ? "later saves fail as the metrics grow; free space, or raise train.log_every"
                          : "where a save finds no space, the oldest goes first"));
}

bool Run::Impl::make_room() {
  try {
    const auto oldest = remove_oldest_checkpoint(checkpoints(), options.keep_best);
    if (oldest) removed.push_back(*oldest);
    return oldest.has_value();
  } catch (const Error&) {  // the user is told that there was no space
    return false;
  }
}

void Run::Impl::report_removed(const std::string& what) {
  for (const int64_t gone : std::exchange(removed, {})) {
    observer.message("warning: no space for " + what + ": checkpoint " + checkpoint_name(gone) +
                     " was removed, earlier than output.keep_last says");
  }
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
    const auto save = [&, values = writes(values_of(optimizer)), moments = writes(optimizer.state())] {
      write_together(ranks, [&] {
        if (leads()) metrics->sync();
      });
      return save_checkpoint(checkpoints(), state, values, moments, ranks);
    };
    outcome.path = save_in_room(save, [&] { return agree("room for a checkpoint", leads() && make_room()); });
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
  report_removed(checkpoint_name(outcome.step));
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

void Run::Impl::interrupt() const {
  const std::string where =
      step > 0 ? "stopped after step " + std::to_string(step) + ", checkpoint saved" : "stopped before the first step";
  throw Interrupted(options.dir.string(), where, "run the same command to continue");
}

void Run::checkpoint_if_due(Optimizer& optimizer) {
  Impl& run = *impl_;
  for (const std::string& warning : run.monitor.after_update(run.step, run.lr, optimizer.parameters())) {
    run.observer.message(warning);
  }
  if (run.writer.done() || run.together) run.take_outcome(false);
  run.state.unfinished = Unfinished::nothing;
  const bool stop = stop_requested();
  if (run.last_step()) return run.save_last(optimizer);
  if (stop) save_and_interrupt(optimizer, Unfinished::nothing);
  if (!run.save_due()) return;
  run.begin_save(optimizer);
  if (!stop_requested()) return;  // asked for meanwhile: no step was begun
  run.take_outcome(true);
  run.interrupt();
}

bool Run::stop_requested() const {
  const bool asked = impl_->observer.stop();  // a signal may have reached one rank before the others
  return impl_->ranks.size() == 1 ? asked : impl_->ranks.all_reduce_sum("stop", asked ? 1 : 0) > 0;
}

void Run::save(Optimizer& optimizer, Unfinished rest) {
  impl_->state.unfinished = rest;
  if (impl_->step > 0) impl_->save_last(optimizer);
}

void Run::save_and_interrupt(Optimizer& optimizer, Unfinished rest) {
  save(optimizer, rest);
  impl_->interrupt();
}

}  // namespace nibble
