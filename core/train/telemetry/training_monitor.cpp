#include "nibble/core/train/telemetry/training_monitor.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/hash.h"

namespace nibble {

namespace {

constexpr double kSpikeDeviations = 6, kSpikeShare = 1.5;
constexpr double kExplosion = 100;
constexpr double kVanished = 1e-7;
constexpr size_t kShownNames = 5;

std::string number(double value) { return formatted("%.4g", value); }

double mean_of(const std::deque<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double deviation_of(const std::deque<double>& values, double mean) {
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

double median_of(std::deque<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void keep(std::deque<double>& values, double value) {
  values.push_back(value);
  if (values.size() > TrainingMonitor::kWindow) values.pop_front();
}

}  // namespace

bool TrainingMonitor::may_warn(const std::string& rule, int64_t step) {
  const auto output = warned_.find(rule);
  if (output != warned_.end() && step < output->second + kQuietSteps) return false;
  warned_[rule] = step;
  return true;
}

std::vector<std::string> TrainingMonitor::after_step(const StepReport& report) {
  std::vector<std::string> warnings;
  const std::string start = "warning: step " + std::to_string(report.step) + ": ";
  if (losses_.size() >= kLeast) {
    const double mean = mean_of(losses_), deviation = deviation_of(losses_, mean);
    // The loss of rewards lies around 0 and has no level that it could leave.
    const bool spike = deviation < std::abs(mean) && report.loss > kSpikeShare * std::abs(mean) &&
                       report.loss > mean + kSpikeDeviations * deviation;
    if (spike && may_warn("spike", report.step)) {
      warnings.push_back(start + "loss spike: " + number(report.loss) + " after a mean of " + number(mean) +
                         "; look at the data of this step, or lower optimizer.lr");
    }
    const double median = median_of(norms_);
    if (report.grad_norm > kExplosion * median && median > 0 && may_warn("exploding", report.step)) {
      warnings.push_back(start + "exploding gradient: norm " + number(report.grad_norm) + " after a median of " +
                         number(median) +
                         "; lower optimizer.lr (train.max_grad_norm bounds what one such step changes)");
    }
  }
  vanished_ = report.grad_norm < kVanished ? vanished_ + 1 : 0;
  if (vanished_ >= kVanishedSteps && may_warn("vanishing", report.step)) {
    warnings.push_back(start + "vanishing gradient: norm " + number(report.grad_norm) + " for " +
                       std::to_string(vanished_) + " steps; nothing is learned any more");
  }
  keep(losses_, report.loss);
  keep(norms_, report.grad_norm);
  return warnings;
}

std::vector<std::string> TrainingMonitor::after_evaluation(const EvaluationReport& report) {
  const double training = mean_of(losses_);
  if (!evaluated_ || report.loss < lowest_evaluation_) {
    evaluated_ = true;
    lowest_evaluation_ = report.loss;
    training_at_lowest_ = training;
    rising_ = 0;
    return {};
  }
  // What looks the same is the noise of a flat curve.
  rising_ = number(report.loss) == number(lowest_evaluation_) ? 0 : rising_ + 1;
  if (rising_ < kRisingEvaluations || training >= training_at_lowest_ || !may_warn("overfitting", report.step))
    return {};
  return {"warning: step " + std::to_string(report.step) + ": overfitting: evaluation loss " + number(report.loss) +
          " is above its lowest, " + number(lowest_evaluation_) + ", in " + std::to_string(rising_) +
          " evaluations in a row while the training loss falls; stop earlier (train.early_stop, output.keep_best)"};
}

std::vector<std::string> TrainingMonitor::after_update(int64_t step, double lr,
                                                       const std::vector<Parameter*>& parameters) {
  largest_lr_ = std::max(largest_lr_, lr);
  if (step % kUnchangedEvery != 0) return {};
  std::vector<std::string> unchanged;
  MemoryPool host;
  for (const Parameter* parameter : parameters) {
    const Tensor value = parameter->value.to(host);
    std::string hash = hash_bytes({value.raw(), value.bytes()});
    std::string& before = hashes_[parameter->name];
    if (before == hash) unchanged.push_back(parameter->name);
    before = std::move(hash);
  }
  const bool learned = largest_lr_ > 0;
  largest_lr_ = 0;
  if (unchanged.empty() || !learned || !may_warn("unchanged", step)) return {};
  std::string names;
  for (size_t i = 0; i < std::min(unchanged.size(), kShownNames); ++i) names += (i > 0 ? ", " : "") + unchanged[i];
  if (unchanged.size() > kShownNames) names += ", ...";
  return {"warning: step " + std::to_string(step) + ": unchanged weights: " + std::to_string(unchanged.size()) +
          " of " + std::to_string(parameters.size()) + " trainable tensors did not move in " +
          std::to_string(kUnchangedEvery) + " steps (" + names + "); raise optimizer.lr, or take them out"};
}

}  // namespace nibble
