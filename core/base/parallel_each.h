#pragma once

#include "nibble/core/base/parallel.h"

namespace nibble {

/// Calls body(i) for all i in [0, count), on all threads: parallel_for where nothing is carried from one i to the next.
template <typename Body>
void parallel_each(int64_t count, int64_t grain, const Body& body) {
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace nibble
