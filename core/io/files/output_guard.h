#pragma once
#include <filesystem>
#include <vector>

namespace nibble {

/// What every command asks before it writes `out`, whatever may be replaced there. Throws UsageError naming both when
/// `out` is, lies in or contains one of `inputs` (paths that are not there and empty ones are passed over), also by way
/// of links, "..", hard links or another mount of the same directory; a link to a file in an input directory stands for
/// that file. Then removes what a command that was killed has left of `out`.
void guard_output(const std::filesystem::path& out, const std::vector<std::filesystem::path>& inputs);

}  // namespace nibble
