#include "nibble/recipes/report/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/train/run/own_contents.h"
#include "nibble/core/train/telemetry/headline.h"
#include "nibble/recipes/report/html.h"

namespace nibble {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string name_of(const RunLog& log) {
  const std::filesystem::path path = log.directory.lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

std::string tile(const std::string& name, const std::string& value) {
  return "<div class=\"tile\">" + escape_html(name) + "<b>" + escape_html(value) + "</b></div>\n";
}

std::string tiles(const RunLog& log) {
  const RunSummary run = summarize(log);
  std::string text = "<div class=\"tiles\">\n";
  text += tile("steps", std::to_string(run.steps));
  text += tile("loss, last tenth", loss_text(run.loss));
  if (run.best_step > 0) {
    text += tile("best evaluation loss", loss_text(run.best_evaluation_loss));
    if (!std::isnan(run.best_perplexity)) text += tile("its perplexity", perplexity_text(run.best_perplexity));
    text += tile("at step", std::to_string(run.best_step));
  }
  for (const auto& [name, value] : run.headline) text += tile(name, headline_text(name, value));
  const std::string about = run.estimated ? "about " : "";
  text += tile("tokens", about + grouped_text(run.tokens));
  text += tile("tokens a second", grouped_text(std::llround(run.tokens_per_second)));
  text += tile("time", about + seconds_text(run.seconds));
  text += tile("peak memory", bytes_text(static_cast<double>(run.peak_memory_bytes)));
  return text + "</div>\n";
}

// "LoRA (r 16, lora_alpha 32) on models/llama (LlamaForCausalLM, 134,515,008 parameters, 0.92% of them trained)", as
// far as recipe.json and run.json tell.
std::string method_and_base(const RunLog& log) {
  const auto parsed = [](const std::string& text) {
    const OrderedJson read = OrderedJson::parse(text, nullptr, false);
    return read.is_object() ? read : OrderedJson::object();
  };
  const OrderedJson recipe = parsed(log.recipe), facts = parsed(log.facts);
  const auto text = [](const OrderedJson& from, const char* place) {
    const OrderedJson::json_pointer pointer(place);
    if (!from.contains(pointer) || from[pointer].is_null()) return std::string();
    return from[pointer].is_string() ? from[pointer].get<std::string>() : from[pointer].dump();
  };
  const std::string init = text(recipe, "/model/init"), path = text(recipe, "/model/path");
  if (init.empty() && path.empty()) return "";
  const std::string four = text(recipe, "/model/quantize");
  const bool packed = !four.empty() && four != "none";
  std::string output = !init.empty() ? "Pretraining " + init : "";
  if (init.empty() && !text(recipe, "/adapter").empty()) {
    std::string what = "r " + text(recipe, "/adapter/r") + ", lora_alpha " + text(recipe, "/adapter/lora_alpha");
    if (const std::string from = text(recipe, "/adapter/path"); !from.empty()) what = "continued from " + from;
    output = (packed ? "QLoRA (" + four + ", " : "LoRA (") + what + ") on " + path;
  } else if (init.empty()) {
    output = "Full fine-tuning of " + path;
  }
  const OrderedJson::json_pointer all("/model/parameters"), trained("/model/trained_parameters");
  if (!facts.contains(all) || !facts.contains(trained) || !facts[all].is_number() || !facts[trained].is_number()) {
    return output;
  }
  const auto count = facts[all].get<int64_t>();
  const double share = count > 0 ? 100 * facts[trained].get<double>() / static_cast<double>(count) : 0;
  return output + " (" + text(facts, "/model/architecture") + ", " + grouped_text(count) + " parameters, " +
         formatted("%.3g%%", share) + " of them trained)";
}

// Each prompt with what the model said first and last.
std::string samples(const RunLog& log) {
  if (log.samples.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  int64_t first = log.samples.front().step, last = log.samples.back().step;
  rows.push_back({"prompt", "expected", "after step " + std::to_string(first), "after step " + std::to_string(last)});
  for (const SampleReport& sample : log.samples) {
    if (sample.step != last) continue;
    const auto before = std::find_if(log.samples.begin(), log.samples.end(),
                                     [&](const SampleReport& s) { return s.prompt == sample.prompt; });
    rows.push_back({sample.prompt, sample.expected, before->text, sample.text});
  }
  return "<h2>Samples before and after</h2>\n" + html_table(rows, Columns::even);
}

// What was rewarded most and least: at the beginning, in the middle and at the end, and folded in all steps.
std::string answers(const RunLog& log) {
  const DrawnAnswers drawn = read_answers(log.directory);
  const size_t count = drawn.best_and_worst.size();
  if (count == 0) return "";
  const auto table = [&](const std::set<size_t>& shown) {
    std::vector<std::vector<std::string>> rows = {{"step", "prompt", "answer", "reward"}};
    for (const size_t i : shown) {
      for (const AnswerReport* answer : {&drawn.best_and_worst[i].first, &drawn.best_and_worst[i].second}) {
        rows.push_back(
            {std::to_string(answer->step), answer->prompt, answer->completion, formatted("%.4g", answer->reward)});
      }
    }
    return html_table(rows);
  };
  const std::set<size_t> few = {0, count / 2, count - 1};
  std::string text = "<h2>Best and worst answers of a step</h2>\n" + table(few);
  if (few.size() == count) return text;
  std::set<size_t> all;
  for (size_t i = 0; i < count; ++i) all.insert(i);
  const auto steps = static_cast<int64_t>(count);
  return text + "<details><summary>" + (steps < drawn.steps ? grouped_text(steps) + " of " : "all ") +
         count_text(drawn.steps, "step") + "</summary>\n" + table(all) + "</details>\n";
}

// run.json as a table of names and values.
std::string facts(const RunLog& log) {
  const nlohmann::ordered_json all = nlohmann::ordered_json::parse(log.facts, nullptr, false);
  if (!all.is_object()) return "";
  std::vector<std::vector<std::string>> rows = {{"what", "value"}};
  const auto add = [&](const std::string& name, const nlohmann::ordered_json& value) {
    if (value.is_structured()) return;
    rows.push_back({name, value.is_string()            ? value.get<std::string>()
                          : !value.is_number_integer() ? value.dump()
                          : name.ends_with("bytes")    ? bytes_text(value.get<double>())
                                                       : grouped_text(value.get<int64_t>())});
  };
  for (const auto& [name, value] : all.items()) {
    add(name, value);
    if (!value.is_object()) continue;
    for (const auto& [key, inner] : value.items()) add(name + " " + key, inner);
  }
  return "<h2>Environment, model and data</h2>\n" + html_table(rows);
}

}  // namespace

std::string report_page(const RunLog& log) {
  std::string body = "<h1>" + escape_html(name_of(log)) + "</h1>\n<p>" + escape_html(method_and_base(log)) +
                     "</p>\n<p class=\"quiet\">" + escape_html(log.directory.string()) + "</p>\n" + tiles(log) +
                     "<div class=\"plots\">\n";
  for (const NamedPlot& named : run_plots(log)) body += "<div>" + svg(named.plot) + "</div>\n";
  body += "</div>\n" + samples(log) + answers(log) + facts(log);
  if (!log.recipe.empty()) body += "<h2>Recipe</h2>\n<pre>" + escape_html(log.recipe) + "</pre>\n";
  return html_page(name_of(log), body);
}

std::vector<std::vector<std::string>> comparison_rows(const std::vector<RunLog>& logs) {
  std::vector<std::vector<std::string>> rows = {{"run", "steps", "loss", "eval loss", "perplexity", "accuracy",
                                                 "margin", "reward", "tokens/s", "time", "memory"}};
  for (const RunLog& log : logs) {
    const RunSummary run = summarize(log);
    const bool evaluated = run.best_step > 0;
    const auto of_headline = [&](const std::string& name) {
      const auto found = std::ranges::find(run.headline, name, &NamedNumbers::value_type::first);
      return found == run.headline.end() ? "-" : headline_text(name, found->second);
    };
    rows.push_back({name_of(log), std::to_string(run.steps), loss_text(run.loss),
                    evaluated ? loss_text(run.best_evaluation_loss) : "-",
                    evaluated && !std::isnan(run.best_perplexity) ? perplexity_text(run.best_perplexity) : "-",
                    of_headline("accuracy"), of_headline("margin"), of_headline("reward"),
                    grouped_text(std::llround(run.tokens_per_second)), seconds_text(run.seconds),
                    bytes_text(static_cast<double>(run.peak_memory_bytes))});
  }
  for (size_t column = rows[0].size(); column-- > 0;) {  // what no run has is left out
    const auto has = [&](const auto& row) { return row[column] != "-"; };
    if (logs.empty() || std::any_of(rows.begin() + 1, rows.end(), has)) continue;
    for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(column));
  }
  return rows;
}

std::string comparison_page(const std::vector<RunLog>& logs) {
  constexpr const char* kColors[] = {"#2f6fde", "#e0762d", "#2b9a66", "#b04ad0",
                                     "#c9a227", "#d64545", "#4aa8b8", "#777777"};
  Plot train{.title = "Loss", .x_label = "step", .y_label = ""}, eval = train;
  eval.title = "Evaluation loss";
  for (size_t i = 0; i < logs.size(); ++i) {
    const char* color = kColors[i % std::size(kColors)];
    for (const NamedPlot& named : run_plots(logs[i])) {
      if (named.name != "loss") continue;
      for (Curve curve : named.plot.curves) {
        if (curve.name == "each step") continue;
        Plot& plot = curve.name == "smoothed" ? train : eval;
        curve.name = logs.size() <= 8 ? name_of(logs[i]) : "";
        curve.color = color;
        plot.curves.push_back(curve);
      }
    }
  }
  std::string body = "<h1>" + std::to_string(logs.size()) + " runs</h1>\n" + html_table(comparison_rows(logs)) +
                     "<h2>Curves</h2>\n<div class=\"plots\"><div>" + svg(train, 720, 340) + "</div>\n";
  if (!eval.curves.empty()) body += "<div>" + svg(eval, 720, 340) + "</div>\n";
  body += "</div>\n";
  if (const std::vector<std::vector<std::string>> differences = difference_rows(logs); !differences.empty()) {
    body += "<h2>Where the recipes differ</h2>\n" + html_table(differences);
  }
  return html_page(std::to_string(logs.size()) + " runs", body);
}

std::vector<std::vector<std::string>> difference_rows(const std::vector<RunLog>& logs) {
  std::vector<std::vector<std::string>> differences = recipe_differences(logs);
  if (differences.empty()) return {};
  std::vector<std::string> head = {"recipe key"};
  for (const RunLog& log : logs) head.push_back(name_of(log));
  differences.insert(differences.begin(), head);
  return differences;
}

void require_replaceable_page(const std::filesystem::path& file, Replace replace) {
  require_replaceable_file(file, replace, kPageMark, "page of nibble");
}

void require_replaceable_plot(const std::filesystem::path& file, Replace replace) {
  require_replaceable_file(file, replace, kPlotMark, "plot of nibble");
}

void write_report(const std::filesystem::path& directory, const std::filesystem::path& target) {
  write_file_atomically(target, report_page(read_run_log(directory)));
}

}  // namespace nibble
