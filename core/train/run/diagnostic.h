#pragma once
// Steps that could not be used, and what is left behind when there are too many of them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

/// A step whose loss or gradient was not finite.
struct BadStep {
  int64_t step = 0;
  double lr = 0;
  double loss = 0;
  double grad_norm = 0;
  std::vector<std::string> nonfinite;  ///< StepResult::nonfinite
};

/// Bad steps in a row.
class BadSteps {
 public:
  void add(BadStep step) { steps_.push_back(std::move(step)); }
  void clear() { steps_.clear(); }
  int64_t in_a_row() const { return static_cast<int64_t>(steps_.size()); }

  /// Writes the steps to `file` as JSON, {"bad_steps": [{"step":, "lr":, "loss":, "grad_norm":, "nonfinite": [...]}]}
  /// with numbers that are not finite as strings, and throws NumericError naming the first tensor and the file.
  /// "": another rank writes it. from_the_start: no step of the run could be used, which a damaged model explains.
  /// saved: there is a checkpoint.
  [[noreturn]] void give_up(const std::filesystem::path& file, bool from_the_start, bool saved) const;

 private:
  std::vector<BadStep> steps_;
};

}  // namespace nibble
