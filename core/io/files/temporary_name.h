#pragma once
// The names under which unfinished files and directories stand, and the removal of what dead processes left there.
//
// A file is written as ".tmp-nibble-PID-N-TARGET", whose writer holds a lock (flock) on it. A directory TARGET is built
// as ".tmp-nibble-PID-dN/TARGET", whose maker holds a lock on ".tmp-nibble-PID-dN/.nibble.lock". The system releases
// the locks of a process that dies: what has such a name and is not locked belongs to nobody.

#include <filesystem>
#include <string>

namespace nibble {

/// A new name in `directory` for an unfinished file that will be called `target` (left out where it is long or empty),
/// unique in this process.
std::filesystem::path temporary_file_name(const std::filesystem::path& directory, const std::string& target = "");
/// The same for the directory in which `target` is built.
std::filesystem::path temporary_directory_name(const std::filesystem::path& directory);

/// Removes from `directory` what processes that are gone left under such names; with `target`, only what would have
/// become that. Anything else stays: other names, links, what is locked, what cannot be removed. Returns how many.
int sweep_leftovers(const std::filesystem::path& directory, const std::string& target = "");

}  // namespace nibble
