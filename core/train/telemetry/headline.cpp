#include "nibble/core/train/telemetry/headline.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/formatting/readable.h"

namespace nibble {

NamedNumbers headline(const NamedNumbers& metrics) {
  static const std::vector<std::pair<std::string, std::string>> kNames = {{"rewards/accuracies", "accuracy"},
                                                                          {"accuracy", "accuracy"},
                                                                          {"rewards/margins", "margin"},
                                                                          {"margin", "margin"},
                                                                          {"reward", "reward"}};
  NamedNumbers found;
  for (const auto& [name, shown] : kNames) {
    const auto metric = std::ranges::find(metrics, name, &NamedNumbers::value_type::first);
    if (metric != metrics.end() && std::isfinite(metric->second)) found.emplace_back(shown, metric->second);
  }
  return found;
}

std::string headline_text(const std::string& name, double value) {
  return name == "accuracy" ? formatted("%.0f%%", 100 * value) : formatted("%.3g", value + 0.0);  // no minus zero
}

std::string loss_text(double loss) {
  const std::string text = formatted(std::fabs(loss) < 1e6 ? "%.4f" : "%.5g", loss);
  return text == "-0.0000" ? text.substr(1) : text;
}

std::string perplexity_text(double perplexity) {
  return formatted(perplexity < 999.95 ? "%#.4g" : "%.4g", perplexity);  // no "1234."
}

}  // namespace nibble
