#pragma once
// What a run left in its directory, read back: metrics.jsonl, samples.jsonl, run.json, recipe.json.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

/// An answer that the run drew and learned from.
struct AnswerReport {
  int64_t step = 0;  ///< the first that used it
  std::string prompt, completion;
  double reward = 0;
};

struct RunLog {
  std::filesystem::path directory;
  std::vector<StepReport> steps;              ///< lines with "split":"train"; total_steps is not in them
  std::vector<EvaluationReport> evaluations;  ///< lines with "split":"eval"; best is set on the lowest
  std::vector<SampleReport> samples;
  double sample_seconds = 0;  ///< wall time of all of them
  std::string recipe;         ///< JSON text, "" where there is none
  std::string facts;          ///< run.json, "" where there is none
};

/// Throws InputError when the directory holds no run, or a line of metrics.jsonl is no metric (a torn last line, of a
/// run that was killed or is still writing, is left out).
RunLog read_run_log(const std::filesystem::path& directory);

struct DrawnAnswers {
  int64_t steps = 0;  ///< that have a file in rollouts/
  /// Of each of them; where there are more than 200, of 200 of them, the first and the last among these.
  std::vector<std::pair<AnswerReport, AnswerReport>> best_and_worst;
};

/// From rollouts/, which may be large. Throws as read_run_log() does.
DrawnAnswers read_answers(const std::filesystem::path& directory);

/// A run in numbers.
struct RunSummary {
  int64_t steps = 0;
  int64_t tokens = 0;
  double loss = 0;                                       ///< mean over the label tokens of the last tenth of the steps
  double best_evaluation_loss = 0, best_perplexity = 0;  ///< perplexity: nan where the loss has none
  int64_t best_step = 0;                                 ///< 0: there was no evaluation
  NamedNumbers headline;         ///< of the best evaluation, or without one the means over the last tenth of the steps
  double tokens_per_second = 0;  ///< by wall_seconds() of the steps
  double seconds = 0;            ///< the same, and of evaluations and samples
  bool estimated = false;  ///< not every step has a line: tokens and seconds of the others are taken to be the same
  int64_t peak_memory_bytes = 0;
};

RunSummary summarize(const RunLog& log);

/// Keys whose values differ between the recipes of `logs`: key, then the value in each ("" where absent), in order.
/// Keys of `output` are left out.
std::vector<std::vector<std::string>> recipe_differences(const std::vector<RunLog>& logs);

}  // namespace nibble
