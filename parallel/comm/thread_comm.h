#pragma once
// Ranks as threads of one process: the same semantics as MPI without a launcher, for tests of everything above.

#include <functional>

#include "nibble/core/comm/communicator.h"

namespace nibble {

/// Calls body(comm) on `ranks` threads at once, each with its communicator, and returns when all have ended. Throws
/// what the first failing rank threw; an exception in one rank makes the operations of the others throw CommError.
void run_on_threads(int ranks, const std::function<void(Communicator&)>& body);

}  // namespace nibble
