#pragma once
// What a shell may limit (ulimit, OMP_NUM_THREADS), found before it ends the program without a word.

namespace nibble::cli {

/// First in main: a write beyond `ulimit -f` or to a closed pipe fails instead of ending the process, and all threads
/// have a stack that suffices. Throws IoError where the stack's limit is too low and fixed, UsageError for an absurd
/// OMP_NUM_THREADS.
void prepare_process();

}  // namespace nibble::cli
