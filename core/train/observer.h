#pragma once
// What a run tells whoever watches it. The library never prints; the command line and other programs set the calls they
// care about.

#include <cstdint>
#include <functional>
#include <string>

namespace nibble {

class Trace;

/// One optimizer step, as in metrics.jsonl.
struct StepReport {
  int64_t step = 0;         ///< from 1
  int64_t total_steps = 0;  ///< of the whole run
  double loss = 0;          ///< mean over label tokens, before this update
  double lr = 0;
  double grad_norm = 0;      ///< before clipping
  int64_t label_tokens = 0;  ///< tokens the loss is averaged over
  int64_t tokens = 0;        ///< all tokens of the step
  double tokens_per_second = 0;
  int64_t peak_memory_bytes = 0;  ///< largest resident size of the process so far
  double seconds = 0;             ///< wall time of this step
  double share_of_peak = 0;       ///< arithmetic done over what the CPU could do in that time; 0: not known
};

/// One evaluation, after `step` updates.
struct EvaluationReport {
  int64_t step = 0;
  double loss = 0;
  double perplexity = 0;  ///< exp(loss)
  int64_t label_tokens = 0;
  int64_t tokens = 0;
  double seconds = 0;
  bool best = false;  ///< lowest loss of the run so far
};

/// What the model says, after `step` updates, to a prompt of the data.
struct SampleReport {
  int64_t step = 0;
  std::string prompt;
  std::string expected;  ///< how the data goes on
  std::string text;      ///< how the model goes on, greedily
};

/// Calls of a run, each optional. They are made on the thread that trains and may throw to end the run.
struct Observer {
  /// How a run starts: updates already done (0: from the beginning), and how many there will be.
  std::function<void(int64_t step, int64_t total_steps)> on_start;
  std::function<void(const StepReport&)> on_step;
  std::function<void(const EvaluationReport&)> on_evaluation;
  std::function<void(const SampleReport&)> on_sample;
  /// A checkpoint was published at `path`.
  std::function<void(int64_t step, const std::string& path)> on_checkpoint;
  /// Something a user should know: a fallback, a skipped step, what is being done now. One line without newline.
  std::function<void(const std::string&)> on_message;
  /// Asked after every step: whether to save a checkpoint and stop (a signal came).
  std::function<bool()> stop_requested;
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
  void sample(const SampleReport& report) const {
    if (on_sample) on_sample(report);
  }
  void checkpoint(int64_t step, const std::string& path) const {
    if (on_checkpoint) on_checkpoint(step, path);
  }
  void message(const std::string& line) const {
    if (on_message) on_message(line);
  }
  bool stop() const { return stop_requested && stop_requested(); }
};

}  // namespace nibble
