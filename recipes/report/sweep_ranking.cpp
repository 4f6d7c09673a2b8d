#include "nibble/recipes/report/sweep_ranking.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {

std::string_view sweep_measure_name(SweepMeasure measure) {
  switch (measure) {
    case SweepMeasure::loss:
      return "loss";
    case SweepMeasure::preference:
      return "accuracy";
    case SweepMeasure::reward:
      return "reward";
    case SweepMeasure::none:
      break;
  }
  return "";
}

SweepMeasure sweep_measure(const Recipe& recipe, const std::vector<SweepAxis>& axes) {
  const auto sweeps = [&](const char* begin) {
    return std::ranges::any_of(
        axes, [&](const SweepAxis& axis) { return axis.values.size() > 1 && axis.key.starts_with(begin); });
  };
  const ObjectiveType type = recipe.objective.type;
  if (has_rewards(type)) {
    const bool others = sweeps("rewards") || sweeps("objective.reward_model") || !recipe.objective.rollout.file.empty();
    return others ? SweepMeasure::none : SweepMeasure::reward;
  }
  // The load-balancing loss is added to that of training, not of evaluations.
  const bool evaluates = !recipe.data.eval.empty() || recipe.data.eval_fraction > 0;
  if (!sweeps("objective.") && (evaluates || !sweeps("model.router_aux_loss_coef"))) return SweepMeasure::loss;
  const bool prefers = is_pairwise(type) || type == ObjectiveType::kto || type == ObjectiveType::classification;
  return prefers ? SweepMeasure::preference : SweepMeasure::none;
}

std::vector<double> sweep_order(SweepMeasure measure, const RunSummary& run, double beta) {
  const auto or_last = [](double number) {
    return std::isnan(number) ? std::numeric_limits<double>::infinity() : number;
  };
  const auto falling = [&](const char* name) {
    const auto found = std::ranges::find(run.headline, name, &NamedNumbers::value_type::first);
    return or_last(found == run.headline.end() ? NAN : -found->second);
  };
  switch (measure) {
    case SweepMeasure::loss:
      return {or_last(run.best_step > 0 ? run.best_evaluation_loss : run.loss)};
    case SweepMeasure::preference:
      return {falling("accuracy"), beta > 0 ? falling("margin") / beta : falling("margin")};
    case SweepMeasure::reward:
      return {falling("reward")};
    case SweepMeasure::none:
      break;
  }
  return {};
}

}  // namespace nibble
