// Which curves a run has.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/core/train/telemetry/progress.h"
#include "nibble/recipes/report/report.h"

namespace nibble {

namespace {

constexpr const char* kBlue = "#2f6fde";
constexpr const char* kFaint = "#a9c4f2";
constexpr const char* kOrange = "#e0762d";

using Points = std::vector<std::pair<double, double>>;

template <typename Value>
Points points_of(const std::vector<StepReport>& steps, const Value& value) {
  Points points;
  for (const StepReport& step : steps) points.emplace_back(static_cast<double>(step.step), value(step));
  return points;
}

// Moving average by label tokens with the bias of its start taken out, as the progress line shows it.
Points smoothed_loss(const std::vector<StepReport>& steps) {
  constexpr double kDecay = 0.95;
  Points points;
  double loss = 0, tokens = 0;
  for (const StepReport& step : steps) {
    loss = kDecay * loss + step.loss * static_cast<double>(step.label_tokens);
    tokens = kDecay * tokens + static_cast<double>(step.label_tokens);
    if (tokens > 0) points.emplace_back(static_cast<double>(step.step), loss / tokens);
  }
  return points;
}

Plot one_curve(const std::string& title, const Points& points, bool from_zero) {
  Plot plot{.title = title, .x_label = "step", .y_label = "", .curves = {{"", kBlue, thinned(points), 1.6}}};
  plot.from_zero = from_zero;
  return plot;
}

// Of the objective: those of chosen and rejected answers in one plot.
void add_metrics(const RunLog& log, std::vector<NamedPlot>& plots) {
  std::vector<std::string> names;
  std::set<std::string> known;  // the last step may lack some, such as those of answers that others drew
  for (const StepReport& step : log.steps) {
    for (const auto& metric : step.metrics) {
      if (known.insert(metric.first).second) names.push_back(metric.first);
    }
  }
  const auto points_of_metric = [&](const std::string& name) {
    Points points;
    for (const StepReport& step : log.steps) {
      for (const auto& [own, value] : step.metrics) {
        if (own == name) points.emplace_back(static_cast<double>(step.step), value);
      }
    }
    return thinned(points);
  };
  for (const std::string& name : names) {
    const std::string stem = name.substr(0, name.find('/') + 1), other = stem + "rejected";
    if (name == other && std::ranges::count(names, stem + "chosen") > 0) continue;
    Plot plot{.title = name, .x_label = "step", .y_label = "", .curves = {{"", kBlue, points_of_metric(name), 1.6}}};
    if (name == stem + "chosen" && std::ranges::count(names, other) > 0) {
      plot.title = stem.substr(0, stem.size() - 1);
      plot.curves = {{"chosen", kBlue, points_of_metric(name), 1.6},
                     {"rejected", kOrange, points_of_metric(other), 1.6}};
    }
    std::string file = name;
    std::ranges::replace(file, '/', '_');
    plots.push_back({file, plot});
  }
}

void add_lengths(const RunLog& log, std::vector<NamedPlot>& plots) {
  const nlohmann::json facts = nlohmann::json::parse(log.facts, nullptr, false);
  const nlohmann::json::json_pointer place("/data/lengths_by_power_of_two");
  if (!facts.is_object() || !facts.contains(place) || !facts[place].is_array() || facts[place].empty()) return;
  Points points;
  for (size_t i = 0; i < facts[place].size(); ++i) {
    const double count = facts[place][i].is_number() ? facts[place][i].get<double>() : 0;
    if (count > 0 || !points.empty()) points.emplace_back(static_cast<double>(i), count);
  }
  Plot plot{.title = "Samples by length", .x_label = "tokens, up to twice as many", .y_label = "samples"};
  plot.x_doubles = true;
  plot.curves = {{"", kBlue, points}};
  plot.bars = true;
  plots.push_back({"lengths", plot});
}

}  // namespace

std::vector<NamedPlot> run_plots(const RunLog& log) {
  std::vector<NamedPlot> plots;
  if (!log.steps.empty()) {
    Plot loss{.title = "Loss", .x_label = "step", .y_label = ""};
    loss.curves = {{"each step", kFaint, thinned(points_of(log.steps, [](const auto& s) { return s.loss; })), 1},
                   {"smoothed", kBlue, thinned(smoothed_loss(log.steps)), 2}};
    if (!log.evaluations.empty()) {
      Points points;
      for (const auto& e : log.evaluations) points.emplace_back(static_cast<double>(e.step), e.loss);
      loss.curves.push_back({"evaluation", kOrange, points, 2, points.size() < 60});
    }
    plots.push_back({"loss", loss});
  }
  if (!log.evaluations.empty() && !std::isnan(log.evaluations.front().perplexity)) {
    Points points;
    for (const auto& e : log.evaluations) points.emplace_back(static_cast<double>(e.step), e.perplexity);
    Plot perplexity{.title = "Perplexity of the evaluation data", .x_label = "step", .y_label = ""};
    perplexity.curves = {{"", kOrange, points, 2, points.size() < 60}};
    plots.push_back({"perplexity", perplexity});
  }
  if (!log.steps.empty()) {
    const auto add = [&](const char* name, const char* title, bool from_zero, const auto& value) {
      plots.push_back({name, one_curve(title, points_of(log.steps, value), from_zero)});
    };
    add("lr", "Learning rate", true, [](const auto& s) { return s.lr; });
    add("grad_norm", "Gradient norm before clipping", true, [](const auto& s) { return s.grad_norm; });
    add("tokens_per_second", "Tokens a second", true,
        [](const auto& s) { return static_cast<double>(s.tokens) / std::max(wall_seconds(s), 1e-9); });
    add("memory", "Peak memory, MiB", true,
        [](const auto& s) { return static_cast<double>(s.peak_memory_bytes) / (1 << 20); });
  }
  if (!log.steps.empty()) add_metrics(log, plots);
  add_lengths(log, plots);
  return plots;
}

}  // namespace nibble
