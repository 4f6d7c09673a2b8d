#include "nibble/core/objectives/advantages.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {

namespace {

constexpr double kSmall = 1e-4;  // beside standard deviations, as TRL has it

// What answers are compared by.
std::vector<double> compared(const ObjectiveOptions& options, std::span<const ScoredAnswer> answers) {
  std::vector<double> rewards;
  for (const ScoredAnswer& answer : answers) {
    double reward = answer.reward;
    if (options.type == ObjectiveType::rloo) {
      if (options.reward_clip_range && !std::isnan(reward)) {
        reward = std::clamp(reward, options.reward_clip_range->first, options.reward_clip_range->second);
      }
      reward -= options.beta * answer.kl;
    }
    rewards.push_back(reward);
  }
  return rewards;
}

// Calls use(values of a group, place of its first).
template <typename Use>
void each_group(const ObjectiveOptions& options, const std::vector<double>& values, const Use& use) {
  const auto size = static_cast<size_t>(options.rollout.completions);
  for (size_t begin = 0; begin < values.size(); begin += size) {
    use(std::span(values).subspan(begin, std::min(size, values.size() - begin)), begin);
  }
}

// A nan deviation is that of a single value.
double divisor(double std) { return (std::isnan(std) ? 0 : std) + kSmall; }

bool has_zero_std(const Spread& group) { return std::abs(group.std) <= 1e-8; }

// The share of groups that `counts` is true of.
template <typename Counts>
double share_of_groups(const ObjectiveOptions& options, std::span<const ScoredAnswer> answers, const Counts& counts) {
  double groups = 0, counted = 0;
  each_group(options, compared(options, answers), [&](std::span<const double> group, size_t) {
    ++groups;
    counted += counts(spread_of(group));
  });
  return counted / groups;
}

}  // namespace

Spread spread_of(std::span<const double> values) {
  Spread spread;
  double sum = 0, squares = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    ++spread.count;
  }
  spread.mean = sum / spread.count;
  for (const double value : values) {
    if (!std::isnan(value)) squares += (value - spread.mean) * (value - spread.mean);
  }
  spread.std = spread.count > 1 ? std::sqrt(squares / (spread.count - 1)) : std::numeric_limits<double>::quiet_NaN();
  return spread;
}

bool has_no_advantages(const Spread& group) { return std::isnan(group.std) || has_zero_std(group); }

std::vector<double> advantages(const ObjectiveOptions& options, std::span<const ScoredAnswer> answers) {
  const std::vector<double> rewards = compared(options, answers);
  const bool leave_one_out = options.type == ObjectiveType::rloo;
  const double all = divisor(spread_of(rewards).std);
  std::vector<double> found(rewards.size(), std::numeric_limits<double>::quiet_NaN());
  each_group(options, rewards, [&](std::span<const double> group, size_t begin) {
    const Spread spread = spread_of(group);
    if (spread.count < 2) return;
    for (size_t i = 0; i < group.size(); ++i) {
      if (std::isnan(group[i])) continue;
      double& advantage = found[begin + i];
      advantage = group[i] - spread.mean;
      if (leave_one_out) {
        advantage *= spread.count / (spread.count - 1);
      } else if (options.scale_rewards != ScaleRewards::none) {
        advantage /= options.scale_rewards == ScaleRewards::group ? divisor(spread.std) : all;
      }
    }
  });
  if (leave_one_out && options.normalize_advantages) {
    const Spread spread = spread_of(found);
    for (double& advantage : found) advantage = (advantage - spread.mean) / divisor(spread.std);
  }
  std::ranges::replace_if(
      found, [](double advantage) { return std::isnan(advantage); }, 0.0);
  return found;
}

double level_share(const ObjectiveOptions& options, std::span<const ScoredAnswer> answers) {
  return share_of_groups(options, answers, has_no_advantages);
}

Metrics answer_metrics(const ObjectiveOptions& options, std::span<const ScoredAnswer> answers) {
  std::vector<double> rewards, lengths, ended;
  double kl = 0, tokens = 0;
  for (const ScoredAnswer& answer : answers) {
    rewards.push_back(answer.reward);
    lengths.push_back(answer.tokens);
    if (!answer.truncated) ended.push_back(answer.tokens);
    kl += answer.kl;
    if (!answer.masked) tokens += answer.tokens;
  }
  const Spread spread = spread_of(rewards);
  Metrics found = {{"reward", spread.mean}, {"reward_std", spread.std}};
  const bool compares =
      has_rewards(options.type) && (options.type != ObjectiveType::ppo || options.rollout.completions > 1);
  const bool together = options.type == ObjectiveType::grpo && options.scale_rewards == ScaleRewards::batch;
  if (compares) {
    found.emplace_back("frac_reward_zero_std",
                       together ? (has_zero_std(spread) ? 1 : 0) : share_of_groups(options, answers, has_zero_std));
  }
  const double cut = static_cast<double>(lengths.size() - ended.size());
  if (ended.empty()) ended = {0};
  const auto add_lengths = [&](const std::string& name, const std::vector<double>& of) {
    found.emplace_back("completions/mean_" + name, spread_of(of).mean);
    found.emplace_back("completions/min_" + name, std::ranges::min(of));
    found.emplace_back("completions/max_" + name, std::ranges::max(of));
  };
  add_lengths("length", lengths);
  add_lengths("terminated_length", ended);
  found.emplace_back("completions/clipped_ratio", cut / static_cast<double>(lengths.size()));
  if (options.type == ObjectiveType::rloo && options.beta != 0) found.emplace_back("kl", kl / std::max(tokens, 1.0));
  std::erase_if(found, [](const auto& metric) { return std::isnan(metric.second); });
  return found;
}

}  // namespace nibble
