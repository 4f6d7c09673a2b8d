#include "nibble/recipes/environment/machine.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include <sched.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "nibble/core/formatting/readable.h"

namespace nibble {

namespace {

// The directories of the process's own control group and all above it; version 2 has one hierarchy, version 1 one for
// each controller. Inside a container the root is often the group itself.
std::string group_of(const std::string& controller) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool wanted = controller.empty() ? names == ",," : names.find("," + controller + ",") != std::string::npos;
    if (wanted) return line.substr(second + 1);
  }
  return "";
}

// Smallest of the numbers in `file` of a group and the groups above it; "max" is no number.
template <typename Read>
void up_the_tree(const std::string& root, std::string group, const Read& read) {
  for (;;) {
    read(root + group + (group.ends_with('/') ? "" : "/"));
    if (group.empty() || group == "/") return;
    group.resize(group.rfind('/'));
  }
}

void read_quota(Machine& machine) {
  const auto lower = [&](double cores) {
    if (cores > 0 && (machine.cores_quota == 0 || cores < machine.cores_quota)) machine.cores_quota = cores;
  };
  up_the_tree("/sys/fs/cgroup", group_of(""), [&](const std::string& directory) {
    double quota = 0, period = 0;
    if (std::ifstream(directory + "cpu.max") >> quota >> period && period > 0) lower(quota / period);
  });
  up_the_tree("/sys/fs/cgroup/cpu", group_of("cpu"), [&](const std::string& directory) {
    double quota = 0, period = 0;
    std::ifstream(directory + "cpu.cfs_quota_us") >> quota;
    std::ifstream(directory + "cpu.cfs_period_us") >> period;
    if (quota > 0 && period > 0) lower(quota / period);
  });
}

void read_memory_limit(Machine& machine) {
  const auto lower = [&](const std::string& limit_file, const std::string& used_file) {
    int64_t limit = 0, used = 0;
    if (!(std::ifstream(limit_file) >> limit) || limit <= 0 || limit >= machine.memory_total) return;
    std::ifstream(used_file) >> used;
    const int64_t left = std::max<int64_t>(0, limit - used);
    machine.memory_left = machine.memory_limit > 0 ? std::min(machine.memory_left, left) : left;
    machine.memory_limit = machine.memory_limit > 0 ? std::min(machine.memory_limit, limit) : limit;
  };
  up_the_tree("/sys/fs/cgroup", group_of(""),
              [&](const std::string& directory) { lower(directory + "memory.max", directory + "memory.current"); });
  up_the_tree("/sys/fs/cgroup/memory", group_of("memory"), [&](const std::string& directory) {
    lower(directory + "memory.limit_in_bytes", directory + "memory.usage_in_bytes");
  });
}

void read_address_space(Machine& machine, const std::filesystem::path& proc) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  int64_t pages = 0;
  std::ifstream(proc / "self/statm") >> pages;
  machine.address_space = static_cast<int64_t>(limit.rlim_cur);
  machine.address_space_used = pages * sysconf(_SC_PAGESIZE);
}

// The name that the CPU gives itself; on arm64 its maker and its design, as numbers.
std::string cpu_own_name() {
#if defined(__aarch64__)
  if ((getauxval(AT_HWCAP) & HWCAP_CPUID) == 0) return "arm64";
  uint64_t id = 0;
  asm("mrs %0, MIDR_EL1" : "=r"(id));  // the kernel answers in the place of the CPU
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "arm64 (implementer 0x%02x, part 0x%03x)",
                static_cast<unsigned>(id >> 24 & 0xff), static_cast<unsigned>(id >> 4 & 0xfff));
  return text.data();
#elif defined(__x86_64__)
  constexpr unsigned kFirstLeaf = 0x80000002, kLastLeaf = 0x80000004;
  std::array<unsigned, 12> words{};
  if (static_cast<unsigned>(__get_cpuid_max(0x80000000, nullptr)) < kLastLeaf) return "unknown";
  for (unsigned leaf = kFirstLeaf; leaf <= kLastLeaf; ++leaf) {
    unsigned* part = &words[size_t{4} * (leaf - kFirstLeaf)];
    __get_cpuid(leaf, &part[0], &part[1], &part[2], &part[3]);
  }
  std::array<char, sizeof words + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof words);
  std::string name = text.data();
  name.erase(0, std::min(name.find_first_not_of(' '), name.size()));
  name.erase(name.find_last_not_of(' ') + 1);
  return name.empty() ? "unknown" : name;
#else
  return "unknown";
#endif
}

std::string cpu_name([[maybe_unused]] const std::filesystem::path& proc) {
#if !defined(__aarch64__)  // whose kernel tells the same numbers, for every core
  std::ifstream info(proc / "cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
#endif
  return cpu_own_name();
}

void read_memory(Machine& machine, const std::filesystem::path& proc) {
  std::ifstream memory(proc / "meminfo");
  for (std::string line; std::getline(memory, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t kib = 0;
    words >> word >> kib;
    if (word == "MemTotal:") machine.memory_total = kib * 1024;
    if (word == "MemAvailable:") machine.memory_available = kib * 1024;
  }
  struct sysinfo info {};
  if (machine.memory_total > 0 || sysinfo(&info) != 0) return;
  machine.memory_total = static_cast<int64_t>(info.totalram) * info.mem_unit;
  machine.memory_available = static_cast<int64_t>(info.freeram + info.bufferram) * info.mem_unit;
}

}  // namespace

int Machine::usable_cores() const {
  int cores = std::max(1, cores_allowed);
  if (cores_quota > 0) cores = std::min(cores, std::max(1, static_cast<int>(std::lround(cores_quota))));
  return cores;
}

int64_t Machine::usable_memory(int64_t processes) const {
  const int64_t shared = memory_limit > 0 ? std::min(memory_available, memory_left) : memory_available;
  const int64_t mapped = std::max<int64_t>(0, address_space - address_space_used);
  return address_space > 0 ? std::min(shared / processes, mapped) : shared / processes;
}

MemoryBudget Machine::memory_budget(int64_t processes) const {
  const MemoryBudget shared = memory_limit > 0 ? MemoryBudget{memory_limit / processes, "the control group allows"}
                                               : MemoryBudget{memory_total / processes, "this machine has"};
  if (address_space == 0 || address_space >= shared.bytes) return shared;
  return {address_space, "the limit of the address space (ulimit -v) allows"};
}

Machine this_machine(const std::filesystem::path& proc) {
  Machine machine;
  machine.cpu = cpu_name(proc);
  utsname name{};
  if (uname(&name) == 0) machine.kernel = std::string(name.sysname) + " " + name.release;
  machine.cores_online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  machine.cores_allowed =
      sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : machine.cores_online;
  read_memory(machine, proc);
  read_quota(machine);
  read_memory_limit(machine);
  read_address_space(machine, proc);
  return machine;
}

std::string numa_nodes_text(const std::vector<NumaNode>& nodes) {
  std::set<size_t> sizes;
  for (const NumaNode& node : nodes) sizes.insert(node.size());
  std::string text = count_text(static_cast<int64_t>(nodes.size()), "node") + " of " + std::to_string(*sizes.begin());
  if (sizes.size() > 1) text += " to " + std::to_string(*sizes.rbegin());
  return text + (*sizes.rbegin() == 1 ? " core" : " cores");
}

NumaNode cores_of_rank(const std::vector<NumaNode>& nodes, int place, int ranks) {
  NumaNode cores;
  const int count = static_cast<int>(nodes.size());
  if (count == 1) return cores;
  const int begin = place * count / ranks, end = std::max(begin + 1, (place + 1) * count / ranks);
  for (int node = begin; node < end; ++node) {
    cores.insert(cores.end(), nodes[static_cast<size_t>(node)].begin(), nodes[static_cast<size_t>(node)].end());
  }
  return cores;
}

}  // namespace nibble
