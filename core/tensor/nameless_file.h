#pragma once
// Files for what need not outlive the process.

#include <string>

namespace nibble {

/// A file in `directory` without a name, for reading and writing, so that nothing of it is left however the process
/// ends. Where the file system cannot make one, it gets a name that it loses at once. Returns the descriptor, or -1
/// with errno.
int open_nameless_file(const std::string& directory);

}  // namespace nibble
