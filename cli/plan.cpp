// nibble plan: memory, time and bytes moved before anything is loaded.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/cli/processes/failure.h"
#include "nibble/cli/processes/own_program.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/files/scratch_directory.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/processes/child_process.h"
#include "nibble/parallel/comm/mpi_comm.h"
#include "nibble/parallel/launch.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/plan/dry_run.h"
#include "nibble/recipes/plan/machine_speed.h"
#include "nibble/recipes/plan/plan.h"
#include "nibble/recipes/plan/plan_job.h"

namespace nibble::cli {

namespace fs = std::filesystem;

namespace {

struct PlanFlags {
  std::string recipe, max_memory, cluster, measure;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool json = false;
};

// Whether the launcher's command has left `file`. Open MPI's mpirun may hang after its ranks have ended (a lock of
// PMIx), so it is given a moment only.
bool ranks_left(const fs::path& file, const std::vector<std::string>& words) {
  constexpr int kPatience = 12'000, kMoment = 200;  // hundredths of a second
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  std::optional<ChildProcess> ranks;
  try {
    ranks.emplace(words, ChildProcess::Streams{nothing, nothing, nothing});
  } catch (const IoError&) {  // there is no mpirun
  }
  close(nothing);
  for (int waited = 0, since = 0; ranks && !ranks->ended(); ++waited) {
    if (fs::exists(file)) ++since;
    if (waited == kPatience || since == kMoment) ranks->send(SIGKILL);
    usleep(10'000);
  }
  return fs::exists(file);
}

// Ranks as `launch` starts them, which measure this machine together.
MachineSpeed measure_under_mpi(const PlanFlags& flags, const Recipe& recipe, const PlanJob& job,
                               std::span<const int64_t> tensors, int threads, int ranks, int64_t planned) {
  if (ranks > 1 && launched_ranks() == 1) {
    LaunchOptions options;
    options.ranks = ranks;
    options.threads = threads;
    options.root = geteuid() == 0;
    options.launcher = mpi_launcher(mpi_library());
    options.program = own_program();
    options.args = {"plan", flags.recipe};
    options.args.insert(options.args.end(), flags.overrides.begin(), flags.overrides.end());
    const ScratchDirectory scratch;
    const fs::path file = scratch.path() / "speed.json";
    options.args.insert(options.args.end(), {"train.threads=" + std::to_string(threads), "--measure=" + file.string(),
                                             "--ranks=" + std::to_string(planned)});
    if (ranks_left(file, mpirun_command(options, mpi_library()))) return machine_speed_from_json(read_text_file(file));
    std::fprintf(stderr,
                 "note: %d ranks under mpirun left no measurement, so they were measured as threads: exchanges look "
                 "slower\n",
                 ranks);
  }
  return measure_machine(recipe, job, tensors, threads, ranks);
}

// One of those ranks.
void measure(const PlanFlags& flags) {
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  std::vector<std::filesystem::path> inputs = recipe.inputs();
  inputs.insert(inputs.end(), {flags.recipe, flags.cluster});
  guard_output(flags.measure, inputs);
  require_own_file(flags.measure, begins_with(R"({"cores":)"), "nibble plan --measure");
  const PlanJob job = plan_job(recipe);
  MpiSession session;
  const int ranks = flags.ranks > 0 ? flags.ranks : session.world().size();
  const int threads_of_rank = recipe.train.threads > 0 ? static_cast<int>(recipe.train.threads) : threads();
  try {
    const std::vector<int64_t> tensors = planned_tensor_degrees(recipe, job, ranks);
    const MachineSpeed speed = measure_machine(recipe, job, tensors, threads_of_rank, session.world());
    if (session.world().rank() == 0) write_file_atomically(flags.measure, to_json(speed) + "\n");
    session.finish();
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    session.abort(failure.exit_code, [&] { say_error(failure.line); });
  }
}

// Of the whole run: train.steps, or counted in the data, which are encoded for it.
int64_t total_steps(const Recipe& recipe) {
  if (recipe.train.steps) return *recipe.train.steps;
  try {
    return dry_run(recipe, Observer()).total_steps;
  } catch (const Error& error) {  // memory and a step's time need no data
    say(stderr, std::string("note: the whole run's time is not known: ") + error.what());
    return 0;
  }
}

void run(const PlanFlags& flags) {
  if (!flags.measure.empty()) return measure(flags);
  PlanRequest request;
  request.ranks = flags.ranks;
  if (!flags.max_memory.empty()) request.budget = static_cast<int64_t>(parse_bytes(flags.max_memory));
  if (!flags.cluster.empty()) request.cluster = parse_cluster(read_text_file(flags.cluster), flags.cluster);
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  const int64_t planned = flags.ranks > 0 ? flags.ranks : std::max<int64_t>(1, plan_layout(recipe).mesh.ranks());
  if (request.budget == 0 && !request.cluster) {
    const MemoryBudget budget = this_machine().memory_budget(planned);
    request.budget = budget.bytes;
    request.budget_set_by = budget.set_by;
  }
  Observer observer;
  observer.on_message = [](const std::string& line) { say(stderr, line); };
  tokenizer_path_of(with_adapters_template(recipe, observer), observer);  // says where they are not the model's
  request.measure = [&](const PlanJob& job, std::span<const int64_t> tensors, int threads, int ranks) {
    return measure_under_mpi(flags, recipe, job, tensors, threads, ranks, planned);
  };
  RecipePlan plan = plan_recipe(recipe, request);
  plan.total_steps = total_steps(recipe);
  std::fputs((flags.json ? plan_json(plan) + "\n" : plan_text(plan)).c_str(), stdout);
}

}  // namespace

void add_plan_command(Command& nibble) {
  auto flags = std::make_shared<PlanFlags>();
  Command command = nibble.subcommand("plan", "Memory, time and bytes moved of a run; loads no weights");
  command.option("recipe", flags->recipe, "RECIPE.json").required();
  command.option("overrides", flags->overrides, "Recipe keys to change: train.microbatch_size=2");
  command.option(
      "--max-memory", flags->max_memory,
      "Memory budget of each rank, for its whole process: 2GiB (default: its share of this machine or container)");
  command.option("-n,--ranks", flags->ranks, "Ranks (the product of the recipe's degrees)").at_least(1);
  command.option("--cluster", flags->cluster, "Description of a cluster, JSON (this machine, which is measured)");
  command.option("--measure", flags->measure,
                 "Measure this machine with the ranks of this MPI job; this file gets what plans are made from, JSON");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble plan qlora.json model.path=llama --max-memory 4GiB -n 4");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
