#include "nibble/recipes/environment/doctor.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/base/isa_levels.h"
#include "nibble/core/base/numa_nodes.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/base/version.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/ops/cpu/peak_flops.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/models/arithmetic.h"
#include "nibble/recipes/report/report.h"

namespace nibble {

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Of the instructions that products are computed by; empty where there is nothing to do.
std::string kernel_advice() {
  const Isa best = best_isa(isa_levels().back());
  if (isa() < best) {
    return formatted("NIBBLE_ISA keeps nibble from this CPU's %s: unset it to train faster",
                     std::string(isa_name(best)).c_str());
  }
  if (isa() == Isa::baseline) return "no AVX2: training will be slow; use a machine of the last ten years";
  if (has_bf16(isa())) return "";
  return "no bf16 instructions, so products run in f32; a CPU that has them trains up to twice as fast, and this one "
         "may train LoRA and QLoRA faster with model.compute_dtype=int8 (docs/qlora.md)";
}

Finding cpu_finding(const Machine& machine) {
  const std::string products = arithmetic_reason();
  return {"cpu",
          machine.cpu + ", kernels for " + std::string(isa_name(isa())) + (products.empty() ? "" : ", " + products),
          kernel_advice()};
}

Finding core_finding(const Machine& machine) {
  std::string value = formatted("%d usable of %d", machine.usable_cores(), machine.cores_online);
  if (machine.cores_quota > 0) value += formatted(", control group allows %.2f", machine.cores_quota);
  value += ", " + count_text(threads(), "thread") + " by default";
  Finding finding{"cores", value, ""};
  if (threads() > machine.usable_cores()) {
    finding.advice = formatted("more threads than cores they may use: set train.threads=%d or OMP_NUM_THREADS=%d",
                               machine.usable_cores(), machine.usable_cores());
  }
  double load = 0;
  if (std::ifstream("/proc/loadavg") >> load && load > 0.5 * machine.usable_cores()) {
    finding.value += formatted(", load %.1f", load);
    if (finding.advice.empty()) finding.advice = "other work is running: it will slow training down";
  }
  return finding;
}

Finding numa_finding() {
  const std::vector<NumaNode> nodes = numa_nodes();
  if (nodes.size() == 1) return {"numa", "1 node", ""};
  return {
      "numa",
      numa_nodes_text(nodes) + "; threads are bound to nodes and share work by node, ranks of a launch have their own",
      ""};
}

Finding memory_finding(const Machine& machine) {
  std::string value = bytes_text(static_cast<double>(machine.usable_memory())) + " usable of " +
                      bytes_text(static_cast<double>(machine.memory_total));
  const MemoryBudget budget = machine.memory_budget();
  if (budget.bytes != machine.memory_total) {
    value += ", " + std::string(budget.set_by) + " " + bytes_text(static_cast<double>(budget.bytes));
  }
  return {
      "memory", value,
      machine.usable_memory() < 2 * kGiB ? "little is free: close other programs, or raise the container's limit" : ""};
}

Finding huge_page_finding() {
  std::string setting;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), setting);
  const size_t begin = setting.find('['), end = setting.find(']');
  if (begin == std::string::npos || end == std::string::npos) return {"huge pages", "unknown", ""};
  const std::string chosen = setting.substr(begin + 1, end - begin - 1);
  return {"huge pages", chosen,
          chosen == "never" ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled makes large products faster"
                            : ""};
}

Finding disk_finding(const std::filesystem::path& directory) {
  try {
    const std::filesystem::path place = nearest_existing(directory);  // a run makes what is missing
    write_probe(place);
    const int64_t free = static_cast<int64_t>(free_bytes(place));
    return {"disk", bytes_text(static_cast<double>(free)) + " free in " + directory.string(),
            free < 5 * kGiB ? "checkpoints and merged models need room: free some, or set output.dir elsewhere" : ""};
  } catch (const IoError& error) {
    return {"disk", error.what(), "set output.dir to a directory that can be written"};
  }
}

Finding shared_memory_finding() {
  struct statvfs found {};
  if (statvfs("/dev/shm", &found) != 0)
    return {"shared memory", "no /dev/shm", "ranks on one host need it: mount a tmpfs there"};
  const int64_t bytes = static_cast<int64_t>(found.f_bavail) * static_cast<int64_t>(found.f_frsize);
  return {"shared memory", bytes_text(static_cast<double>(bytes)) + " free in /dev/shm",
          bytes < kGiB / 2 ? "ranks on one host exchange through it: docker run --shm-size=2g" : ""};
}

Finding open_file_finding() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return {"open files", std::to_string(limit.rlim_cur),
          limit.rlim_cur < 1024 ? "sharded models open many files: ulimit -n 4096" : ""};
}

// Libraries this process has mapped, by file name.
Finding library_finding() {
  std::set<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.rfind('/');
    if (slash == std::string::npos) continue;
    const std::string name = line.substr(slash + 1);
    for (const char* wanted : {"libopenblas", "libblas", "libmkl", "libgomp", "libomp", "libmpi."}) {
      if (name.starts_with(wanted)) found.insert(name);
    }
  }
  return {"libraries", found.empty() ? "linked statically" : joined(found), ""};
}

std::string output_of(const char* command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command, "r"), pclose);
  std::string text;
  char piece[4096];
  while (pipe && std::fgets(piece, sizeof piece, pipe.get())) text += piece;
  return text;
}

Finding mpi_finding() {
  const std::string version = output_of("mpirun --version 2>/dev/null");
  if (version.empty()) return {"mpi", "no mpirun", "only needed for several ranks: apt install openmpi-bin"};
  std::istringstream components(output_of("ompi_info --parsable 2>/dev/null"));
  std::string transports;
  for (std::string line; std::getline(components, line);) {
    for (const char* kind : {"mca:btl:", "mca:mtl:"}) {
      if (!line.starts_with(kind) || line.find(":version:\"") == std::string::npos) continue;
      const std::string name = line.substr(8, line.find(':', 8) - 8);
      if (transports.find(name) == std::string::npos) transports += (transports.empty() ? "" : " ") + name;
    }
  }
  return {"mpi", version.substr(0, version.find('\n')) + (transports.empty() ? "" : ", transports: " + transports), ""};
}

Finding arithmetic_finding() {
  const double f32 = peak_flops(false) * 1e-9;
  if (!has_bf16(isa())) return {"arithmetic", formatted("%.0f GFLOP/s in f32", f32), ""};
  return {"arithmetic", formatted("%.0f GFLOP/s in f32, %.0f in bf16", f32, peak_flops(true) * 1e-9), ""};
}

// Reading 256 MiB on all threads, or a quarter of what a container leaves free, the best of a few times.
Finding bandwidth_finding(const Machine& machine) {
  constexpr int64_t kPiece = int64_t{1} << 18;
  const int64_t pieces = std::clamp<int64_t>(machine.usable_memory() / 4 / (kPiece * 8), 1, 128);
  const int64_t count = pieces * kPiece;
  const std::vector<uint64_t> memory(static_cast<size_t>(count), 1);
  std::vector<uint64_t> sums(static_cast<size_t>(pieces));
  double best = 1e30;
  for (int attempt = 0; attempt < 4; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    parallel_for(count, kPiece, [&](int64_t begin, int64_t end) {
      sums[static_cast<size_t>(begin / kPiece)] =
          std::accumulate(memory.begin() + begin, memory.begin() + end, uint64_t{0});
    });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  NIBBLE_CHECK(std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == memory.size(), "memory was read wrong");
  return {"memory speed", formatted("%.0f GB/s", static_cast<double>(memory.size() * 8) / best * 1e-9), ""};
}

}  // namespace

std::vector<Finding> examine_machine(const std::filesystem::path& directory, bool measure) {
  const Machine machine = this_machine();
  std::vector<Finding> findings = {{"nibble", std::string(version()) + " on " + machine.kernel, ""},
                                   cpu_finding(machine),
                                   core_finding(machine),
                                   numa_finding(),
                                   memory_finding(machine),
                                   huge_page_finding(),
                                   disk_finding(directory),
                                   shared_memory_finding(),
                                   open_file_finding(),
                                   library_finding(),
                                   mpi_finding()};
  if (measure) {
    findings.push_back(arithmetic_finding());
    findings.push_back(bandwidth_finding(machine));
  }
  return findings;
}

}  // namespace nibble
