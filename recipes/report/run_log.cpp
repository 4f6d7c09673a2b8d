#include "nibble/recipes/report/run_log.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/train/telemetry/headline.h"
#include "nibble/core/train/telemetry/progress.h"

namespace nibble {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr size_t kLargestLog = size_t{1} << 30;

// Calls take(object) for the lines of a file of JSON objects.
template <typename Take>
void for_each_line(const fs::path& path, const Take& take) {
  const std::string text = read_text_file(path, kLargestLog);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) return;  // torn
    const Json value = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                   text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    begin = end + 1;
    ++number;
    const std::string place = path.string() + ":" + std::to_string(number);
    if (!value.is_object()) throw InputError(place, "is no JSON object", "take the line away");
    try {
      take(value);
    } catch (const nlohmann::json::exception&) {
      throw InputError(place, "lacks a field, or one has the wrong type", "take the line away");
    }
  }
}

// JSON has no word for what is not finite, and metrics.jsonl says null: a run that diverged.
double number_of(const Json& line, const char* name) {
  const Json& value = line.at(name);
  return value.is_null() ? std::numeric_limits<double>::infinity() : value.get<double>();
}

// What an objective adds: numbers under names that every line does not have.
NamedNumbers metrics_of(const Json& line) {
  static constexpr std::array kCommon = {"step",
                                         "loss",
                                         "lr",
                                         "grad_norm",
                                         "label_tokens",
                                         "tokens",
                                         "num_tokens",
                                         "tokens_per_second",
                                         "peak_memory_bytes",
                                         "seconds",
                                         "perplexity"};
  NamedNumbers metrics;
  for (const auto& [name, value] : line.items()) {
    const bool common = std::ranges::any_of(kCommon, [&](const char* known) { return name == known; });
    if (!common && value.is_number()) metrics.emplace_back(name, value.get<double>());
  }
  return metrics;
}

StepReport step_of(const Json& line) {
  StepReport report;
  report.step = line.at("step");
  report.loss = number_of(line, "loss");
  report.lr = number_of(line, "lr");
  report.grad_norm = number_of(line, "grad_norm");
  report.label_tokens = line.at("label_tokens");
  report.tokens = line.at("tokens");
  report.tokens_per_second = number_of(line, "tokens_per_second");
  report.peak_memory_bytes = line.at("peak_memory_bytes");
  report.seconds = number_of(line, "seconds");
  report.metrics = metrics_of(line);
  return report;
}

EvaluationReport evaluation_of(const Json& line) {
  EvaluationReport report;
  report.step = line.at("step");
  report.loss = number_of(line, "loss");
  report.perplexity = number_of(line, "perplexity");
  if (std::isinf(report.perplexity) && std::exp(report.loss) < report.perplexity) report.perplexity = std::nan("");
  report.label_tokens = line.at("label_tokens");
  report.tokens = line.at("tokens");
  report.seconds = number_of(line, "seconds");
  report.metrics = metrics_of(line);
  return report;
}

void flatten(const Json& value, const std::string& name, std::map<std::string, std::string>& out) {
  if (!value.is_object()) {
    out[name] = value.dump();
    return;
  }
  for (const auto& [key, member] : value.items()) flatten(member, name.empty() ? key : name + "." + key, out);
}

// The steps that rollouts/step-N.jsonl are there for.
std::vector<int64_t> rollout_steps(const fs::path& directory) {
  std::vector<int64_t> steps;
  if (!fs::is_directory(directory)) return steps;
  for (const auto& entry : list_directory(directory)) {
    int64_t step = 0;
    if (std::sscanf(entry.path().filename().c_str(), "step-%" SCNd64 ".jsonl", &step) == 1) steps.push_back(step);
  }
  std::ranges::sort(steps);
  return steps;
}

// Over the steps that have them.
NamedNumbers mean_metrics(std::span<const StepReport> steps) {
  std::map<std::string, std::pair<double, int>> sums;
  for (const StepReport& step : steps) {
    for (const auto& [name, value] : step.metrics) sums[name] = {sums[name].first + value, sums[name].second + 1};
  }
  NamedNumbers means;
  for (const auto& [name, sum] : sums) means.emplace_back(name, sum.first / sum.second);
  return means;
}

}  // namespace

RunLog read_run_log(const fs::path& directory) {
  const fs::path metrics = directory / "metrics.jsonl";
  if (!fs::is_regular_file(metrics)) {
    throw InputError(directory.string(), "holds no run: there is no metrics.jsonl", "give the output.dir of a run");
  }
  RunLog log;
  log.directory = directory;
  for_each_line(metrics, [&](const Json& line) {
    const std::string split = line.at("split");
    if (split == "train") log.steps.push_back(step_of(line));
    if (split == "eval") log.evaluations.push_back(evaluation_of(line));
  });
  const auto best = std::min_element(log.evaluations.begin(), log.evaluations.end(),
                                     [](const auto& a, const auto& b) { return a.loss < b.loss; });
  if (best != log.evaluations.end()) best->best = true;
  if (fs::exists(directory / "samples.jsonl")) {
    for_each_line(directory / "samples.jsonl", [&](const Json& line) {
      log.samples.push_back({line.at("step"), line.at("prompt"), line.at("expected"), line.at("text")});
      log.sample_seconds += line.value("seconds", 0.0);
    });
  }
  const auto text_of = [&](const char* name) {
    return fs::exists(directory / name) ? read_text_file(directory / name) : std::string();
  };
  log.recipe = text_of("recipe.json");
  log.facts = text_of("run.json");
  return log;
}

DrawnAnswers read_answers(const fs::path& directory) {
  constexpr size_t kMostSteps = 200;
  DrawnAnswers found;
  const std::vector<int64_t> steps = rollout_steps(directory / "rollouts");
  found.steps = std::ssize(steps);
  const size_t shown = std::min(steps.size(), kMostSteps);
  for (size_t i = 0; i < shown; ++i) {
    const int64_t step = steps[shown == 1 ? 0 : i * (steps.size() - 1) / (shown - 1)];
    std::optional<AnswerReport> best, worst;
    for_each_line(directory / "rollouts" / ("step-" + std::to_string(step) + ".jsonl"), [&](const Json& line) {
      if (!line.at("reward").is_number()) return;
      const AnswerReport answer{step, line.value("prompt", ""), line.value("completion", ""), line.at("reward")};
      if (!best || answer.reward > best->reward) best = answer;
      if (!worst || answer.reward < worst->reward) worst = answer;
    });
    if (best) found.best_and_worst.emplace_back(*best, *worst);
  }
  return found;
}

RunSummary summarize(const RunLog& log) {
  RunSummary summary;
  double tokens_of_steps = 0, seconds_of_steps = 0;
  for (const StepReport& step : log.steps) {
    // A line stands for the steps since the one before, which train.log_every left out.
    const int64_t stands_for = std::max<int64_t>(1, step.step - summary.steps);
    summary.estimated |= stands_for > 1;
    summary.steps = std::max(summary.steps, step.step);
    tokens_of_steps += static_cast<double>(stands_for) * static_cast<double>(step.tokens);
    seconds_of_steps += static_cast<double>(stands_for) * wall_seconds(step);
    summary.peak_memory_bytes = std::max(summary.peak_memory_bytes, step.peak_memory_bytes);
  }
  summary.tokens = std::llround(tokens_of_steps);
  if (seconds_of_steps > 0) summary.tokens_per_second = tokens_of_steps / seconds_of_steps;
  summary.seconds = seconds_of_steps + log.sample_seconds;
  const size_t tail = std::max<size_t>(1, log.steps.size() / 10);
  double loss = 0, tokens = 0;
  const auto last = std::span(log.steps).last(std::min(tail, log.steps.size()));
  for (const StepReport& step : last) {
    loss += step.loss * static_cast<double>(step.label_tokens);
    tokens += static_cast<double>(step.label_tokens);
  }
  if (tokens > 0) summary.loss = loss / tokens;
  summary.headline = headline(mean_metrics(last));
  for (const EvaluationReport& evaluation : log.evaluations) {
    summary.seconds += evaluation.seconds;
    if (!evaluation.best) continue;
    summary.best_evaluation_loss = evaluation.loss;
    summary.best_perplexity = evaluation.perplexity;
    summary.best_step = evaluation.step;
    if (const NamedNumbers found = headline(evaluation.metrics); !found.empty()) summary.headline = found;
  }
  return summary;
}

std::vector<std::vector<std::string>> recipe_differences(const std::vector<RunLog>& logs) {
  std::vector<std::map<std::string, std::string>> recipes(logs.size());
  std::map<std::string, bool> names;
  for (size_t i = 0; i < logs.size(); ++i) {
    if (!logs[i].recipe.empty()) {
      flatten(Json::parse(parse_json(logs[i].recipe, (logs[i].directory / "recipe.json").string()).dump()), "",
              recipes[i]);
    }
    for (const auto& [name, value] : recipes[i]) names[name] = true;
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, present] : names) {
    if (name.starts_with("output.")) continue;
    std::vector<std::string> row = {name};
    for (const auto& recipe : recipes) row.push_back(recipe.contains(name) ? recipe.at(name) : "");
    if (std::any_of(row.begin() + 2, row.end(), [&](const std::string& value) { return value != row[1]; })) {
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace nibble
