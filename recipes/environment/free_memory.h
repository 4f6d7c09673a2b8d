#pragma once
#include <malloc.h>

namespace nibble {

/// Gives the system back what the C library's heap holds and nobody uses. After work in many small blocks (reading
/// data, training a tokenizer), so that what the steps need does not come on top of it.
inline void return_free_memory() { malloc_trim(0); }

}  // namespace nibble
