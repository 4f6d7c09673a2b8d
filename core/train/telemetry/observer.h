#pragma once
// What a run reports while it goes. The library never prints; the command line and other programs set the calls they
// care about.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace nibble {

class Trace;

/// Names and values, in order.
using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// One optimizer step, as in metrics.jsonl.
struct StepReport {
  int64_t step = 0;         ///< from 1
  int64_t total_steps = 0;  ///< of the whole run
  double loss = 0;          ///< mean over label tokens, before this update
  double lr = 0;
  double grad_norm = 0;      ///< before clipping
  int64_t label_tokens = 0;  ///< tokens the loss is averaged over
  int64_t tokens = 0;        ///< all tokens of the step
  int64_t num_tokens = 0;    ///< of all steps so far; answers that several steps learn from count once
  double tokens_per_second = 0;
  int64_t peak_memory_bytes = 0;  ///< largest resident size of the process so far
  double seconds = 0;             ///< wall time of this step
  double share_of_peak = 0;       ///< arithmetic done over what the CPU could do in that time; 0: not known
  std::vector<int64_t> rank_peak_memory_bytes;  ///< of every rank, when there are several
  NamedNumbers metrics;                         ///< of the objective
};

/// One evaluation, after `step` updates.
struct EvaluationReport {
  int64_t step = 0;
  double loss = 0;
  double perplexity = 0;  ///< exp(loss); nan where the loss is not of next tokens
  int64_t label_tokens = 0;
  int64_t tokens = 0;
  double seconds = 0;
  bool best = false;     ///< lowest loss of the run so far
  NamedNumbers metrics;  ///< of the objective
};

/// What the model says, after `step` updates, to a prompt of the data.
struct SampleReport {
  int64_t step = 0;
  std::string prompt;
  std::string expected;  ///< how the data goes on
  std::string text;      ///< how the model goes on, greedily
};

/// How far something is that is under way between two steps.
struct WorkProgress {
  int64_t step = 0;  ///< that it belongs to
  std::string what;  ///< "evaluation", of batches; "drawing", of answers; "judging", of rewards to them
  int64_t done = 0;  ///< 0: it begins
  int64_t of = 0;
};

/// How a run meets a request to stop.
enum class StopPolicy {
  at_once,      ///< nothing would be lost (it loads or exports): the process may end as it is, see remove_unfinished()
  finish_step,  ///< stop_requested is looked at when the current step is done, which is then saved
  finish_save   ///< a finished step is only in memory: it is saved first, and is worth waiting for
};

/// Calls of a run, each optional. They are made on the thread that trains and may throw to end the run.
struct Observer {
  /// How a run starts: updates already done (0: from the beginning), and how many there will be.
  std::function<void(int64_t step, int64_t total_steps)> on_start;
  std::function<void(const StepReport&)> on_step;
  std::function<void(const EvaluationReport&)> on_evaluation;
  /// As they go on: before every batch of an evaluation, and where the step begins with answers that are drawn and
  /// judged.
  std::function<void(const WorkProgress&)> on_work;
  /// Before every on_step of a run that evaluates: the evaluations still to come, as so many tokens of training.
  std::function<void(int64_t tokens)> on_evaluations_ahead;
  std::function<void(const SampleReport&)> on_sample;
  /// A checkpoint was published at `path`.
  std::function<void(int64_t step, const std::string& path)> on_checkpoint;
  /// Something a user should know: a fallback, a skipped step, what is being done now. One line without newline.
  std::function<void(const std::string&)> on_message;
  /// A step or a save lasts very long: a line for people. The only call that is made on another thread, while the one
  /// that trains hangs.
  std::function<void(const std::string&)> on_stall;
  /// Asked after every step, and in evaluations before every batch, in samples after every token: whether to save a
  /// checkpoint and stop (a signal came).
  std::function<bool()> stop_requested;
  /// The policy from now on; at_once until the first call. May come from the thread that writes a checkpoint.
  std::function<void(StopPolicy)> on_stop_policy;
  /// Records where the time goes, if somebody asked for it.
  Trace* trace = nullptr;

  void start(int64_t step, int64_t total_steps) const {
    if (on_start) on_start(step, total_steps);
  }
  void step(const StepReport& report) const {
    if (on_step) on_step(report);
  }
  void evaluation(const EvaluationReport& report) const {
    if (on_evaluation) on_evaluation(report);
  }
  void work(const WorkProgress& progress) const {
    if (on_work) on_work(progress);
  }
  void evaluations_ahead(int64_t tokens) const {
    if (on_evaluations_ahead) on_evaluations_ahead(tokens);
  }
  void sample(const SampleReport& report) const {
    if (on_sample) on_sample(report);
  }
  void checkpoint(int64_t step, const std::string& path) const {
    if (on_checkpoint) on_checkpoint(step, path);
  }
  void message(const std::string& line) const {
    if (on_message) on_message(line);
  }
  void stop_policy(StopPolicy policy) const {
    if (on_stop_policy) on_stop_policy(policy);
  }
  bool stop() const { return stop_requested && stop_requested(); }
};

}  // namespace nibble
