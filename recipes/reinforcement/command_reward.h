#pragma once
// A reward that another program gives.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nibble/core/io/processes/child_process.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// One process, started when it is first asked and kept: a line of JSON goes in for each answer, a line with a number
/// or null comes out for each, in order. It has timeout_seconds for the answers of a step and memory_bytes of address
/// space, and is ended with its group of processes.
class CommandReward {
 public:
  /// place: the entry of the recipe, for messages.
  CommandReward(RewardRecipe recipe, std::string place);
  ~CommandReward();

  /// The numbers (nan for null) for lines without line breaks. Throws InputError where the command ends, is too slow or
  /// says something else; with null_on_failure the answers that are left have nan then, and the next call starts it
  /// anew. No numbers where `stop`, asked while it waits, with how many are there, says so: the command is ended.
  std::vector<double> score(
      const std::vector<std::string>& lines, const std::function<bool(size_t)>& stop = [](size_t) { return false; });

  /// What was wrong in the last call, where null_on_failure went on; else "".
  const std::string& failure() const { return failure_; }

 private:
  struct Pipes;
  void start();
  void end();
  std::string exchange(const std::vector<std::string>& lines, const std::function<bool(size_t)>& stop,
                       std::vector<double>& scores);

  RewardRecipe recipe_;
  std::string place_, failure_;
  std::unique_ptr<ChildProcess> child_;
  std::unique_ptr<Pipes> pipes_;
};

}  // namespace nibble
