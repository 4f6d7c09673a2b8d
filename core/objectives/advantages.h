#pragma once
// How much better the answers to a prompt are than others to it, from their rewards.

#include <span>
#include <vector>

#include "nibble/core/objectives/options.h"

namespace nibble {

/// An answer among those of a step.
struct ScoredAnswer {
  double reward = 0;  ///< nan: no reward function had anything to say
  double kl = 0;      ///< sum over its tokens of the log-ratio of old policy and reference (rloo with beta)
  double tokens = 0;
  bool truncated = false;  ///< it has no end
  bool masked = false;     ///< and so carries no loss (mask_truncated_completions): its `kl` is 0
};

/// By answer; `answers` are options.rollout.completions to each prompt, one group after another. grpo: (R - mean) /
/// (std
/// + 1e-4), std (with n - 1) of the group or the step, or not divided. rloo: R clipped to reward_clip_range, minus beta
/// times the KL, minus the mean of the others of its group; then (A - mean) / (std + 1e-4) if normalize_advantages.
/// Answers without a reward have 0 and do not count for the others, nor does one that has nobody to compare with.
std::vector<double> advantages(const ObjectiveOptions& options, std::span<const ScoredAnswer> answers);

/// reward, reward_std, frac_reward_zero_std (of rloo, of what it compares; where scale_rewards is batch, 1 or 0:
/// whether all rewards are the same), completions/*, and kl of rloo.
Metrics answer_metrics(const ObjectiveOptions& options, std::span<const ScoredAnswer> answers);

/// Mean and standard deviation (with n - 1; nan below 2 values) of the values that are no nan.
struct Spread {
  double count = 0, mean = 0, std = 0;
};
Spread spread_of(std::span<const double> values);

/// Whether no answer to a prompt is better than another: their rewards are equal, or less than two.
bool has_no_advantages(const Spread& group);
/// The share of prompts whose answers have none. (frac_reward_zero_std, as TRL's, leaves out those with less than two
/// rewards.)
double level_share(const ObjectiveOptions& options, std::span<const ScoredAnswer> answers);

}  // namespace nibble
