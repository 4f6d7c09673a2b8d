#pragma once
// What a Run is made of. For run.cpp, run_saving.cpp and run_logging.cpp.

#include <chrono>
#include <mutex>
#include <optional>
#include <vector>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/train/checkpoint/checkpoint_writer.h"
#include "nibble/core/train/run/diagnostic.h"
#include "nibble/core/train/run/run.h"
#include "nibble/core/train/run/run_directory.h"
#include "nibble/core/train/run/watchdog.h"
#include "nibble/core/train/telemetry/event_file.h"
#include "nibble/core/train/telemetry/metrics.h"
#include "nibble/core/train/telemetry/training_monitor.h"

namespace nibble {

namespace detail {

using Clock = std::chrono::steady_clock;  // the wall clock may jump

double seconds_since(Clock::time_point start);
bool is_due(const Interval& interval, int64_t step, Clock::time_point last);
std::vector<NamedTensor> values_of(const Optimizer& optimizer);

}  // namespace detail

// Of several ranks the first one owns the directory and its files; checkpoints are written by all.
struct Run::Impl {
  RunOptions options;
  const Observer& observer;
  Communicator& ranks;
  std::optional<detail::Claim> claim;
  std::optional<FoundCheckpoint> start;
  Slicer reads = full_slices, writes = full_slices;
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
  bool has_updated = false;             // in a step of this process
  std::optional<int64_t> best_of_save;  // the best step that the save under way knows
  bool lines_wait = false;
  mutable std::mutex policy_mutex;
  bool unsaved = false, saving = false;             // a finished step in memory only; a checkpoint under way
  bool unpublished = false;                         // the last checkpoint failed: what it had is in memory only
  std::optional<detail::Clock::time_point> failed;  // when a checkpoint failed that no later one made good
  detail::Clock::time_point step_start, last_save, last_evaluation;
  Watchdog watchdog;
  std::vector<int64_t> removed;                       // checkpoints, to make room; not yet reported
  std::optional<CheckpointWriter::Outcome> together;  // of a save by several ranks
  CheckpointWriter writer;                            // last: it is done before the metrics close and the lock goes

  Impl(const RunOptions& given, RankContext& rank, const Observer& watching);

  std::filesystem::path checkpoints() const { return options.dir / "checkpoints"; }
  bool stopped_early() const { return options.early_stop > 0 && state.evaluations_since_best >= options.early_stop; }
  bool last_step() const { return step >= options.total_steps || stopped_early(); }
  bool leads() const { return ranks.rank() == 0; }
  /// What the first rank says, on all ranks.
  bool agree(const char* on, bool mine) const {
    return ranks.size() == 1 ? mine : ranks.all_reduce_sum(on, leads() && mine ? 1 : 0) > 0;
  }
  bool save_due() const;
  /// Sets `what`, one of the three, and gives the observer the policy that follows from them.
  void set_policy(bool Impl::*what, bool value);
  void load(const std::filesystem::path& checkpoint, Optimizer& optimizer) const;
  /// Bytes of slices that all ranks write.
  uint64_t bytes_of_all(const std::vector<CheckpointSlice>& slices) const;
  /// Throws IoError where there is no space for checkpoints of `bytes`; warns where there is for fewer than asked.
  void require_room(uint64_t bytes) const;
  /// Removes a checkpoint that the run can do without; false where there is none. On the thread that saves.
  bool make_room();
  /// Tells what make_room() removed, for `what`.
  void report_removed(const std::string& what);
  void save_together(Optimizer& optimizer);
  void write_line(const std::string& line);
  /// behind: training goes on meanwhile, see CheckpointWriter::start.
  void begin_save(Optimizer& optimizer, bool behind = true);
  bool take_outcome(bool is_last);
  void save_last(Optimizer& optimizer);
  /// Throws Interrupted for a run that has saved its step.
  [[noreturn]] void interrupt() const;
};

}  // namespace nibble
