#pragma once
// Work that streams through memory: every thread walks one range from front to back, so that what it fetches ahead is
// what it needs next.

#include <algorithm>
#include <atomic>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/parallel_observer.h"

namespace nibble {

/// What is left of one thread's range, in units of work: its owner takes from the front, others from the back.
class SharedRange {
 public:
  struct Taken {
    int64_t begin = 0, end = 0;
  };

  void set(uint32_t begin, uint32_t end) { left_.store(pack(begin, end)); }

  /// A quarter of what is left, at least one unit; nothing when nothing is left.
  Taken take_front() {
    return take([](uint32_t begin, uint32_t end, uint32_t count) {
      const uint32_t middle = begin + std::max(1u, count / 4);
      return Split{{begin, middle}, pack(middle, end)};
    });
  }
  /// Half of what is left.
  Taken take_back() {
    return take([](uint32_t begin, uint32_t end, uint32_t count) {
      const uint32_t middle = end - std::max(1u, count / 2);
      return Split{{middle, end}, pack(begin, middle)};
    });
  }

 private:
  struct Split {
    Taken taken;
    uint64_t left;
  };

  static uint64_t pack(uint32_t begin, uint32_t end) { return uint64_t{end} << 32 | begin; }

  template <typename Splitter>
  Taken take(const Splitter& split) {
    uint64_t left = left_.load();
    for (;;) {
      const auto begin = static_cast<uint32_t>(left), end = static_cast<uint32_t>(left >> 32);
      if (begin >= end) return {};
      const Split result = split(begin, end, end - begin);
      if (left_.compare_exchange_weak(left, result.left)) return result.taken;
    }
  }

  alignas(64) std::atomic<uint64_t> left_{0};
};

/// Calls body(begin, end) for pieces that together make [0, count), on all threads; borders are multiples of `grain`
/// (but for the end) and depend on which thread is how fast: only for bodies whose results do not depend on them. The
/// first exception a piece throws is rethrown after all have ended.
template <typename Body>
void parallel_ranges(int64_t count, int64_t grain, Body&& body) {
  if (count <= 0) return;
  const int64_t units = (count + grain - 1) / grain, team = std::min<int64_t>(threads(), units);
  if (team == 1 || in_parallel()) return body(int64_t{0}, count);
  std::vector<SharedRange> ranges(static_cast<size_t>(team));
  for (int64_t i = 0; i < team; ++i) {
    ranges[static_cast<size_t>(i)].set(static_cast<uint32_t>(units * i / team),
                                       static_cast<uint32_t>(units * (i + 1) / team));
  }
  parallel_for(team, 1, [&](int64_t own, int64_t) {
    const auto run = [&](const SharedRange::Taken& taken) {
      if (taken.begin == taken.end) return false;
      body(taken.begin * grain, std::min(count, taken.end * grain));
      return true;
    };
    while (run(ranges[static_cast<size_t>(own)].take_front())) {
    }
    if (ParallelObserver::active() != nullptr) return;  // on one thread the first piece would take everything
    for (int64_t other = 1; other < team; ++other) {
      while (run(ranges[static_cast<size_t>((own + other) % team)].take_back())) {
      }
    }
  });
}

}  // namespace nibble
