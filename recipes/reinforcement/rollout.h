#pragma once
// An answer to a prompt, and its form in files.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "nibble/core/models/batch.h"

namespace nibble {

struct Rollout {
  int64_t position = 0;  ///< in its block: answers to one prompt, one after another
  int64_t sequence = 0;  ///< keys its sampling
  uint32_t record = 0;   ///< of the prompt
  std::vector<int32_t> prompt, answer;
  std::vector<float> sampled;  ///< log-probabilities of the answer's tokens as they were drawn; empty: given
  std::vector<float> old,
      reference;                ///< the same by training's forward pass, and by the reference; empty: not asked for
  std::vector<double> rewards;  ///< of each function; nan: nothing to say
  double reward = std::numeric_limits<double>::quiet_NaN();  ///< their sum by weight
  bool truncated = false;                                    ///< it has no end
  double advantage = 0;
  /// PPO, by position: what the value model says of it [tokens + 1], and the rest of PpoEstimates.
  std::vector<float> values;
  std::vector<double> token_rewards, returns, advantages;
};

/// Prompt and answer, whose tokens have labels.
Sample text_of(const Rollout& rollout);

/// A line of JSON for each: prompt_ids, completion_ids, reward, truncated and, where they are there, logprobs,
/// old_logprobs, ref_logprobs, rewards (by `names`), advantage (or values, token_rewards, returns, advantages). What is
/// read again is what was written.
std::string write_rollouts(const std::vector<Rollout>& rollouts, const std::vector<std::string>& names,
                           const std::vector<std::pair<std::string, std::string>>& texts);
/// texts: prompt and completion of each, for people; empty: left out.
std::vector<Rollout> read_rollouts(const std::string& lines, const std::vector<std::string>& names);

}  // namespace nibble
