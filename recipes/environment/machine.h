#pragma once
// What this machine offers the process: cores and memory as limited by affinity and control groups, not as sold.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/base/numa_nodes.h"

namespace nibble {

/// Bytes for a process, and what sets them, for a sentence: "200 MiB that the control group allows".
struct MemoryBudget {
  int64_t bytes = 0;
  std::string_view set_by;  ///< "this machine has"
};

struct Machine {
  std::string cpu;     ///< model name as the kernel gives it
  std::string kernel;  ///< "Linux 6.1.0"
  int cores_online = 0;
  int cores_allowed = 0;         ///< by the affinity mask
  double cores_quota = 0;        ///< CPU time a second allowed by the control group (cpu.max), 0 = no limit
  int64_t memory_total = 0;      ///< bytes
  int64_t memory_available = 0;  ///< bytes the kernel would give without swapping
  int64_t memory_limit = 0;      ///< bytes allowed by the control groups (version 1 or 2), 0 = no limit
  int64_t memory_left = 0;       ///< of what they allow, bytes not used yet; 0 where there is no limit
  int64_t address_space = 0;     ///< bytes that this process may map (RLIMIT_AS, ulimit -v), 0 = no limit
  int64_t address_space_used = 0;

  /// Cores that can really be kept busy, at least 1.
  int usable_cores() const;
  /// Bytes that each of so many processes can still use before something gives.
  int64_t usable_memory(int64_t processes = 1) const;
  /// Bytes that each of so many processes may have at most, whatever else runs now: what `plan`, `train` and `doctor`
  /// go by.
  MemoryBudget memory_budget(int64_t processes = 1) const;
};

/// `proc` is where the kernel's /proc is mounted; where it is not, memory and the CPU's name come from system calls and
/// the CPU itself, which say less: memory_available is then without what the page cache would give back.
Machine this_machine(const std::filesystem::path& proc = "/proc");

/// "2 nodes of 32 cores".
std::string numa_nodes_text(const std::vector<NumaNode>& nodes);

/// The cores for rank `place` of `ranks` on this machine: a node, or several where there are fewer ranks; empty where
/// it has but one node.
NumaNode cores_of_rank(const std::vector<NumaNode>& nodes, int place, int ranks);

}  // namespace nibble
