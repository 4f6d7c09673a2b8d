#pragma once
// As many threads as a test says, whatever the machine has.

#include <cstdint>

#include "nibble/core/base/parallel_observer.h"

namespace nibble::test {

/// While one lives, threads() says so many; the calling thread does their work.
struct Workers : ParallelObserver {
  using ParallelObserver::ParallelObserver;
  void begin_section(int64_t, const void*) override { ++sections; }
  void end_piece() override {}
  void end_section() override {}
  void step(const void*, int64_t, bool) override {}
  int64_t sections = 0;
};

}  // namespace nibble::test
