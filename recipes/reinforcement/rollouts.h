#pragma once
// Answers, most with rewards, made before the steps that learn from them.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/models/decoder.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/core/train/step_executor.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/reinforcement/prompt_records.h"
#include "nibble/recipes/reinforcement/rewards.h"
#include "nibble/recipes/reinforcement/rollout.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble {

/// What a run does with rollouts beside learning from them.
struct RolloutRun {
  std::filesystem::path directory;        ///< step-N.jsonl of each block goes there; empty: nowhere
  std::function<bool()> stop;             ///< whether any rank is asked to stop; by all ranks
  std::function<void(std::string)> keep;  ///< what checkpoints have from now on, for restore()
};

/// Thrown by all ranks where a reward fails: the model is as the last step left it, and what was drawn is kept.
class RewardError : public Error {
 public:
  RewardError(const std::string& reason, int exit_code) : Error("", reason, ""), exit_code_(exit_code) {}
  int exit_code() const override { return exit_code_; }

 private:
  int exit_code_;
};

/// The blocks of answers of a run. With an executor that has a companion (PPO) that one says what answers are worth.
/// What is given must outlive this.
class Rollouts {
 public:
  /// teacher: of distillation; null on ranks without it. reference: see add_log_probs().
  Rollouts(const Recipe& recipe, const Decoder& model, TrainingData& data, const std::string& tokenizer,
           const Observer& observer, Decoder* teacher = nullptr, StepExecutor* reference = nullptr);

  /// What an interrupted run kept; "": nothing.
  void restore(const std::string& kept);
  /// Before `step`: sets the block that it computes on (TrainingData::set_block), which is made anew where the step is
  /// the first to use it. By all ranks. False where run.stop says so: what is there of the block is kept. Throws
  /// RewardError.
  bool prepare(int64_t step, StepExecutor& executor, const RolloutRun& run);

 private:
  enum class Source : uint8_t { student, teacher, data };
  /// Of the answers of a block.
  Source source_of(int64_t block) const;
  bool make(int64_t block, StepExecutor& executor, const RolloutRun& run);
  std::vector<Rollout> given(int64_t block) const;
  std::vector<Rollout> wanted(int64_t block) const;
  /// Adds what is missing of `all` to `done`, as far as nobody asks to stop.
  void sample(int64_t block, bool by_teacher, StepExecutor& executor, const std::vector<Rollout>& all,
              std::vector<Rollout>& done, const RolloutRun& run) const;
  /// False: somebody asked to stop meanwhile.
  bool judge(int64_t block, StepExecutor& executor);
  /// The first that learns from a block.
  int64_t first_step_of(int64_t block) const;
  bool has_end(const Rollout& rollout) const;
  bool is_masked(const Rollout& rollout) const;
  void add_estimates();
  void add_advantages();
  void warn_of_equal_rewards();
  /// As the steps see them. first: with the policy that wrote them, where the recipe does not say otherwise.
  std::vector<Sample> samples(bool first) const;

  const Recipe& recipe_;
  const Decoder& model_;
  TrainingData& data_;
  const Observer& observer_;
  Decoder* teacher_;
  StepExecutor* reference_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // null: ids only
  std::vector<int32_t> stop_ids_;
  bool draws_;                            // the answers are the model's own
  std::optional<PromptRecords> records_;  // of prompts whose answers have rewards
  std::optional<Rewards> rewards_;
  int64_t block_ = 0;  // number of the block that is there, whole or (kept by an interrupted run) in part
  bool whole_ = false;
  std::vector<Rollout> rollouts_;
  bool old_given_ = false;
  int64_t equal_blocks_ = 0;        // since the process began, in which no prompt had answers with different rewards
  bool warned_of_failure_ = false;  // whether it was warned of a command that failed (null_on_failure)
  bool all_level_ = false;          // the rewards to no prompt of the block differ
  Metrics metrics_;
};

}  // namespace nibble
