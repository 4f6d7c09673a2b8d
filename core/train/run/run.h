#pragma once
// A run: one output directory, its lock, its metrics and checkpoints, where it stands and when it ends.

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/train/checkpoint/checkpoint.h"
#include "nibble/core/train/evaluate.h"
#include "nibble/core/train/optimizer.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/core/train/train_step.h"

namespace nibble {

/// Floating point operations of training, for shares of the peak: lower bounds.
struct Work {
  double per_token = 0;
  double per_label_token = 0;  ///< of the head, which runs for tokens with a label only
};

/// How often something happens: every so many steps, every so many seconds, or (both 0) never.
struct Interval {
  int64_t steps = 0;
  double seconds = 0;
};

struct RunOptions {
  std::filesystem::path dir;
  /// "auto": continue from the newest valid checkpoint if there is one; "never": start at the beginning; else the path
  /// of a checkpoint to continue from.
  std::string resume = "auto";
  /// Start over where a run exists (resume "never" or another run's checkpoint), or continue although settings changed.
  bool force = false;
  int keep_last = 2;
  bool keep_best = false;  ///< save at every new lowest evaluation loss and keep that checkpoint
  Interval save_every{0, 600};
  bool evaluates = false;  ///< whether there is evaluation data; then an evaluation is due after the last step
  Interval eval_every;
  int64_t log_every = 1;       ///< steps between lines of metrics.jsonl
  int64_t answer_bytes = 0;    ///< that a step's answers take in rollouts/, at most
  int64_t early_stop = 0;      ///< stop after so many evaluations without a new lowest loss; 0: never
  double stall_seconds = 600;  ///< a step or a save that lasts longer is reported (Observer::on_stall); 0: never
  int64_t max_bad_steps = 3;   ///< end at so many steps in a row whose loss or gradient is not finite
  int64_t total_steps = 0;
  std::string recipe;  ///< the resolved recipe, JSON text: written to recipe.json and every checkpoint
  /// What must be equal when a run continues, name -> JSON text (TrainingState::settings).
  std::map<std::string, std::string> settings;
};

/// What a run writes into its directory, but for the page about it and the tokenizer that pretraining made.
/// metrics.jsonl, which says that there is a run, comes last.
std::vector<std::filesystem::path> run_contents(const std::filesystem::path& dir);

/// Where this rank's shards lie in the global tensors: what the optimizer holds -> slices for checkpoints.
using Slicer = std::function<std::vector<CheckpointSlice>(const std::vector<NamedTensor>& tensors)>;

/// Single owner of an output directory. With several ranks all of them make the same calls: the first one owns the
/// directory and the metrics, decisions by the clock are its own, checkpoints are written together, and a stop that one
/// rank is asked for stops all. The order of calls in a recipe:
///
///   Run run = Run::open(options, rank, observer);
///   ... make the model and the optimizer ...
///   run.restore(optimizer);
///   while (run.next_step()) {
///     const StepResult result = train_step(...run.step()...);
///     run.log(result, lr);
///     if (run.evaluation_due()) run.log(evaluate(...));
///     run.checkpoint_if_due(optimizer);
///   }
///   run.finish(optimizer);
///   ... write the adapter or the model into run.dir() ...
class Run {
 public:
  /// Creates, probes and locks the directory and finds the checkpoint to continue from. Nothing else is changed before
  /// restore(); a directory that was made is taken away again when the run ends before that. Throws
  /// - UsageError: the directory is in use by another process; it has a run and resume is "never"; it has results but
  ///   no checkpoint; settings differ from the checkpoint's (all differences are listed). options.force allows all of
  ///   these but the first;
  /// - InputError: no checkpoint verifies, or the named one does not; IoError: the directory cannot be written.
  static Run open(const RunOptions& options, RankContext& rank, const Observer& observer);

  Run(Run&&) noexcept;
  Run& operator=(Run&&) noexcept;
  ~Run();

  const std::filesystem::path& dir() const;
  /// Before restore(): how this rank's tensors are sharded when they are read and when they are written (without it
  /// they are global). What several ranks have, one of them writes.
  void set_slicers(Slicer reads, Slicer writes);

  /// Fills parameters and optimizer state from the checkpoint, if the run continues from one. Then begins the run:
  /// removes what it replaces and what interrupted saves left, checks the space for checkpoints (room for fewer than
  /// keep_last is warned of), cuts metrics.jsonl after the checkpoint's step and writes recipe.json. Throws InputError
  /// where the checkpoint does not fit, IoError where there is no space for one, or for the next of several beside it.
  void restore(Optimizer& optimizer);

  /// Whether next_step() will.
  bool goes_on() const;
  /// Advances to the next step; false when all steps are done, or the run was stopped early.
  bool next_step();
  /// Number of the current step, from 1.
  int64_t step() const;
  /// Writes the step's line to metrics.jsonl (every log_every steps, and the last) and calls the observer, with what
  /// TrainingMonitor finds. A step that is not finite was skipped and is reported; the max_bad_steps-th in a row leaves
  /// diagnostic.json and throws NumericError.
  void log(const StepResult& result, double lr);

  /// The observer's, may be null.
  Trace* trace() const;

  /// What a step's share of the peak is computed from: the work of its tokens and what the CPU could do (floating point
  /// operations per second, see peak_flops). Without it, shares are 0.
  void set_work(const Work& work, double peak);

  bool evaluation_due() const;
  /// Call before batch `batch` of `batches` (from 0) of an evaluation: calls the observer. False: save_and_interrupt().
  bool evaluating(int64_t batch, int64_t batches) const;
  /// What checkpoints keep from now on (TrainingState::rollouts).
  void keep_rollouts(std::string rollouts);
  /// Whether the observer of any rank asks to stop.
  bool stop_requested() const;
  /// Saves the current step, if there was one, whose `rest` is still to be done when the run goes on. By all ranks.
  void save(Optimizer& optimizer, Unfinished rest);
  /// The same, and throws Interrupted.
  [[noreturn]] void save_and_interrupt(Optimizer& optimizer, Unfinished rest);
  /// Writes the evaluation's line, updates best loss and early stop. Call before checkpoint_if_due.
  void log(const Evaluation& evaluation);

  /// Writes the text to samples.jsonl and calls the observer. seconds: wall time, its share where several were made
  /// together.
  void log(const SampleReport& sample, double seconds);

  /// Saves when an interval has passed, at a new best (keep_best), and after the last step. The writing goes on while
  /// training does (CheckpointWriter); the last one is waited for. Without space it takes that of the oldest
  /// checkpoints, never of the newest or the best. One that fails is reported and tried again a minute later. When the
  /// observer asks to stop: saves and throws Interrupted. Throws IoError when the last one fails.
  void checkpoint_if_due(Optimizer& optimizer);

  /// With keep_best, puts the parameters of the best checkpoint back, so that they are what is exported.
  /// Returns the step whose parameters the optimizer's parameters now are.
  int64_t finish(Optimizer& optimizer);

  /// Where this run stands.
  const TrainingState& state() const;

 private:
  struct Impl;
  explicit Run(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
