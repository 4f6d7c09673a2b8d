#include "nibble/core/train/run/diagnostic.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"

namespace nibble {

namespace {

nlohmann::json number_or_name(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : std::to_string(value);
}

}  // namespace

void BadSteps::give_up(const std::filesystem::path& file, bool from_the_start, bool saved) const {
  nlohmann::json rows = nlohmann::json::array();
  for (const BadStep& step : steps_) {
    rows.push_back({{"step", step.step},
                    {"lr", number_or_name(step.lr)},
                    {"loss", number_or_name(step.loss)},
                    {"grad_norm", number_or_name(step.grad_norm)},
                    {"nonfinite", step.nonfinite}});
  }
  std::string where = "see " + file.string();
  try {
    if (!file.empty()) write_json_file(file, {{"bad_steps", rows}});
  } catch (const IoError& error) {
    where = std::string("no diagnostic was left: ") + error.what();
  }
  const std::string steps = steps_.size() == 1 ? "step " : "steps " + std::to_string(steps_.front().step) + " to ";
  throw NumericError(steps_.front().nonfinite.front(),
                     steps + std::to_string(steps_.back().step) + " could not be used (" + where + ")",
                     from_the_start
                         ? "no step before them could: the model's weights may be damaged (get it again), or "
                           "look at the data"
                         : std::string(saved ? "the last checkpoint stands" : "there is no checkpoint yet") +
                               "; lower optimizer.lr, set train.max_grad_norm, or look at the data");
}

}  // namespace nibble
