// nibble train: run a recipe.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/progress.h"
#include "nibble/cli/printing/say.h"
#include "nibble/cli/processes/around_mpirun.h"
#include "nibble/cli/processes/failure.h"
#include "nibble/cli/processes/ranks_here.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/numa_nodes.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/comm/same_everywhere.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/text/unicode/visible_text.h"
#include "nibble/core/train/run/stop_signal.h"
#include "nibble/parallel/comm/mpi_comm.h"
#include "nibble/parallel/launch.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/train.h"

namespace nibble::cli {

namespace {

struct TrainFlags {
  std::string recipe, max_memory;
  std::vector<std::string> overrides;
  bool profile = false;

  size_t budget() const { return max_memory.empty() ? 0 : parse_bytes(max_memory); }
};

// With --profile or without.
void train(const TrainFlags& flags, const Recipe& recipe, RankContext& rank, const Observer& observer) {
  flags.profile ? train_profiled(recipe, rank, observer) : nibble::train(recipe, rank, observer);
}

// Of the threads that the recipe asks for: launch has said so of those it gives.
void warn_of_crowd(const Recipe& recipe, int ranks, const Observer& observer) {
  const int threads = static_cast<int>(recipe.train.threads);
  const std::string warning = threads > 1 ? crowd_warning(ranks, threads) : "";
  if (!warning.empty()) observer.message(warning);
}

void run_alone(const TrainFlags& flags) {
  StopSignal stop(StopSignal::End::resumable, StopPolicy::at_once);  // first: while the model loads it counts as well
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  LocalRank rank(static_cast<int>(recipe.train.threads), static_cast<uint64_t>(recipe.train.seed), flags.budget());
  ProgressPrinter printer(stderr);
  Observer observer = printer.observer();
  observer.on_stall = [](const std::string& line) { say(stderr, line); };
  stop.watch(observer);
  warn_of_crowd(recipe, 1, observer);
  train(flags, recipe, rank.context(), observer);
}

std::map<std::string, std::string> fingerprints(const Recipe& recipe) {
  const std::string text = to_json(recipe);
  return {{"recipe", hash_bytes(std::as_bytes(std::span(text)))},
          {"nibble (program file)", hash_file(std::filesystem::read_symlink("/proc/self/exe"))}};
}

int threads_of(const Recipe& recipe, const MpiSession& session) {
  if (recipe.train.threads > 0) return static_cast<int>(recipe.train.threads);
  if (std::getenv("OMP_NUM_THREADS")) return threads();
  return std::max(1, threads() / session.ranks_here());
}

// stop: gone when it fails, so that the launcher's SIGTERM ends a rank that waits to speak.
void run_as_rank(const TrainFlags& flags, MpiSession& session, std::unique_ptr<StopSignal> stop) {
  Communicator& world = session.world();
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  world.settings().timeout_seconds = recipe.parallel.timeout_seconds;
  require_same_everywhere(world, fingerprints(recipe));
  const std::vector<NumaNode> nodes = numa_nodes();
  bind_thread(cores_of_rank(nodes, session.place_here(), session.ranks_here()));
  MemoryPool pool(flags.budget());
  RankContext rank{world, pool, threads_of(recipe, session), static_cast<uint64_t>(recipe.train.seed)};
  set_threads(rank.threads);
  ProgressPrinter printer(stderr);
  printer.go_through_launch(offered_columns());
  Observer observer;
  observer.on_stall = [](const std::string& line) { say(stderr, line); };
  if (world.rank() == 0) {
    const auto on_stall = observer.on_stall;
    observer = printer.observer();
    observer.on_stall = on_stall;
    observer.message(session.description() + ", " + count_text(rank.threads, "thread") + " each");
  }
  stop->watch(observer);
  warn_of_crowd(recipe, session.ranks_here(), observer);
  train(flags, recipe, rank, observer);
}

// Launchers of Python programs set WORLD_SIZE; their ranks cannot find each other here, and each would train alone.
void refuse_other_launchers() {
  const char* size = std::getenv("WORLD_SIZE");
  if (size == nullptr || std::atoi(size) <= 1) return;
  const std::string ranks = std::to_string(std::atoi(size));
  throw UsageError("WORLD_SIZE is " + ranks + ", but no MPI launcher started this process",
                   "start the ranks with nibble launch -n " + ranks + ", or unset WORLD_SIZE to train on one");
}

// What this rank has to say, also where mpirun does not pass it on.
[[noreturn]] void end_all(MpiSession& session, int exit_code, const std::string& what) {
  session.abort(exit_code, [&] {
    send_to_launch(visible_text("error: " + what));
    say_error(what);
  });
}

void run(const TrainFlags& flags) {
  if (launched_ranks() == 1) {
    refuse_other_launchers();
    return run_alone(flags);
  }
  auto stop = std::make_unique<StopSignal>(StopSignal::End::resumable, StopPolicy::at_once, true);
  MpiSession session;
  const int rank = session.world().rank();
  stop->take(rank > 0);
  try {
    run_as_rank(flags, session, std::move(stop));
    session.finish();
  } catch (const Interrupted& interrupted) {
    // All ranks are here. The line comes before any of them ends: a launcher ends the others with the first.
    if (rank == 0) say(stderr, std::string(interrupted.what()));
    session.finish();
    std::exit(interrupted.exit_code());
  } catch (const std::bad_alloc&) {
    end_all(session, 4, session.world().describe(rank) + " is out of memory; shard more, or use a 4-bit base");
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    end_all(session, failure.exit_code, failure.line);
  }
}

}  // namespace

void add_train_command(Command& nibble) {
  auto flags = std::make_shared<TrainFlags>();
  Command command = nibble.subcommand("train", "Run a recipe: fine-tune or pretrain");
  command.option("recipe", flags->recipe, "RECIPE.json").required();
  command.option("--max-memory", flags->max_memory, "Memory budget of this rank's tensors: 2GiB (none)");
  command.option("overrides", flags->overrides, "Recipe keys to change: train.steps=100 optimizer.lr=1e-4");
  command.flag("--profile", flags->profile, "Measure where the time goes: a trace in output.dir/profile, a summary");
  command.footer(
      "Stopped by SIGTERM, Ctrl-C or a closed terminal it finishes the step, saves and exits with 75; the same command "
      "goes on from there.\n"
      "Example: nibble train qlora.json model.path=llama data.train=my.jsonl output.dir=runs/mine");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
