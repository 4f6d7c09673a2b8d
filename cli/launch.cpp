// nibble launch: start a run with several ranks.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/cli/printing/wrap.h"
#include "nibble/cli/processes/around_mpirun.h"
#include "nibble/cli/processes/own_program.h"
#include "nibble/cli/processes/ranks_here.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/numa_nodes.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/processes/child_process.h"
#include "nibble/core/text/unicode/visible_text.h"
#include "nibble/core/train/run/stop_signal.h"
#include "nibble/parallel/comm/mpi_comm.h"
#include "nibble/parallel/launch.h"
#include "nibble/recipes/environment/machine.h"

namespace nibble::cli {

namespace {

constexpr const char* kGoesOn = "the same command continues from the last checkpoint";
constexpr const char* kCheckPath = "check that PATH names the directories of its programs and of ssh";
constexpr const char* kNeedsLess = "shard more, or use a smaller microbatch or a 4-bit base; ";

struct LaunchFlags {
  int ranks = 0, threads = 0;
  std::string hosts, max_memory, print;
  std::vector<std::string> command;
  std::vector<Argument> of_mpirun;
};

std::atomic<int> signals{0};  // a signal handler has no other way to reach its state

bool mpirun_was_ended() { return signals > 2; }

/// Passes on to the ranks what this process is asked: they save, or leave at once (StopSignal). They get it directly:
/// libraries that mpirun loads may take its handlers. Each gets it once, and one would be enough. The third time mpirun
/// ends them.
class Messenger {
 public:
  /// everywhere: there are ranks on other hosts.
  Messenger(const ChildProcess& launcher, bool everywhere) : launcher_(launcher), everywhere_(everywhere) {}

  void look() {
    if (mpirun_was_ended() && !std::exchange(ended_, true)) launcher_.send(SIGTERM);
    for (; sent_ < std::min<int>(signals, 2); ++sent_) {
      if (send()) continue;
      if (!mpirun_was_ended() && !std::exchange(warned_, true))
        std::fputs("the ranks will be stopped as soon as they run\n", stderr);
      return;
    }
  }

 private:
  bool send() const {
    const std::vector<pid_t> here = ranks_started_by(launcher_.id());
    bool ready = false;
    for (const pid_t rank : here) {
      if (!catches(rank, SIGUSR1)) continue;
      kill(rank, SIGUSR1);
      ready = true;
    }
    if (here.empty() && everywhere_ && catches(launcher_.id(), SIGUSR1)) {
      launcher_.send(SIGUSR1);  // which Open MPI's and MPICH's pass on
      ready = true;
    }
    return ready;
  }

  const ChildProcess& launcher_;
  bool everywhere_, warned_ = false, ended_ = false;
  int sent_ = 0;
};

bool is_rule(const std::string& line) {
  return line.size() >= 60 && (line[0] == '-' || line[0] == '=') &&
         line.find_first_not_of(line[0]) == std::string::npos;
}

/// What mpirun says between rules (of dashes: Open MPI; of equal signs: MPICH): about how the job ended, which we say
/// in a line of our own, or about why it did not begin.
class LauncherTalk {
 public:
  void line(const std::string& text) {
    const bool stops = text.starts_with("stopping: "), wrong = text.starts_with("error: ");
    if (mpirun_was_ended() && !stops && !wrong) return;    // mpirun's of its end, a crash with its stack too
    if (text.empty() && !inside_ && (renews_ || left_)) {  // its rank leaves the line that it renewed
      leave();
      left_ = false;
    } else if (is_rule(text)) {
      if (inside_) end_block();
      inside_ = !inside_;
    } else if (inside_) {
      block_ += text + "\n";
    } else if (text.find("ORTE_ERROR_LOG: ") != std::string::npos) {
      log_.push_back(text);  // Open MPI's of itself, now and then while it ends a job that a rank has aborted
    } else if (text == "mpirun: Forwarding signal " + std::to_string(SIGXFSZ) + " to job") {
      met_file_limit_ = true;
    } else if (!of_hydra(text)) {
      stopped_ = stopped_ || stops;
      if (stops && signals == 0) {  // mpirun may end the rank because another one is lost: nothing is saved then
        unasked_ = text;
        return;
      }
      if (!wrong) say_unasked();
      // Ranks that fail alike may all come to say so before the first one's abort ends the others.
      if (!wrong || errors_.insert(text).second) show(text);
    }
  }
  /// A line of one rank that its next one takes the place of; empty: it is taken away.
  void renewed(const std::string& text) {
    std::fprintf(stderr, "\r%s\x1b[K", visible_text(text).substr(0, terminal_columns(stderr) - 1).c_str());
    renews_ = !text.empty();
    left_ = false;
  }
  /// Whether a rank has said why the job ends.
  bool failed() const { return aborted_ || !errors_.empty(); }
  /// Whether mpirun has tried to write a file beyond `ulimit -f`.
  bool met_file_limit() const { return met_file_limit_; }
  /// Whether a rank has said that it stops, as it was asked.
  bool stopped() const { return stopped_; }
  void finish() {
    leave();
    if (mpirun_was_ended()) return;
    if (inside_) end_block();
    if (failed() || !lost_.empty()) return;
    say_unasked();
    for (const std::string& text : log_) show(text);
  }
  /// "rank 2 on host alpha was ended by signal 9", as far as mpirun tells it, if that is what happened.
  const std::string& lost() const { return lost_; }

 private:
  // MPICH's words after a rank was lost or has ended the job. It names the one that was lost, or one that it has ended
  // itself or that UCX has aborted since.
  bool of_hydra(const std::string& text) {
    const char* const ended = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING";
    const size_t signal = text.find("(signal ");
    if (text.starts_with(ended) && signal != std::string::npos && !hydra_process_.empty()) {
      lost_ = "a rank was lost (mpiexec.hydra names " + hydra_process_ + ", ended by signal " +
              std::to_string(std::atoi(text.c_str() + signal + 8)) + ")";
    }
    const bool aborted = text.starts_with("Abort(") && text.find("MPI_Abort(") != std::string::npos;
    aborted_ = aborted_ || aborted;
    return aborted || text.starts_with(ended) || text.starts_with("This typically refers to a problem with your") ||
           text.starts_with("Please see the FAQ page for debugging");
  }

  void end_block() {
    int rank = 0, process = 0, signal = 0;
    char host[256];
    const size_t noticed = block_.find("process rank "), hydra = block_.find("=   PID ");
    if (hydra != std::string::npos &&
        std::sscanf(block_.c_str() + hydra, "=   PID %d RUNNING AT %255s", &process, host) == 2) {
      hydra_process_ = "process " + std::to_string(process) + " on host " + host;
    } else if (noticed != std::string::npos &&
               std::sscanf(block_.c_str() + noticed, "process rank %d with PID %d on node %255s exited on signal %d",
                           &rank, &process, host, &signal) == 4) {
      lost_ = "rank " + std::to_string(rank) + " on host " + host + " was ended by signal " + std::to_string(signal);
    } else if (block_.find("MPI_ABORT was invoked") == std::string::npos &&
               block_.find("non-zero exit code") == std::string::npos &&
               block_.find("non-zero status") == std::string::npos) {
      leave();
      std::fputs(visible_text(block_, Lines::many).c_str(), stderr);
    }
    block_.clear();
  }

  void say_unasked() {
    if (!unasked_.empty()) show(std::exchange(unasked_, ""));
  }

  void show(const std::string& text) {
    leave();
    say(stderr, text);
  }

  // Goes on below a line that would be renewed.
  void leave() {
    if (!renews_) return;
    std::fputs("\n", stderr);
    renews_ = false;
    left_ = true;
  }

  bool inside_ = false, aborted_ = false, stopped_ = false, met_file_limit_ = false;
  bool renews_ = false;           // the cursor is behind a line that is renewed
  bool left_ = false;             // such a line was left, and its rank does not know
  std::string unasked_;           // what a rank has said of a stop that nobody asked this process for
  std::set<std::string> errors_;  // lines
  std::vector<std::string> log_;  // lines
  std::string block_, lost_, hydra_process_;
};

// How long mpirun may take to end after a rank has failed or was lost: cut off from another host it would wait for it
// for ever.
class Patience {
 public:
  bool over(bool broken) {
    const auto now = Clock::now();
    // A launcher that was stopped itself has not waited.
    if (broken) waited_ += std::min<Clock::duration>(now - last_look_, std::chrono::seconds(2));
    last_look_ = now;
    return waited_ > std::chrono::seconds(7);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_look_ = Clock::now();
  Clock::duration waited_{};
};

// With the ranks of this host; those of other hosts end by their liveness check.
void end_mpirun(const ChildProcess& launcher) {
  const std::vector<pid_t> ranks = ranks_started_by(launcher.id());
  launcher.send(SIGKILL);
  for (const pid_t rank : ranks) kill(rank, SIGKILL);
}

/// Until mpirun ends, or has to be ended: then true.
bool follow(const ChildProcess& launcher, bool everywhere, int from, RanksAreHeard& heard, LauncherTalk& talk) {
  std::string pending;
  char buffer[4096];
  Patience patience;
  RanksHere ranks(launcher.id());
  Messenger messenger(launcher, everywhere);
  const char* const ends = offered_columns() > 0 ? "\r\n" : "\n";
  bool lingered = false;
  for (;;) {
    messenger.look();
    ranks.look();
    // A mpirun that is told to end while it starts its ranks may wait for itself for ever.
    const bool empty = signals > 0 && !everywhere && ranks.none_runs();
    lingered =
        patience.over(talk.failed() || !talk.lost().empty() || ranks.one_is_gone() || empty || mpirun_was_ended());
    if (lingered) {
      end_mpirun(launcher);
      break;
    }
    pollfd ready[] = {{from, POLLIN, 0}, {heard.descriptor(), POLLIN, 0}};
    if (poll(ready, 2, 200) <= 0) continue;
    while (const std::optional<std::string> line = heard.next()) talk.line(*line);
    if (ready[0].revents == 0) continue;
    const ssize_t got = read(from, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    pending.append(buffer, static_cast<size_t>(got));
    for (size_t end; (end = pending.find_first_of(ends)) != std::string::npos; pending.erase(0, end + 1)) {
      pending[end] == '\r' ? talk.renewed(pending.substr(0, end)) : talk.line(pending.substr(0, end));
    }
  }
  if (!pending.empty()) talk.line(pending);
  while (const std::optional<std::string> line = heard.next()) talk.line(*line);
  talk.finish();
  return lingered;
}

// How many processes the kernel has ended on this host for want of memory.
int64_t ended_for_memory() {
  std::ifstream counts("/proc/vmstat");
  for (std::string name, value; counts >> name >> value;) {
    if (name == "oom_kill") return std::atoll(value.c_str());
  }
  return 0;
}

int known_exit_code(int code) {
  for (const int known : {0, 2, 3, 4, 5, 70, 75, 76}) {
    if (code == known) return code;
  }
  return 76;
}

// With less, ranks may wait for each other for ever as MPI begins, and mpirun ends without a word.
void require_address_space() {
  constexpr int64_t kLeast = int64_t{512} << 20;
  const int64_t limit = this_machine().address_space;
  if (limit == 0 || limit >= kLeast) return;
  throw IoError("address space",
                "is limited to " + bytes_text(static_cast<double>(limit)) + ", mpirun and its ranks need " +
                    bytes_text(static_cast<double>(kLeast)),
                "raise the limit: ulimit -v unlimited");
}

void launch(const std::vector<std::string>& words, bool everywhere) {
  require_address_space();
  const int64_t ended_before = ended_for_memory();
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) throw IoError("mpirun", std::strerror(errno));
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    int none = 0;
    if (signal != SIGHUP) {
      ++signals;
    } else {
      signals.compare_exchange_strong(none, 1);  // see StopSignal
    }
  };
  for (const int signal : kStopSignals) {
    struct sigaction former {};
    sigaction(signal, nullptr, &former);
    if (signal != SIGHUP || former.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);  // nohup
  }
  setenv("UCX_HANDLE_ERRORS", "none", 0);    // no backtrace of a rank whose peer is gone
  setenv("HWLOC_COMPONENTS", "-opencl", 0);  // whose libraries would take the handlers of mpirun and the ranks
  // mpiexec.hydra says on its standard output which rank was lost.
  const int out = words.front() == "mpiexec.hydra" ? pipe_ends[1] : -1;
  RanksAreHeard heard;
  offer_terminal(terminal_columns(stderr));
  ChildProcess launcher(words, {-1, out, pipe_ends[1]}, std::string("install openmpi-bin, or ") + kCheckPath);
  close(pipe_ends[1]);
  LauncherTalk talk;
  const bool lingered = follow(launcher, everywhere, pipe_ends[0], heard, talk);
  const int status = launcher.wait();
  int code = known_exit_code(exit_code_of(status));
  // mpiexec.hydra says 0 now and then where ranks that were told to save have ended with 75.
  if (code == 0 && signals > 0 && talk.stopped()) code = 75;
  if (code == 0 && talk.failed()) code = 76;
  if (code == 0) std::exit(code);
  const auto end_stopped = [](bool says_so) {
    if (says_so) std::fprintf(stderr, "stopped; %s\n", kGoesOn);
    std::exit(75);
  };
  if (code == 75 && signals > 0) end_stopped(!talk.stopped());  // what ranks say of it may be lost with mpirun
  rlimit files{};
  if (talk.met_file_limit() && !talk.failed() && getrlimit(RLIMIT_FSIZE, &files) == 0) {
    throw IoError("mpirun", "needs larger files than the limit of " + bytes_text(static_cast<double>(files.rlim_cur)),
                  "raise it: ulimit -f unlimited");
  }
  if (!talk.lost().empty() && ended_for_memory() > ended_before) {
    throw CommError("", talk.lost() + " while this host had no memory left", std::string(kNeedsLess) + kGoesOn);
  }
  if (!talk.lost().empty()) throw CommError("", talk.lost(), kGoesOn);
  if (talk.failed()) std::exit(code);  // a rank has said why
  // A rank that was told while MPI began left the others, and mpirun, in it; or mpirun was ended, however it took it.
  if (mpirun_was_ended() || (lingered && signals > 0)) {
    end_stopped(lingered || !talk.stopped());
  }
  if (lingered) throw CommError("", "a rank on this host was lost, and mpirun did not end", kGoesOn);
  if (WIFSIGNALED(status)) {
    throw CommError("mpirun", "was ended by signal " + std::to_string(WTERMSIG(status)), kGoesOn);
  }
  // As a shell tells it: a rank died before mpirun could say which. (Its own codes are above all signals.)
  const int ended_by = WIFEXITED(status) ? WEXITSTATUS(status) - 128 : 0;
  if (ended_by > 0 && ended_by <= SIGRTMAX) {
    throw CommError("", "a rank was ended by signal " + std::to_string(ended_by), kGoesOn);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) != code) {  // no rank ends with such a code
    throw IoError("mpirun", "ended with exit code " + std::to_string(WEXITSTATUS(status)) + " before the ranks began",
                  std::string("its own message is above; ") + kCheckPath);
  }
  std::exit(code);
}

std::vector<std::string> arguments(const LaunchFlags& flags) {
  if (flags.command.empty() || flags.command.front() != "train") {
    throw UsageError("only train runs on several ranks", "nibble launch -n 4 -- train RECIPE.json");
  }
  std::vector<std::string> args = flags.command;
  if (!flags.max_memory.empty()) {
    parse_bytes(flags.max_memory);  // refuses what is no amount
    args.push_back("--max-memory=" + flags.max_memory);
  }
  return args;
}

void run(const LaunchFlags& flags) {
  if (flags.print == "slurm" || flags.print == "kubernetes") {
    refuse_given(flags.of_mpirun, "with --print " + flags.print, "leave it out: " + flags.print + " chooses the hosts");
  }
  LaunchOptions options;
  options.ranks = flags.ranks;
  options.hosts = flags.hosts;
  options.root = geteuid() == 0;
  options.program = own_program();
  options.args = arguments(flags);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  options.threads = flags.threads;
  if (options.threads == 0) options.threads = flags.hosts.empty() ? std::max(1, cores / flags.ranks) : 1;
  const std::string crowd = flags.hosts.empty() ? crowd_warning(flags.ranks, options.threads) : "";
  if (!crowd.empty()) say(stderr, crowd);
  if (const std::vector<NumaNode> nodes = numa_nodes(); flags.hosts.empty() && nodes.size() > 1) {
    std::fprintf(stderr, "NUMA: %s; %s, each bound to its own\n", numa_nodes_text(nodes).c_str(),
                 count_text(flags.ranks, "rank").c_str());
  }
  options.launcher = mpi_launcher(mpi_library());
  const std::vector<std::string> words = mpirun_command(options, mpi_library());
  if (flags.print.empty()) return launch(words, !flags.hosts.empty());
  if (flags.print == "mpirun") std::printf("%s\n", shell_line(words).c_str());
  if (flags.print == "slurm") std::printf("%s\n", slurm_command(options).c_str());
  if (flags.print == "kubernetes") std::fputs(kubernetes_job(options).c_str(), stdout);
}

}  // namespace

void add_launch_command(Command& nibble) {
  auto flags = std::make_shared<LaunchFlags>();
  Command command = nibble.subcommand("launch", "Run a recipe on several ranks (processes, hosts)");
  command.option("-n,--ranks", flags->ranks, "Number of ranks").required().between(1, 4096);
  flags->of_mpirun = {command.option("--hosts", flags->hosts, "Where they run: alpha:2,beta:2 (this machine)")};
  command.option("--threads", flags->threads, "Threads of each rank (cores / ranks)").between(1, kMostThreads);
  command.option("--max-memory", flags->max_memory, "Memory budget of each rank's tensors: 2GiB");
  command.option("--print", flags->print, "Print the command or job instead of running it")
      .one_of({"mpirun", "slurm", "kubernetes"});
  command.option("command", flags->command, "-- train RECIPE.json [key.path=value ...]").required();
  command.footer(
      "The ranks divide the work as the recipe's `parallel` section says. SIGTERM, Ctrl-C or a closed terminal lets "
      "them save and exit with 75.\nExample: nibble launch -n 4 -- train full.json parallel.shard=4");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
