#pragma once
// What a signal that ends the process must remove: what is being written and has no final name yet, and programs that
// work for it alone.

#include <sys/types.h>

#include <filesystem>
#include <mutex>

namespace nibble {

/// What of `path` goes.
enum class Leftover {
  tree,            ///< the file, or the directory with all that is in it
  empty_directory  ///< a directory that was made on the way, where nothing else has come into it
};

/// While it is held, remove_unfinished() waits: to make something and note it, to rename and forget it, in one.
[[nodiscard]] std::unique_lock<std::recursive_mutex> hold_unfinished();

/// From now on remove_unfinished() removes `path`, later ones first.
void note_unfinished(const std::filesystem::path& path, Leftover what = Leftover::tree);
void forget_unfinished(const std::filesystem::path& path);

/// From now on remove_unfinished() and kill_groups() kill this group of processes.
void note_group(pid_t group);
void forget_group(pid_t group);
/// What a signal handler does that ends the process without remove_unfinished(): it waits for nobody.
void kill_groups();

/// Removes what is noted. From then on whoever makes, finishes or notes anything waits for ever: the process is about
/// to end. For programs, on a thread of their own (StopSignal).
void remove_unfinished();

}  // namespace nibble
