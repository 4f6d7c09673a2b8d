#pragma once
// What this machine offers the process: cores and memory as limited by affinity and control groups, not as sold.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace nibble {

/// Version of nibble, "0.1.0".
std::string_view version();

struct Machine {
  std::string cpu;     ///< model name as the kernel tells it
  std::string kernel;  ///< "Linux 6.1.0"
  int cores_online = 0;
  int cores_allowed = 0;         ///< by the affinity mask
  double cores_quota = 0;        ///< CPU time a second allowed by the control group (cpu.max), 0 = no limit
  int64_t memory_total = 0;      ///< bytes
  int64_t memory_available = 0;  ///< bytes the kernel would give without swapping
  int64_t memory_limit = 0;      ///< bytes allowed by the control group (version 1 or 2), 0 = no limit
  int64_t memory_used = 0;       ///< bytes the control group uses now, 0 where there is no limit

  /// Cores that can really be kept busy, at least 1.
  int usable_cores() const;
  /// Bytes that can still be used before something gives.
  int64_t usable_memory() const;
};

/// `proc` is where the kernel's /proc is mounted; where it is not, memory and the CPU's name come from system calls and
/// the CPU itself, which tell less: memory_available is then without what the page cache would give back.
Machine this_machine(const std::filesystem::path& proc = "/proc");

}  // namespace nibble
