// nibble report and nibble compare: runs as pages to look at.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/cli/printing/table.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/train/run/run.h"
#include "nibble/recipes/report/report.h"

namespace nibble::cli {

namespace {

struct ReportFlags {
  std::string run, out, plots;
  Replace replace = Replace::own;
};

void report(const ReportFlags& flags) {
  const RunLog log = read_run_log(flags.run);
  const std::filesystem::path page =
      flags.out.empty() ? std::filesystem::path(flags.run) / "report.html" : std::filesystem::path(flags.out);
  guard_output(page, run_contents(flags.run));
  require_replaceable_page(page, flags.replace);
  const auto plot_file = [&](const NamedPlot& plot) {
    return std::filesystem::path(flags.plots) / (plot.name + ".svg");
  };
  const std::vector<NamedPlot> plots = flags.plots.empty() ? std::vector<NamedPlot>() : run_plots(log);
  for (const NamedPlot& plot : plots) {
    guard_output(plot_file(plot), run_contents(flags.run));
    require_replaceable_plot(plot_file(plot), flags.replace);
  }
  std::error_code error;
  if (!flags.plots.empty()) std::filesystem::create_directories(flags.plots, error);
  if (error) throw system_error(flags.plots, "cannot be made", error.value());
  write_file_atomically(page, report_page(log));
  say(stdout, page.string());
  for (const NamedPlot& plot : plots) {
    write_file_atomically(plot_file(plot), svg(plot.plot));
    say(stdout, plot_file(plot).string());
  }
}

struct CompareFlags {
  std::vector<std::string> runs;
  std::string out;
  Replace replace = Replace::own;
  bool json = false;
};

void print_as_json(const std::vector<RunLog>& logs) {
  nlohmann::ordered_json runs = nlohmann::ordered_json::array(), differences = nlohmann::ordered_json::object();
  for (const RunLog& log : logs) {
    const RunSummary run = summarize(log);
    nlohmann::ordered_json output = {{"run", log.directory.string()},
                                     {"steps", run.steps},
                                     {"tokens", run.tokens},
                                     {"loss", run.loss},
                                     {"tokens_per_second", run.tokens_per_second},
                                     {"seconds", run.seconds},
                                     {"peak_memory_bytes", run.peak_memory_bytes}};
    if (run.best_step > 0) {
      output["eval_loss"] = run.best_evaluation_loss;
      if (!std::isnan(run.best_perplexity)) output["perplexity"] = run.best_perplexity;
      output["eval_step"] = run.best_step;
    }
    for (const auto& [name, value] : run.headline) output[name] = value;
    runs.push_back(output);
  }
  for (const std::vector<std::string>& row : recipe_differences(logs)) {
    differences[row[0]] = std::vector<std::string>(row.begin() + 1, row.end());
  }
  print_json({{"runs", runs}, {"recipe_differences", differences}});
}

// A line a key, or a run where these are more, whose line would be too long to read.
void print_differences(std::vector<std::vector<std::string>> by_key) {
  std::printf("\nWhere the recipes differ:\n");
  const size_t runs = by_key.front().size();
  if (by_key.size() >= runs) return print_table(std::move(by_key));
  std::vector<std::vector<std::string>> by_run(runs);
  for (const std::vector<std::string>& row : by_key) {
    for (size_t i = 0; i < runs; ++i) by_run[i].push_back(i == 0 && by_run[0].empty() ? "run" : row[i]);
  }
  print_table(std::move(by_run));
}

void compare(const CompareFlags& flags) {
  std::vector<RunLog> logs;
  for (const std::string& run : flags.runs) {
    // Of sweep/*: the page that a sweep, or an earlier comparison, wrote beside the runs.
    if (run.ends_with(".html") && std::filesystem::is_regular_file(run)) continue;
    if (!flags.out.empty()) guard_output(flags.out, run_contents(run));
    logs.push_back(read_run_log(run));
  }
  if (logs.empty()) throw UsageError("there is no run to compare", "give the output.dir of each run");
  if (!flags.out.empty()) {
    require_replaceable_page(flags.out, flags.replace);
    write_file_atomically(flags.out, comparison_page(logs));
  }
  if (flags.json) return print_as_json(logs);
  print_table(comparison_rows(logs));
  std::vector<std::vector<std::string>> differences = difference_rows(logs);
  if (!differences.empty()) print_differences(std::move(differences));
}

}  // namespace

void add_report_command(Command& nibble) {
  auto flags = std::make_shared<ReportFlags>();
  Command command = nibble.subcommand("report", "One HTML page of a run: curves, samples, recipe, environment");
  command.option("run", flags->run, "output.dir of a run, finished or not").required();
  command.option("--out", flags->out, "File to write (RUN/report.html)").not_empty();
  command.force_flag(flags->replace, "a page or plot of nibble, as without it");
  command.option("--plots", flags->plots, "Also write every plot as SVG into this directory");
  command.footer("Example: nibble report runs/mine");
  command.run([flags] { report(*flags); });
}

void add_compare_command(Command& nibble) {
  auto flags = std::make_shared<CompareFlags>();
  Command command = nibble.subcommand("compare", "Runs side by side: numbers, and where their recipes differ");
  command.option("runs", flags->runs, "output.dir of each run").required();
  command.option("--out", flags->out, "Also write an HTML page with the curves over each other").not_empty();
  command.force_flag(flags->replace, "a page or plot of nibble, as without it");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble compare runs/lora runs/qlora --out compare.html");
  command.run([flags] { compare(*flags); });
}

}  // namespace nibble::cli
