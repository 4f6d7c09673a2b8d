#pragma once
// What this machine can do at most, measured in the same process as the work that is held against it: only shares of
// such peaks compare between machines and days.

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/peak_flops.h"
#include "nibble/core/tensor/dtype.h"

namespace nibble::benchmarks {

/// Wall clock; on a machine with other work, NIBBLE_BENCHMARK_CLOCK=cpu with one thread still gives shares to go by.
inline double seconds() {
  static const char* wanted = std::getenv("NIBBLE_BENCHMARK_CLOCK");
  timespec now;
  clock_gettime(wanted && std::string_view(wanted) == "cpu" ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Floating point operations per second of all threads in registers, the best of `attempts`.
inline double measure_peak(DType dtype, int attempts) {
  const int count = threads();
  double best = 0;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    std::vector<double> flops(static_cast<size_t>(count));
    const double begin = seconds();
    parallel_for(count, 1, [&](int64_t i, int64_t) {
      flops[static_cast<size_t>(i)] = run_flops_in_registers(dtype == DType::bf16);
    });
    best = std::max(best, flops[0] * count / (seconds() - begin));
  }
  return best;
}

/// Reads 256 MiB of its own with all threads together.
class ReadBandwidth {
 public:
  /// Bytes per second, the best of `attempts`.
  double measure(int attempts) const {
    double best = 0;
    for (int attempt = 0; attempt < attempts; ++attempt) {
      const double begin = seconds();
      parallel_for(kWords, kWords / (4 * threads()), [&](int64_t from, int64_t to) {
        uint64_t sum = 0;
        for (int64_t i = from; i < to; ++i) sum += words_[static_cast<size_t>(i)];
        asm volatile("" : : "r"(sum));
      });
      best = std::max(best, static_cast<double>(kWords) * 8 / (seconds() - begin));
    }
    return best;
  }

 private:
  static constexpr int64_t kWords = int64_t{1} << 25;
  std::vector<uint64_t> words_ = std::vector<uint64_t>(static_cast<size_t>(kWords), 1);
};

}  // namespace nibble::benchmarks
