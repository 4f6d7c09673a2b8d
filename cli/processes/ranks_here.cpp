#include "nibble/cli/processes/ranks_here.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "nibble/core/formatting/readable.h"

namespace nibble::cli {

namespace fs = std::filesystem;

namespace {

// Empty for a process that has ended, also while it waits for its parent to ask.
std::string program_of(const std::string& process) {
  std::error_code gone;
  return fs::read_symlink("/proc/" + process + "/exe", gone).string();
}

}  // namespace

std::vector<pid_t> ranks_started_by(pid_t launcher) {
  // Asked for anew: the name changes when the file is replaced. mpirun may have other children (ssh; MPICH's proxy,
  // whose children the ranks are).
  const std::string program = program_of("self");
  std::vector<pid_t> ranks;
  std::error_code gone;
  for (const auto& thread : fs::directory_iterator("/proc/" + std::to_string(launcher) + "/task", gone)) {
    std::ifstream children(thread.path() / "children");
    for (pid_t child; children >> child;) {
      if (!program.empty() && program_of(std::to_string(child)) == program) {
        ranks.push_back(child);
      } else {
        for (const pid_t below : ranks_started_by(child)) ranks.push_back(below);
      }
    }
  }
  return ranks;
}

bool catches(pid_t process, int signal) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;
}

std::string crowd_warning(int ranks, int threads) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cores == 0 || int64_t{ranks} * threads <= cores) return "";
  const std::string each = count_text(threads, "thread");
  return "warning: " + (ranks > 1 ? count_text(ranks, "rank") + " with " + each + " each share " : each + " share ") +
         count_text(cores, "core");
}

void RanksHere::look() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_look_ < std::chrono::milliseconds(200)) return;  // five times a second are enough
  last_look_ = now;
  now_ = ranks_started_by(launcher_).size();
  most_ = std::max(most_, now_);
}

}  // namespace nibble::cli
