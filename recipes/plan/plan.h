#pragma once
// The plan of a recipe: what `nibble plan` shows, what "auto" is decided by.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nibble/parallel/plan/ladder.h"
#include "nibble/parallel/plan/machine_time.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

struct PlanRequest {
  std::optional<Cluster> cluster;  ///< absent: this machine, which is measured for a second or two
  int64_t ranks = 0;               ///< for the ladder and "auto"; 0: the product of the recipe's degrees
  int64_t budget = 0;              ///< bytes of a rank; 0: the cluster's, or no limit
  std::string budget_set_by;       ///< where nobody gave it, see MemoryBudget
  int threads = 0;                 ///< of a rank on this machine; 0: train.threads, or its share of the cores
  /// Measures this machine for the tensor degrees given, with so many ranks; empty: measure_machine with threads of
  /// this process as ranks.
  std::function<MachineSpeed(const PlanJob& job, std::span<const int64_t> tensors, int threads, int ranks)> measure;
};

/// Ranks that are measured at most, unless a tensor degree takes more: the others are taken to be like them.
constexpr int kMeasuredRanks = 8;

/// Tensor degrees of the layouts that a plan of `recipe` for so many ranks looks at.
std::vector<int64_t> planned_tensor_degrees(const Recipe& recipe, const PlanJob& job, int64_t ranks);

struct RecipePlan {
  PlanJob job;
  std::string machine;  ///< what times are for
  int64_t ranks = 1;
  int threads = 1;
  int64_t budget = 0;
  std::string budget_set_by;
  PlannedLayout asked;                ///< the recipe's layout; with "auto" the one chosen
  std::vector<PlannedLayout> ladder;  ///< see walk_ladder
  std::string why;                    ///< one line: the first rung that fits and why those before do not
  int64_t total_steps = 0;            ///< of the whole run, for its time; 0: not known

  /// The first rung that fits; null when none does.
  const PlannedLayout* first_fit() const;
};

/// Reads config.json and headers of weight files, never weights. Throws as plan_job and choose_layout, and UsageError
/// for degrees whose product is another number of ranks.
RecipePlan plan_recipe(const Recipe& recipe, const PlanRequest& request = {});
RecipePlan plan_recipe(const Recipe& recipe, const PlanJob& job, const PlanRequest& request);

/// One JSON object.
std::string plan_json(const RecipePlan& plan);
/// For people: memory by use, time, traffic, the ladder.
std::string plan_text(const RecipePlan& plan);

}  // namespace nibble
