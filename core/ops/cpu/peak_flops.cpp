#include "nibble/core/ops/cpu/peak_flops.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#if defined(__x86_64__)
#include "nibble/core/ops/cpu/x86/amx.h"
#endif
#include "nibble/core/base/isa_levels.h"
#include "nibble/core/base/parallel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace nibble {

namespace {

// A function of instructions that add to `count` sums of products: the assembly keeps the compiler from seeing through
// the loop, many sums hide the latency of each.
#define NIBBLE_FLOPS_IN_REGISTERS(name, instructions, Vector, one, count, assembly, constraint, operations)         \
  __attribute__((target(instructions))) double name(int steps) {                                                    \
    Vector sums[count];                                                                                             \
    const Vector x = one;                                                                                           \
    for (auto& sum : sums) sum = x;                                                                                 \
    for (int i = 0; i < steps; ++i) {                                                                               \
      _Pragma("GCC unroll 24") for (auto& sum : sums) asm volatile(assembly : "+" constraint(sum) : constraint(x)); \
    }                                                                                                               \
    return 2.0 * operations * count * steps;                                                                        \
  }                                                                                                                 \
  static_assert(true)

#if defined(__x86_64__)
NIBBLE_FLOPS_IN_REGISTERS(flops_bf16, "avx512f,avx512bf16", __m512, _mm512_set1_ps(1.0f), 24, "vdpbf16ps %1, %1, %0",
                          "v", 32);
NIBBLE_FLOPS_IN_REGISTERS(flops_avx512, "avx512f", __m512, _mm512_set1_ps(1.0f), 24, "vfmadd231ps %1, %1, %0", "v", 16);
NIBBLE_FLOPS_IN_REGISTERS(flops_avx2, "avx2,fma", __m256, _mm256_set1_ps(1.0f), 12, "vfmadd231ps %1, %1, %0", "v", 8);

double flops_amx(int steps) {
  amx::configure(amx::kTileRows);
  for (int i = 0; i < steps; ++i) {
    amx::Bf16::add<0>();
    amx::Bf16::add<1>();
    amx::Bf16::add<2>();
    amx::Bf16::add<3>();
  }
  amx::release();
  return 2.0 * 16 * 16 * 32 * 4 * steps;
}
#elif defined(__aarch64__)
// 2 x 2 sums of 4 products each.
NIBBLE_FLOPS_IN_REGISTERS(flops_bf16, "arch=armv8.2-a+bf16", float32x4_t, vdupq_n_f32(1.0f), 24,
                          "bfmmla %0.4s, %1.8h, %1.8h", "w", 16);
NIBBLE_FLOPS_IN_REGISTERS(flops_neon, "arch=armv8-a", float32x4_t, vdupq_n_f32(1.0f), 24, "fmla %0.4s, %1.4s, %1.4s",
                          "w", 4);
#endif

double flops_plain(int steps) {
  volatile float sums[8] = {};
  for (int i = 0; i < steps; ++i) {
    for (volatile float& sum : sums) sum = sum * 0.5f + 1.0f;
  }
  return 2.0 * 8 * steps;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

double run_flops_in_registers(bool bf16, int steps) {
#if defined(__x86_64__)
  if (bf16 && isa() == Isa::amx) return flops_amx(steps / 8);
  if (bf16 && isa() == Isa::avx512_bf16) return flops_bf16(steps);
  if (isa() >= Isa::avx512) return flops_avx512(steps);
  if (isa() >= Isa::avx2) return flops_avx2(steps);
#elif defined(__aarch64__)
  if (bf16 && isa() == Isa::neon_bf16) return flops_bf16(steps);
  if (isa() >= Isa::neon) return flops_neon(steps);
#endif
  (void)bf16;
  return flops_plain(steps);
}

double bf16_to_f32_rate() {
  if (!has_bf16(isa())) return 0;
  static const double known = [] {
    constexpr int kTurns = 100, kSteps = 256;  // a turn takes 2 to 5 us: most are not interrupted
    double best[2] = {0, 0};
    for (int turn = 0; turn < kTurns; ++turn) {
      for (const bool bf16 : {false, true}) {
        const double begin = seconds(), flops = run_flops_in_registers(bf16, kSteps);
        best[bf16] = std::max(best[bf16], flops / (seconds() - begin));
      }
    }
    return best[1] / best[0];
  }();
  return known;
}

ops::Bf16Products faster_bf16_products() {
  constexpr double kClearly = 1.3;
  return bf16_to_f32_rate() * kClearly < 1 ? ops::Bf16Products::f32 : ops::Bf16Products::bf16;
}

double peak_flops(bool bf16) {
  constexpr int kMost = 8, kLeast = 4, kSteps = 1 << 16;  // an attempt takes half a millisecond
  // The kernel may need as long to give a thread a core of its own. Who waits for it in a piece keeps it from being
  // done by the thread that is there.
  constexpr double kPatience = 0.01, kClose = 0.9;
  struct Piece {
    double begin, end, flops;
  };
  const auto count = static_cast<size_t>(threads());
  double best = 0, alone = 0;
  for (int attempt = 0; attempt < kMost && (attempt < kLeast || best < kClose * alone); ++attempt) {
    std::vector<Piece> pieces(count);
    std::atomic<size_t> there = 0;
    const double start = seconds();
    parallel_for(threads(), 1, [&](int64_t i, int64_t) {
      ++there;
      while (there < count && seconds() - start < kPatience) {
      }
      const double begin = seconds(), flops = run_flops_in_registers(bf16, kSteps);
      pieces[static_cast<size_t>(i)] = {begin, seconds(), flops};
    });
    double first = pieces[0].begin, last = 0, flops = 0;
    for (const Piece& piece : pieces) {
      first = std::min(first, piece.begin);
      last = std::max(last, piece.end);
      flops += piece.flops;
      alone = std::max(alone, static_cast<double>(count) * piece.flops / (piece.end - piece.begin));
    }
    best = std::max(best, flops / (last - first));
  }
  return best;
}

}  // namespace nibble
