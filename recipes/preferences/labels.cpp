#include "nibble/recipes/preferences/labels.h"

#include <map>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/objectives/classification.h"

namespace nibble {

namespace {

std::string shown(const std::vector<float>& values) {
  const std::string text =
      joined(values, ", ", [](float value) { return formatted("%g", static_cast<double>(value)); });
  return values.size() == 1 ? text : "[" + text + "]";
}

}  // namespace

std::vector<std::string> check_labels(const Dataset& dataset, const ObjectiveOptions& options, int64_t labels) {
  std::map<std::vector<float>, int64_t> counts;
  ProblemType first = options.problem_type;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const std::vector<float> values = dataset.sample(i).values;
    const std::string mistake = label_mistake(options.problem_type, labels, values);
    if (!mistake.empty()) {
      throw InputError(dataset.place(i), "has the label " + shown(values) + "; " + mistake,
                       "correct it, or set objective.num_labels and objective.problem_type");
    }
    const ProblemType problem = problem_type_of(options.problem_type, labels, values.size());
    if (i == 0) first = problem;
    if (problem != first) {
      throw InputError(
          dataset.place(i),
          "has the label " + shown(values) + ", where the first text has " + shown(dataset.sample(0).values),
          "give all texts a class, or a list of numbers");
    }
    const bool classes = problem == ProblemType::single_label;
    if (counts.size() < 2 || classes) ++counts[values];
  }
  if (counts.size() == 1) {
    return {"all texts have the label " + shown(counts.begin()->first) + ": nothing tells them apart"};
  }
  std::string absent;
  for (int64_t k = 0; first == ProblemType::single_label && k < labels; ++k) {
    if (!counts.contains({static_cast<float>(k)})) absent += (absent.empty() ? "" : ", ") + std::to_string(k);
  }
  if (absent.empty()) return {};
  return {"no text has the label " + absent + ", which the score head has a row for"};
}

}  // namespace nibble
