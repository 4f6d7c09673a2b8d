#pragma once
// Looks at the numbers of a run for the signs of training that goes wrong, and says so in a line. The rules are those
// that training debuggers ship (Amazon SageMaker Debugger: VanishingGradient, ExplodingTensor, UnchangedTensor,
// Overfit).

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "nibble/core/nn/parameter.h"
#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

/// One warning is given at most once in kQuietSteps steps. Nothing here changes a run.
class TrainingMonitor {
 public:
  static constexpr size_t kWindow = 50;            ///< steps that a step is compared with
  static constexpr size_t kLeast = 20;             ///< of them at least
  static constexpr int kVanishedSteps = 10;        ///< with a gradient norm below 1e-7, in a row
  static constexpr int64_t kUnchangedEvery = 100;  ///< steps between looks at the weights
  static constexpr int kRisingEvaluations = 3;     ///< in a row above the lowest, while the training loss falls
  static constexpr int64_t kQuietSteps = 100;

  /// Warnings after a step: a loss more than six standard deviations and half of itself above the mean of the last
  /// steps, where these are further from 0 than from each other; a gradient norm a hundred times the median; gradients
  /// that vanish.
  std::vector<std::string> after_step(const StepReport& report);

  /// Warnings after an evaluation: its loss has been rising while the training loss fell.
  std::vector<std::string> after_evaluation(const EvaluationReport& report);

  /// Warnings about tensors whose bits have not changed since the last look although the learning rate was not 0. Looks
  /// every kUnchangedEvery steps.
  std::vector<std::string> after_update(int64_t step, double lr, const std::vector<Parameter*>& parameters);

 private:
  /// Whether `rule` may warn at `step`.
  bool may_warn(const std::string& rule, int64_t step);

  std::deque<double> losses_, norms_;
  int vanished_ = 0;
  double lowest_evaluation_ = 0, training_at_lowest_ = 0;
  int rising_ = 0;
  bool evaluated_ = false;
  double largest_lr_ = 0;
  std::map<std::string, std::string> hashes_;  // by parameter
  std::map<std::string, int64_t> warned_;      // last step, by rule
};

}  // namespace nibble
