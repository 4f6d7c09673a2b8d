#pragma once
// What this machine is good for, and what about it should be changed before a long run.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

struct Finding {
  std::string name;    ///< "memory"
  std::string value;   ///< "15.2 GiB free of 16.0 GiB"
  std::string advice;  ///< what to change, empty when all is well
};

/// Looks at CPU, cores, memory, disk (of `directory`, where runs will be written), shared memory, limits, libraries and
/// MPI. measure: also times arithmetic and memory for about half a second.
std::vector<Finding> examine_machine(const std::filesystem::path& directory, bool measure);

}  // namespace nibble
