// nibble sweep: a grid of runs, each a process of its own, so that one that fails takes none of the others with it.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/progress.h"
#include "nibble/cli/printing/say.h"
#include "nibble/cli/printing/table.h"
#include "nibble/cli/processes/own_program.h"
#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/processes/child_process.h"
#include "nibble/core/train/run/own_contents.h"
#include "nibble/core/train/run/stop_signal.h"
#include "nibble/parallel/launch.h"
#include "nibble/parallel/plan/ladder.h"
#include "nibble/recipes/config/sweep.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/report/report.h"
#include "nibble/recipes/report/sweep_ranking.h"

namespace nibble::cli {

namespace {

constexpr int kInterrupted = 75;

struct SweepFlags {
  std::string recipe;
  std::vector<std::string> axes;
  int jobs = 1;
  std::string max_memory;
  bool json = false;
};

/// The code of a run becomes the sweep's.
class RunFailed : public Error {
 public:
  RunFailed(const std::string& place, int code)
      : Error(place, "the run failed with exit code " + std::to_string(code),
              "its log.txt says why; run the same command to try again what failed"),
        code_(code) {}
  int exit_code() const override { return code_; }

 private:
  int code_;
};

/// Starts `nibble train`, its messages in DIR/log.txt.
ChildProcess start(const SweepFlags& flags, const SweepRun& run, int threads) {
  std::error_code error;
  std::filesystem::create_directories(run.directory, error);
  if (error) throw system_error(run.directory, "cannot be made", error.value());
  std::vector<std::string> words = {own_program(), "train", flags.recipe};
  words.insert(words.end(), run.overrides.begin(), run.overrides.end());
  if (flags.jobs > 1) words.push_back("train.threads=" + std::to_string(threads));
  const std::string path = (run.directory / "log.txt").string();
  const int log = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log < 0) throw system_error(path, "cannot be opened", errno);
  ChildProcess child(words, {-1, log, log});
  close(log);
  return child;
}

std::string last_line(const std::filesystem::path& log) {
  std::FILE* file = std::fopen(log.c_str(), "r");
  if (file == nullptr) return "";
  std::string last;
  char line[4096];
  std::fseek(file, -static_cast<long>(sizeof line), SEEK_END);  // of a shorter one nothing is left out
  while (std::fgets(line, sizeof line, file)) last = line;
  std::fclose(file);
  while (!last.empty() && last.back() == '\n') last.pop_back();
  return last;
}

struct Steps {
  int64_t done = 0, total = 0;
};

/// Of a run that is under way; 0 of 0 before it has begun.
Steps steps_of(const std::filesystem::path& run) {
  const auto facts = nlohmann::json::parse(std::ifstream(run / "run.json"), nullptr, false);
  const auto last = nlohmann::json::parse(last_line(run / "metrics.jsonl"), nullptr, false);  // it may be half written
  Steps steps;
  if (facts.is_object()) steps.total = facts.value("/data/total_steps"_json_pointer, int64_t{0});
  if (last.is_object()) steps.done = last.value("step", int64_t{0});
  return steps;
}

/// As many runs at once as asked for, but no more than have room together by their plans. Throws IoError where
/// --max-memory has no room for the largest.
int jobs_with_room(const SweepFlags& flags, const std::vector<SweepRun>& runs) {
  if (flags.jobs == 1 && flags.max_memory.empty()) return 1;
  const int64_t room = flags.max_memory.empty() ? this_machine().usable_memory(flags.jobs) * flags.jobs
                                                : static_cast<int64_t>(parse_bytes(flags.max_memory));
  int64_t largest = 1;
  for (const SweepRun& run : runs) {
    const Recipe recipe = read_recipe(flags.recipe, run.overrides);
    const PlanJob job = plan_job(recipe);
    const PlanLayout layout = plan_layout(recipe);
    largest = std::max(largest, plan_memory(job, layout, place_stages(job, layout, 1), 1).needed_bytes());
  }
  if (largest > room && !flags.max_memory.empty()) {
    throw IoError("--max-memory " + flags.max_memory,
                  "the largest run needs " + bytes_text(static_cast<double>(largest)),
                  "allow that much, or lower train.microbatch_size or data.max_length");
  }
  const int fitting = static_cast<int>(std::clamp<int64_t>(room / largest, 1, flags.jobs));
  if (fitting < flags.jobs) {
    std::fprintf(stderr, "%d at once instead of %d: a run needs up to %s, there are %s\n", fitting, flags.jobs,
                 bytes_text(static_cast<double>(largest)).c_str(), bytes_text(static_cast<double>(room)).c_str());
  }
  return fitting;
}

/// Runs what is not done, at most flags.jobs at once. Exit codes by index.
std::map<size_t, int> run_all(const SweepFlags& flags, const std::vector<SweepRun>& runs) {
  std::map<size_t, int> codes;
  std::map<size_t, ChildProcess> running;
  const StopSignal stop;
  bool told = false;
  const int threads = std::max(1, this_machine().usable_cores() / flags.jobs);
  size_t next = 0, ended = 0;
  const auto begin = std::chrono::steady_clock::now();
  // Of what is left when one has ended: the others take as long.
  const auto time_left = [&] {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    const size_t left = runs.size() - next + running.size() - 1;
    return left == 0
               ? ""
               : "; left " + seconds_text(taken.count() / static_cast<double>(++ended) * static_cast<double>(left));
  };
  const auto name_of = [&](size_t index) {
    return std::to_string(index + 1) + "/" + std::to_string(runs.size()) + " " + runs[index].name + " ";
  };
  ProgressPrinter printer(stderr);
  const auto tell = [&](size_t index, const std::string& what) { printer.observer().message(name_of(index) + what); };
  // On a terminal only, where the line is renewed.
  const auto show_steps = [&] {
    std::string line;
    int64_t steps = 0, total = 0;
    for (const auto& [index, child] : running) {
      const Steps at = steps_of(runs[index].directory);
      line += name_of(index) +
              formatted("step %lld/%lld  ", static_cast<long long>(at.done), static_cast<long long>(at.total));
      steps += at.done;
      total = std::max(total, at.total);
    }
    // The others are taken to have as many.
    const auto all = static_cast<int64_t>(runs.size() - next + running.size() + ended);
    if (total > 0) printer.counted(line + "of all", steps + static_cast<int64_t>(ended) * total, all * total);
  };
  const bool terminal = isatty(STDERR_FILENO) == 1;
  if (terminal) printer.counted("sweep", 0, static_cast<int64_t>(runs.size()));
  while ((next < runs.size() && !stop.requested()) || !running.empty()) {
    if (stop.requested() && !std::exchange(told, true)) {
      for (const auto& [index, child] : running) child.send(SIGTERM);
    }
    for (; !stop.requested() && next < runs.size() && static_cast<int>(running.size()) < flags.jobs; ++next) {
      const bool done = is_done(flags.recipe, runs[next]);
      tell(next, done ? "is done" : "starts");
      done ? void(codes[next] = 0) : void(running.emplace(next, start(flags, runs[next], threads)));
    }
    const size_t before = running.size();
    for (auto one = running.begin(); one != running.end();) {
      const std::optional<int> status = one->second.ended();
      if (!status) {
        ++one;
        continue;
      }
      const size_t index = one->first;
      const int code = codes[index] = exit_code_of(*status);
      // One that we told to stop before it listened has the signal's code.
      const bool stopped = code == kInterrupted || (told && code == 128 + SIGTERM);
      tell(index, code == 0 ? "ended" + time_left()
                  : stopped ? "stopped"
                            : "failed: " + last_line(runs[index].directory / "log.txt"));
      one = running.erase(one);
    }
    if (running.size() == before && before > 0) poll(nullptr, 0, 100);
    if (terminal && !running.empty()) show_steps();
  }
  if (stop.requested()) throw Interrupted("sweep", "stopped", "run the same command to continue");
  return codes;
}

struct Ranked {
  std::vector<RunLog> logs;  // best first; where nothing tells them apart as in the grid
  SweepMeasure by = SweepMeasure::none;
};

// betas: objective.beta of each run.
Ranked finished(const std::vector<SweepRun>& runs, const std::map<size_t, int>& codes, SweepMeasure measure,
                const std::vector<double>& betas) {
  std::vector<std::pair<std::vector<double>, RunLog>> logs;
  for (const auto& [index, code] : codes) {
    if (code != 0) continue;
    RunLog log = read_run_log(runs[index].directory);
    logs.emplace_back(sweep_order(measure, summarize(log), betas[index]), std::move(log));
  }
  std::stable_sort(logs.begin(), logs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto is_finite = [](double number) { return std::isfinite(number); };
  const bool is_measured = !logs.empty() && std::ranges::any_of(logs.front().first, is_finite);
  Ranked ranked{{}, is_measured ? measure : SweepMeasure::none};
  for (auto& [order, log] : logs) ranked.logs.push_back(std::move(log));
  return ranked;
}

std::string best_line(const Ranked& ranked) {
  const std::string run = ranked.logs.front().directory.string();
  switch (ranked.by) {
    case SweepMeasure::loss:
      return "best: " + run;
    case SweepMeasure::preference:
      return "best by accuracy, then margin: " + run;
    case SweepMeasure::reward:
      return "best by reward: " + run;
    case SweepMeasure::none:
      break;
  }
  return "best: none, as the runs share no measure; compare them with nibble eval";
}

void print(const Ranked& ranked, const std::filesystem::path& page, bool as_json) {
  if (!as_json) {
    if (ranked.logs.empty()) return;
    print_table(comparison_rows(ranked.logs));
    say(stdout, best_line(ranked));
    return say(stdout, "report: " + page.string());
  }
  nlohmann::ordered_json output = nlohmann::ordered_json::array();
  for (const RunLog& log : ranked.logs) {
    const RunSummary summary = summarize(log);
    output.push_back({{"run", log.directory.string()}, {"loss", summary.loss}});
    if (summary.best_step > 0) output.back()["eval_loss"] = summary.best_evaluation_loss;
    for (const auto& [name, value] : summary.headline) output.back()[name] = value;
  }
  const std::string_view measure = sweep_measure_name(ranked.by);
  const nlohmann::ordered_json ranked_by = measure.empty() ? nullptr : nlohmann::ordered_json(measure);
  print_json({{"runs", output}, {"ranked_by", ranked_by}});
}

void run(const SweepFlags& given) {
  SweepFlags flags = given;
  const std::vector<SweepAxis> axes = parse_sweep_axes(flags.recipe, flags.axes);
  for (const SweepAxis& axis : axes) {
    if (flags.jobs > 1 && axis.key == "train.threads") throw UsageError("is set by --jobs", "leave out one", axis.key);
  }
  const std::vector<SweepRun> runs = sweep_runs(flags.recipe, axes);
  flags.jobs = jobs_with_room(flags, runs);
  const std::filesystem::path directory = runs.front().directory.parent_path();
  const std::filesystem::path page = directory / "sweep.html";
  if (std::filesystem::exists(page) && !begins_with_mark(page, kPageMark)) {
    throw UsageError("is no page of nibble", "move it away, or choose another output.dir", page.string());
  }
  // What ranks the runs is read before them: the file may be another one when they have ended.
  const SweepMeasure measure = sweep_measure(read_recipe(flags.recipe, runs.front().overrides), axes);
  std::vector<double> betas;
  for (const SweepRun& run : runs) betas.push_back(read_recipe(flags.recipe, run.overrides).objective.beta);
  const std::map<size_t, int> codes = run_all(flags, runs);

  const Ranked ranked = finished(runs, codes, measure, betas);
  if (!ranked.logs.empty()) write_file_atomically(page, comparison_page(ranked.logs));
  print(ranked, page, flags.json);
  for (const auto& [index, code] : codes) {
    if (code != 0) throw RunFailed(runs[index].directory.string(), code);
  }
}

}  // namespace

void add_sweep_command(Command& nibble) {
  auto flags = std::make_shared<SweepFlags>();
  Command command =
      nibble.subcommand("sweep", "Run a recipe with every combination of values; goes on where it stopped");
  command.option("recipe", flags->recipe, "RECIPE.json; its output.dir holds the runs").required();
  command.option("axes", flags->axes, "key=v1,v2 for each key tried, key=value for the others").required();
  command.option("--jobs", flags->jobs, "Runs at once; each gets its share of the cores").at_least(1).shows_default();
  command.option("--max-memory", flags->max_memory, "Memory of all runs at once: 8GiB (what the machine has)");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble sweep qlora.json optimizer.lr=1e-4,2e-4 adapter.r=8,16 output.dir=runs/sweep");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
