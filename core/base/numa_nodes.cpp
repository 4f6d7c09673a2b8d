#include "nibble/core/base/numa_nodes.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

// Cores of "0-3,8", as the kernel writes lists; empty where it is none.
NumaNode read_list(const std::string& text) {
  NumaNode cores;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0, last = 0, used = 0;
    const int read = std::sscanf(range.c_str(), "%d%n-%d%n", &first, &used, &last, &used);
    if (read == 1) last = first;
    if (read < 1 || used != static_cast<int>(range.size()) || first < 0 || last < first || last >= CPU_SETSIZE) {
      return {};
    }
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

NumaNode allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  NumaNode cores;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

std::vector<std::string> lists_of(const std::filesystem::path& sys) {
  if (const char* wanted = std::getenv("NIBBLE_NUMA")) {
    std::vector<std::string> lists;
    if (std::string(wanted) == "off") return lists;
    std::istringstream nodes(wanted);
    for (std::string list; std::getline(nodes, list, ':');) {
      if (read_list(list).empty()) {
        throw UsageError("NIBBLE_NUMA=" + std::string(wanted) + " is no list of cores for each node",
                         "use off, or such as 0-31:32-63");
      }
      lists.push_back(list);
    }
    return lists;
  }
  std::map<int, std::string> lists;  // by the node's number
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(sys / "devices/system/node", none)) {
    int number = 0;
    if (std::sscanf(entry.path().filename().c_str(), "node%d", &number) != 1) continue;
    std::getline(std::ifstream(entry.path() / "cpulist"), lists[number]);
  }
  std::vector<std::string> found;
  for (auto& [number, list] : lists) found.push_back(std::move(list));
  return found;
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::filesystem::path& sys) {
  const NumaNode allowed = allowed_cores();
  std::vector<NumaNode> nodes;
  for (const std::string& list : lists_of(sys)) {
    NumaNode cores = read_list(list);  // none: a node of memory alone
    std::erase_if(cores, [&](int core) { return !std::ranges::binary_search(allowed, core); });
    if (!cores.empty()) nodes.push_back(std::move(cores));
  }
  if (nodes.empty()) nodes.push_back(allowed);
  return nodes;
}

void bind_thread(const NumaNode& cores) {
  if (cores.empty()) return;
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int core : cores) CPU_SET(core, &wanted);
  sched_setaffinity(0, sizeof wanted, &wanted);
}

}  // namespace nibble
