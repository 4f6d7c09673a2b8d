// Matrix products as shares of the peak that a loop of multiply-adds in registers reaches in the same process on the
// same threads. Only such shares compare between machines and days. On an idle machine:
//   gemm_benchmark --benchmark_counters_tabular=true

#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/gemm_packed.h"
#include "nibble/core/ops/dense_panels.h"
#include "nibble/quant/nf4_panels.h"

namespace nibble {
namespace {

constexpr int64_t kPeakSteps = 1 << 20, kPeakSums = 24;

// The empty assembly keeps the compiler from seeing through the loop.
__attribute__((target("avx512f,avx512bf16"))) double flops_bf16() {
  __m512 sums[kPeakSums];
  __m512 x = _mm512_set1_ps(1.0f);
  for (auto& sum : sums) sum = x;
  for (int64_t i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(x));
  }
  return 2.0 * 32 * kPeakSums * kPeakSteps;
}

__attribute__((target("avx512f"))) double flops_f32() {
  __m512 sums[kPeakSums];
  __m512 x = _mm512_set1_ps(1.0f);
  for (auto& sum : sums) sum = x;
  for (int64_t i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(x));
  }
  return 2.0 * 16 * kPeakSums * kPeakSteps;
}

__attribute__((target("avx2,fma"))) double flops_avx2() {
  __m256 sums[12];
  __m256 x = _mm256_set1_ps(1.0f);
  for (auto& sum : sums) sum = x;
  for (int64_t i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(x));
  }
  return 2.0 * 8 * 12 * kPeakSteps;
}

/// Wall clock; on a machine with other work, NIBBLE_BENCHMARK_CLOCK=cpu with one thread still gives shares to go by.
double seconds() {
  static const char* wanted = std::getenv("NIBBLE_BENCHMARK_CLOCK");
  timespec now;
  clock_gettime(wanted && std::string_view(wanted) == "cpu" ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Floating point operations per second of all threads in registers, the best of a few tries.
double peak(DType dtype) {
  const auto loop = isa() >= Isa::avx512_bf16 && dtype == DType::bf16 ? flops_bf16
                    : isa() >= Isa::avx512                            ? flops_f32
                                                                      : flops_avx2;
  static double known[2] = {0, 0};
  double& best = known[dtype == DType::bf16];
  if (best > 0) return best;
  const int count = threads();
  for (int attempt = 0; attempt < 8; ++attempt) {
    std::vector<double> flops(static_cast<size_t>(count));
    const double begin = seconds();
    parallel_for(count, 1, [&](int64_t i, int64_t) { flops[static_cast<size_t>(i)] = loop(); });
    best = std::max(best, flops[0] * count / (seconds() - begin));
  }
  return best;
}

Tensor random(MemoryPool& pool, Shape shape, DType dtype) {
  Tensor made = Tensor::empty(pool, std::move(shape), dtype);
  uint32_t state = 1;
  for (int64_t i = 0; i < made.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    if (dtype == DType::f32) made.data<float>()[i] = value;
    if (dtype == DType::bf16) made.data<bf16>()[i] = bf16(value);
    if (dtype == DType::u8) made.data<uint8_t>()[i] = static_cast<uint8_t>(state >> 24);
  }
  return made;
}

/// Reports the time of `run` as GFLOP/s and as a share of the peak, by the best
/// iteration: other work on the machine only ever adds time.
template <typename Run>
void measure(benchmark::State& state, double flops, DType compute, Run run) {
  const double top = peak(compute);
  run();
  double best = 1e30;
  for (auto _ : state) {
    const double begin = seconds();
    run();
    const double time = seconds() - begin;
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["GFLOPs"] = flops / best * 1e-9;
  state.counters["peak%"] = 100 * flops / best / top;
}

struct Sizes {
  int64_t rows, columns, depth;
};

constexpr Sizes kTraining[] = {{2048, 2048, 2048}, {512, 5632, 2048}, {512, 2048, 5632}, {2048, 576, 1536},
                               {512, 576, 1536},   {512, 576, 576},   {512, 2048, 16},   {512, 16, 2048},
                               {1, 2048, 2048}};

template <DType dtype>
void own_nt(benchmark::State& state) {
  const Sizes s = kTraining[state.range(0)];
  MemoryPool pool;
  Tensor x = random(pool, {s.rows, s.depth}, dtype), w = random(pool, {s.columns, s.depth}, dtype);
  Tensor y = Tensor::zeros(pool, {s.rows, s.columns}, dtype);
  state.SetLabel(to_string({s.rows, s.columns, s.depth}));
  measure(state, 2.0 * s.rows * s.columns * s.depth, dtype, [&] { ops::matmul_nt(x, w, y); });
}
template <DType dtype>
void own_nn(benchmark::State& state) {
  const Sizes s = kTraining[state.range(0)];
  MemoryPool pool;
  Tensor x = random(pool, {s.rows, s.depth}, dtype), w = random(pool, {s.depth, s.columns}, dtype);
  Tensor y = Tensor::zeros(pool, {s.rows, s.columns}, dtype);
  state.SetLabel(to_string({s.rows, s.columns, s.depth}));
  measure(state, 2.0 * s.rows * s.columns * s.depth, dtype, [&] { ops::matmul_nn(x, w, y); });
}
template <DType dtype>
void own_tn(benchmark::State& state) {
  const Sizes s = kTraining[state.range(0)];
  MemoryPool pool;
  Tensor x = random(pool, {s.depth, s.rows}, dtype), w = random(pool, {s.depth, s.columns}, dtype);
  Tensor y = Tensor::zeros(pool, {s.rows, s.columns}, DType::f32);
  state.SetLabel(to_string({s.rows, s.columns, s.depth}));
  measure(state, 2.0 * s.rows * s.columns * s.depth, dtype, [&] { ops::matmul_tn(x, w, y); });
}

/// A 4-bit matrix of random codes with double-quantized scales.
QuantizedMatrix random_packed(MemoryPool& pool, int64_t out, int64_t in) {
  QuantizedMatrix m;
  for (int i = 0; i < 16; ++i) m.table[static_cast<size_t>(i)] = static_cast<float>(i) / 7.5f - 1;
  m.shape = {out, in};
  m.packed = random(pool, {out * in / 2, 1}, DType::u8);
  m.absmax_codes = random(pool, {m.blocks()}, DType::u8);
  m.nested_absmax = random(pool, {(m.blocks() + 255) / 256}, DType::f32);
  m.nested_map = random(pool, {256}, DType::f32);
  return m;
}

template <DType dtype, bool forward>
void nf4(benchmark::State& state) {
  const Sizes s = kTraining[state.range(0)];
  MemoryPool pool;
  const Nf4Panels w(forward ? random_packed(pool, s.columns, s.depth) : random_packed(pool, s.depth, s.columns), "w");
  Tensor x = random(pool, {s.rows, s.depth}, dtype), y = Tensor::zeros(pool, {s.rows, s.columns}, dtype);
  state.SetLabel(to_string({s.rows, s.columns, s.depth}));
  measure(state, 2.0 * s.rows * s.columns * s.depth, dtype,
          [&] { forward ? ops::matmul_nt(x, w, y) : ops::matmul_nn(x, w, y); });
}

BENCHMARK(nf4<DType::bf16, true>)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime();
BENCHMARK(nf4<DType::bf16, false>)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime();
BENCHMARK(nf4<DType::f32, true>)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime();
BENCHMARK(own_nt<DType::bf16>)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime();
BENCHMARK(own_nn<DType::bf16>)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime();
BENCHMARK(own_tn<DType::bf16>)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime();
BENCHMARK(own_nt<DType::f32>)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime();
BENCHMARK(own_nn<DType::f32>)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime();
BENCHMARK(own_tn<DType::f32>)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime();

}  // namespace
}  // namespace nibble

BENCHMARK_MAIN();
