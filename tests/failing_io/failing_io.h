#pragma once
// A disk that fails on command. The library failing_io stands in front of the C library's file calls: linked into a
// test it is armed by arm(); preloaded into a program (LD_PRELOAD) by the environment:
//
//   NIBBLE_FAULT_ROOT   only calls on paths in this directory count
//   NIBBLE_FAULT_IN     and only those with this in the path
//   NIBBLE_FAULT_CALLS  which ones: open,write,read,sync,rename,close,mkdir,reserve,remove (absent: all but read)
//   NIBBLE_FAULT_AT     number of the call that fails, from 0 (absent: none fails)
//   NIBBLE_FAULT_HOW    an errno by name (ENOSPC, EIO, EINTR, EDQUOT, EROFS, ESTALE), SHORT, FULL, KILL, STOP, POWER or
//                       HOLD
//   NIBBLE_FAULT_HELD   with HOLD: a file that is made when the call is reached; it goes on when that is removed
//   NIBBLE_FAULT_COUNT  a file that gets the number of calls at exit
//   NIBBLE_FAULT_CLOCK  set: the wall clock jumps back by an hour every time it is read
//   NIBBLE_FAULT_HASTE  a file: once it is there, the steady clock of a rank is a second later every time it is read
//   NIBBLE_FAULT_TAKEN  name of a program in which SIGUSR1 does nothing, whatever handler it asks for
//   NIBBLE_FAULT_RAW    set: SIGTERM comes as soon as the terminal leaves all keys to the program
//
// ENOSPC fails from that call on (a full disk stays full) for calls that need space; FULL writes half and is full
// afterwards; the other errors come once. SHORT writes half, once. KILL ends the process by SIGKILL before the call,
// STOP stops it by SIGSTOP. POWER does too, and first takes back what a power loss may take back: bytes that were not
// synced, and renames whose directory was not.

#include <cstdint>
#include <string>

namespace nibble::failing_io {

struct Plan {
  std::string root;
  std::string calls;  ///< as NIBBLE_FAULT_CALLS
  int64_t at = -1;
  std::string how = "EIO";
};

/// From now on calls count.
void arm(const Plan& plan);
/// Calls pass again; returns how many counted.
int64_t disarm();

}  // namespace nibble::failing_io
