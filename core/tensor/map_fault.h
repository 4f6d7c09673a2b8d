#pragma once
// A file that is shortened while it is mapped: reading the missing pages raises SIGBUS, which would end the process
// without a word.

#include <atomic>
#include <cstddef>

namespace nibble {

/// From now on such a read ends the process with "error: PATH: ..." on stderr and exit code 4. For programs; the
/// library does not do it by itself. Other causes of SIGBUS end the process as they did before.
void exit_when_a_mapped_file_shrinks();

/// Called before that, in a signal handler (a terminal gets back its modes); null: nothing is.
extern std::atomic<void (*)()> before_exit_by_a_map;

namespace detail {
/// Maps are known by their addresses while they exist; `path` must stay where it is as long.
void register_map(const void* begin, size_t size, const char* path);
void forget_map(const void* begin);
}  // namespace detail

}  // namespace nibble
