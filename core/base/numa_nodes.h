#pragma once
// Which cores share a memory, and where threads run on machines with several: the kernel places a page on the node of
// the thread that writes it first.

#include <filesystem>
#include <vector>

namespace nibble {

/// Cores of one NUMA node, those that the calling thread may run on.
using NumaNode = std::vector<int>;

/// The machine's nodes with cores for the calling thread, from `sys`/devices/system/node (the kernel's /sys); one where
/// there is no such thing. NIBBLE_NUMA overrides it: "off" for one node, or the cores of each, "0-31:32-63". Throws
/// UsageError where that is no such list.
std::vector<NumaNode> numa_nodes(const std::filesystem::path& sys = "/sys");

/// Binds the calling thread, and those that it starts from now on, to some cores; where the kernel refuses, they run
/// where they did.
void bind_thread(const NumaNode& cores);

}  // namespace nibble
