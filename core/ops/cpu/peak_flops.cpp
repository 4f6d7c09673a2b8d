#include "nibble/core/ops/cpu/peak_flops.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/base/parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nibble {

namespace {

constexpr int kSteps = 1 << 18, kSums = 24;

#if defined(__x86_64__)
// The empty assembly keeps the compiler from seeing through the loop; 24 sums hide the latency of each.
__attribute__((target("avx512f,avx512bf16"))) double flops_bf16() {
  __m512 sums[kSums];
  __m512 x = _mm512_set1_ps(1.0f);
  for (auto& sum : sums) sum = x;
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(x));
  }
  return 2.0 * 32 * kSums * kSteps;
}

__attribute__((target("avx512f"))) double flops_avx512() {
  __m512 sums[kSums];
  __m512 x = _mm512_set1_ps(1.0f);
  for (auto& sum : sums) sum = x;
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(x));
  }
  return 2.0 * 16 * kSums * kSteps;
}

__attribute__((target("avx2,fma"))) double flops_avx2() {
  __m256 sums[kSums / 2];
  __m256 x = _mm256_set1_ps(1.0f);
  for (auto& sum : sums) sum = x;
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(x));
  }
  return 2.0 * 8 * (kSums / 2) * kSteps;
}
#endif

double flops_plain() {
  volatile float sums[8] = {};
  for (int i = 0; i < kSteps; ++i) {
    for (volatile float& sum : sums) sum = sum * 0.5f + 1.0f;
  }
  return 2.0 * 8 * kSteps;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

double run_flops_in_registers(bool bf16) {
#if defined(__x86_64__)
  if (bf16 && isa() >= Isa::avx512_bf16) return flops_bf16();
  if (isa() >= Isa::avx512) return flops_avx512();
  if (isa() >= Isa::avx2) return flops_avx2();
#endif
  (void)bf16;
  return flops_plain();
}

double peak_flops(bool bf16) {
  const int count = threads();
  double best = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {
    std::vector<double> flops(static_cast<size_t>(count));
    const double begin = seconds();
    parallel_for(count, 1, [&](int64_t i, int64_t) { flops[static_cast<size_t>(i)] = run_flops_in_registers(bf16); });
    best = std::max(best, flops[0] * count / (seconds() - begin));
  }
  return best;
}

}  // namespace nibble
