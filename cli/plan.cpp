// nibble plan: memory, time and bytes moved before anything is loaded.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "nibble/cli/commands.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/json_file.h"
#include "nibble/parallel/comm/mpi_comm.h"
#include "nibble/parallel/launch.h"
#include "nibble/recipes/machine_speed.h"
#include "nibble/recipes/plan.h"
#include "nibble/recipes/plan_job.h"

namespace nibble::cli {

namespace {

struct Flags {
  std::string recipe, max_memory, cluster;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool json = false, measure = false;
};

pid_t start(const std::vector<std::string>& words, int stdout_to) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int nothing = open("/dev/null", O_RDWR);
  dup2(nothing, STDIN_FILENO);
  dup2(stdout_to, STDOUT_FILENO);
  dup2(nothing, STDERR_FILENO);
  execvp(argv[0], argv.data());
  _exit(127);
}

// The first line from the pipe; empty when none comes.
std::string first_line(int from) {
  std::string said;
  char buffer[4096];
  for (size_t end = std::string::npos; end == std::string::npos; end = said.find('\n')) {
    pollfd ready = {from, POLLIN, 0};
    const int waited = poll(&ready, 1, 120'000);
    if (waited < 0 && errno == EINTR) continue;
    const ssize_t got = waited > 0 ? read(from, buffer, sizeof buffer) : 0;
    if (got <= 0) return "";
    said.append(buffer, static_cast<size_t>(got));
  }
  return said.substr(0, said.find('\n'));
}

// The first line that a launcher's command says on stdout; empty when it fails. Open MPI's mpirun may hang after its
// ranks have ended (a lock of PMIx), so it is given a moment only.
std::string answer_of(const std::vector<std::string>& words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "";
  const pid_t child = start(words, ends[1]);
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return "";
  }
  std::string said = first_line(ends[0]);
  close(ends[0]);
  for (int wait = 0; waitpid(child, nullptr, WNOHANG) == 0; ++wait) {
    if (wait == 200) kill(child, SIGKILL);
    usleep(10'000);
  }
  return said;
}

// Ranks as `launch` starts them, which measure this machine together.
MachineSpeed measure_under_mpi(const Flags& flags, const Recipe& recipe, const PlanJob& job,
                               std::span<const int64_t> tensors, int threads, int ranks, int64_t planned) {
  if (ranks > 1 && launched_ranks() == 1) {
    LaunchOptions options;
    options.ranks = ranks;
    options.threads = threads;
    options.root = geteuid() == 0;
    options.launcher = mpi_launcher(mpi_library());
    options.program = std::filesystem::read_symlink("/proc/self/exe").string();
    options.args = {"plan", flags.recipe};
    options.args.insert(options.args.end(), flags.overrides.begin(), flags.overrides.end());
    options.args.insert(options.args.end(), {"train.threads=" + std::to_string(threads), "--measure",
                                             "--ranks=" + std::to_string(planned)});
    const std::string said = answer_of(mpirun_command(options, mpi_library()));
    if (!said.empty()) return machine_speed_from_json(said);
    std::fprintf(stderr,
                 "note: mpirun did not start %d ranks, so they were measured as threads: exchanges look slower\n",
                 ranks);
  }
  return measure_machine(recipe, job, tensors, threads, ranks);
}

// One of those ranks.
void measure(const Flags& flags) {
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  const PlanJob job = plan_job(recipe);
  MpiSession session;
  const int ranks = flags.ranks > 0 ? flags.ranks : session.world().size();
  const int threads_of_rank = recipe.train.threads > 0 ? static_cast<int>(recipe.train.threads) : threads();
  try {
    const std::vector<int64_t> tensors = planned_tensor_degrees(recipe, job, ranks);
    const MachineSpeed speed = measure_machine(recipe, job, tensors, threads_of_rank, session.world());
    if (session.world().rank() == 0) std::printf("%s\n", to_json(speed).c_str());
    session.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    session.abort(70);
  }
}

void run(const Flags& flags) {
  if (flags.measure) return measure(flags);
  PlanRequest request;
  request.ranks = flags.ranks;
  if (!flags.max_memory.empty()) request.budget = static_cast<int64_t>(parse_bytes(flags.max_memory));
  if (!flags.cluster.empty()) request.cluster = parse_cluster(read_text_file(flags.cluster), flags.cluster);
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  request.measure = [&](const PlanJob& job, std::span<const int64_t> tensors, int threads, int ranks) {
    const int64_t planned = flags.ranks > 0 ? flags.ranks : std::max<int64_t>(1, plan_layout(recipe).ranks());
    return measure_under_mpi(flags, recipe, job, tensors, threads, ranks, planned);
  };
  const RecipePlan plan = plan_recipe(recipe, request);
  std::fputs((flags.json ? plan_json(plan) + "\n" : plan_text(plan)).c_str(), stdout);
}

}  // namespace

void add_plan_command(Command& nibble) {
  auto flags = std::make_shared<Flags>();
  Command command = nibble.subcommand("plan", "Memory, time and bytes moved of a run; loads no weights");
  command.option("recipe", flags->recipe, "RECIPE.json").required();
  command.option("overrides", flags->overrides, "Recipe keys to change: train.microbatch_size=2");
  command.option("--max-memory", flags->max_memory, "Memory budget of each rank, for its whole process: 2GiB");
  command.option("-n,--ranks", flags->ranks, "Ranks (the product of the recipe's degrees)").at_least(1);
  command.option("--cluster", flags->cluster, "Description of a cluster, JSON (this machine, which is measured)");
  command.flag("--measure", flags->measure,
               "Measure this machine with the ranks of this MPI job and print what plans are made from, JSON");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble plan qlora.json model.path=llama --max-memory 4GiB -n 4");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
