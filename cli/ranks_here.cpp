#include "nibble/cli/ranks_here.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

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
  // Asked for anew: the name changes when the file is replaced. mpirun may have other children (ssh).
  const std::string program = program_of("self");
  std::vector<pid_t> ranks;
  std::error_code gone;
  for (const auto& thread : fs::directory_iterator("/proc/" + std::to_string(launcher) + "/task", gone)) {
    std::ifstream children(thread.path() / "children");
    for (pid_t child; children >> child;) {
      if (!program.empty() && program_of(std::to_string(child)) == program) ranks.push_back(child);
    }
  }
  return ranks;
}

bool RanksHere::one_is_gone() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_look_ >= std::chrono::milliseconds(200)) {
    last_look_ = now;
    now_ = ranks_started_by(launcher_).size();
    most_ = std::max(most_, now_);
  }
  return now_ < most_;
}

}  // namespace nibble::cli
