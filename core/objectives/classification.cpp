#include "nibble/core/objectives/classification.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/objectives/answers.h"
#include "nibble/core/objectives/dual.h"

namespace nibble {

namespace {

struct TextLoss {
  double value = 0;
  double right = 0;  ///< share of labels; nan: they are numbers
};

// gradient, of as many as there are scores, unless empty: by each score.
TextLoss class_loss(std::span<const float> scores, size_t label, std::span<double> gradient) {
  const auto top = std::ranges::max_element(scores);
  double sum = 0;
  for (const float score : scores) sum += std::exp(static_cast<double>(score - *top));
  for (size_t k = 0; k < gradient.size(); ++k) {
    gradient[k] = std::exp(static_cast<double>(scores[k] - *top)) / sum - (k == label ? 1 : 0);
  }
  return {std::log(sum) + static_cast<double>(*top) - static_cast<double>(scores[label]),
          top - scores.begin() == static_cast<ptrdiff_t>(label) ? 1.0 : 0.0};
}

TextLoss text_loss(ProblemType problem, std::span<const float> scores, std::span<const float> values,
                   std::span<double> gradient) {
  if (problem == ProblemType::single_label) return class_loss(scores, static_cast<size_t>(values[0]), gradient);
  const double labels = static_cast<double>(scores.size());
  const bool several = problem == ProblemType::multi_label;
  TextLoss loss{0, several ? 0 : std::numeric_limits<double>::quiet_NaN()};
  for (size_t k = 0; k < scores.size(); ++k) {
    const Dual z{static_cast<double>(scores[k]), 1, 0};
    const double y = static_cast<double>(values[k]);
    const Dual one = several ? -y * log_sigmoid(z) - (1 - y) * log_sigmoid(-z) : square(z - y);
    loss.value += one.value / labels;
    if (several) loss.right += ((z.value > 0) == (y > 0.5) ? 1 : 0) / labels;
    if (!gradient.empty()) gradient[k] = one.first / labels;
  }
  return loss;
}

// Calls use(document, its scores) for each.
template <typename Use>
void each_scored(const Batch& batch, const LabelLogProbs& seen, const Use& use) {
  const size_t labels = seen.scores.size() / batch.spans.size();
  for (size_t d = 0; d < batch.spans.size(); ++d) use(d, seen.scores.subspan(d * labels, labels));
}

}  // namespace

ProblemType problem_type_of(ProblemType asked, int64_t labels, size_t values) {
  if (asked != ProblemType::automatic) return asked;
  if (labels == 1) return ProblemType::regression;
  return values == 1 ? ProblemType::single_label : ProblemType::multi_label;
}

std::string label_mistake(ProblemType asked, int64_t labels, std::span<const float> values) {
  const ProblemType problem = problem_type_of(asked, labels, values.size());
  const std::string count = std::to_string(labels);
  if (problem == ProblemType::single_label) {
    const bool fits = values.size() == 1 && values[0] >= 0 && values[0] < static_cast<float>(labels) &&
                      values[0] == std::floor(values[0]);
    return fits ? "" : "a class is one whole number from 0 to " + std::to_string(labels - 1);
  }
  if (values.size() != static_cast<size_t>(labels)) {
    return "the model has " + count + (labels == 1 ? " label, which takes one number" : " labels, a number for each");
  }
  const bool several = problem == ProblemType::multi_label;
  if (several && !std::ranges::all_of(values, [](float y) { return y >= 0 && y <= 1; })) {
    return "one of several labels is a number from 0 to 1";
  }
  return std::ranges::all_of(values, [](float y) { return std::isfinite(y); }) ? "" : "a label is a finite number";
}

LossCounts Classification::counts(const Batch& batch) const {
  return {.divisor = static_cast<double>(batch.spans.size())};
}

std::vector<int32_t> Classification::score_rows(const Batch& batch) const { return scored_rows(batch, pad_); }

double Classification::loss_sum(const Batch& batch, const LabelLogProbs& seen, const LossCounts&,
                                std::span<float> weights) const {
  double sum = 0;
  each_scored(batch, seen, [&](size_t d, std::span<const float> scores) {
    std::vector<double> gradient(scores.size());
    const auto labels = static_cast<int64_t>(scores.size());
    const ProblemType problem = problem_type_of(problem_, labels, batch.values[d].size());
    sum += text_loss(problem, scores, batch.values[d], gradient).value;
    for (size_t k = 0; k < scores.size(); ++k) weights[d * scores.size() + k] = static_cast<float>(-gradient[k]);
  });
  return sum;
}

std::vector<SampleFacts> Classification::facts(const Batch& batch, const LabelLogProbs& seen) const {
  std::vector<SampleFacts> found;
  each_scored(batch, seen, [&](size_t d, std::span<const float> scores) {
    const auto labels = static_cast<int64_t>(scores.size());
    const ProblemType problem = problem_type_of(problem_, labels, batch.values[d].size());
    found.push_back({sample_number(batch, d), {text_loss(problem, scores, batch.values[d], {}).right}});
  });
  return found;
}

Metrics Classification::metrics(std::span<const SampleFacts> facts, const LossCounts&) const {
  return {{"accuracy", mean_of(facts, [](const SampleFacts& f) { return f.values[0]; })}};
}

}  // namespace nibble
