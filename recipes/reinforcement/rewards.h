#pragma once
// The recipe's list `rewards`: functions of answers that say how good they are.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nibble/core/text/matching/python_regex.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/reinforcement/command_reward.h"
#include "nibble/recipes/reinforcement/model_reward.h"
#include "nibble/recipes/reinforcement/prompt_records.h"

namespace nibble {

/// What a reward sees of an answer.
struct JudgedAnswer {
  std::string prompt, answer;  ///< as text, without special tokens
  std::span<const int32_t> prompt_ids;
  std::span<const int32_t> ids;          ///< of the answer
  const PromptRecord* record = nullptr;  ///< of the prompt
};

/// One number for an answer; nan: nothing to say.
double exact_reward(const std::string& answer, const std::string& expected);
/// The last number of the answer against the last of what is expected: 1 or 0.
double number_reward(const std::string& answer, const std::string& expected);
/// 0 up to max_completion_len - soft_punish_cache tokens, then falling to -1 (TRL's get_soft_overlong_punishment).
double length_reward(int64_t tokens, int64_t max_completion_len, int64_t soft_punish_cache);
/// max_penalty times the share of n-grams of words that are there already (TRL's get_repetition_penalty_reward).
double repetition_reward(const std::string& answer, int64_t ngram_size, double max_penalty);

class Rewards {
 public:
  /// Those of the recipe, which must outlive this. Throws InputError for a pattern that is no regular expression and a
  /// model that gives no score.
  explicit Rewards(const Recipe& recipe);
  ~Rewards();

  size_t size() const { return recipes_.size(); }
  /// For metrics, each once.
  const std::vector<std::string>& names() const { return names_; }
  double weight(size_t i) const { return recipes_.at(i).weight; }
  /// Throws InputError where the record of a prompt lacks a column, or the number in it that a reward compares with.
  void check(const PromptRecord& record) const;
  /// Throws what score would throw for a program that is not there and a model that does not fit.
  void try_judges() const;
  /// [function][answer]; nan: nothing to say. stop: asked while commands and models judge, with how many of their
  /// scores are there; nothing is returned then. Throws InputError where a record lacks a column, or a command fails.
  std::vector<std::vector<double>> score(
      const std::vector<JudgedAnswer>& answers,
      const std::function<bool(size_t done, size_t of)>& stop = [](size_t, size_t) { return false; });

  /// That of the first command that went on without rewards in the last call (CommandReward::failure()); else "".
  std::string failure() const;

 private:
  std::vector<double> plain_scores(const std::vector<JudgedAnswer>& answers, size_t i) const;
  std::string place(size_t i) const { return "rewards (" + names_.at(i) + ")"; }
  std::string column(const PromptRecord& record, size_t i) const;

  const std::vector<RewardRecipe> recipes_;
  const std::map<std::string, std::string>& fields_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<CommandReward>> commands_;  // null for other types
  std::vector<std::optional<PythonRegex>> patterns_;      // empty for other types
  std::vector<std::unique_ptr<ModelReward>> models_;      // null for other types
};

}  // namespace nibble
