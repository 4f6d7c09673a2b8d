#pragma once
// System calls that are asked again: interrupted ones at once, stale network handles a few times.

#include <fcntl.h>

#include <filesystem>

#include "nibble/core/base/uninterrupted.h"

namespace nibble {

/// open(2) with O_CLOEXEC. A stale handle (ESTALE: a network file system that came back) is asked for again for about a
/// second. Returns the descriptor, or -1 with errno.
int open_file(const std::filesystem::path& path, int flags, mode_t mode = 0);

/// A file that was opened and, where the file system can, is locked (flock) until the descriptor is closed.
struct LockedFile {
  int descriptor = -1;  ///< -1: it cannot be opened
  int error = 0;  ///< 0: locked; EWOULDBLOCK: another process has the lock; else why it cannot be opened or locked
};

/// Opens as open_file and takes the lock without waiting. A file that lost its name before the lock was there is opened
/// again.
LockedFile open_and_lock(const std::filesystem::path& path, int flags, mode_t mode = 0);

/// fsync(2), interruptions repeated. Returns 0, or -1 with errno.
int sync_file(int descriptor);

}  // namespace nibble
