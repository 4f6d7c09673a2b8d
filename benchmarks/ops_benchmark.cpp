// Speed of the ops beside the matrix products. Attention reports GFLOP/s of the products a causal mask leaves (2
// forward, 5 backward); the others report GB/s of the bytes that must move.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <thread>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/activation.h"
#include "nibble/core/ops/attention.h"
#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/dropout.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/norm.h"
#include "nibble/core/ops/optimizer.h"

namespace nibble {
namespace {

MemoryPool& pool() {
  static MemoryPool the_pool;
  return the_pool;
}

Tensor random(const Shape& shape, DType dtype, uint64_t seed = 1) {
  Tensor x = Tensor::empty(pool(), shape, dtype);
  ops::fill_uniform(x, -1, 1, seed, 0);
  return x;
}

void report(benchmark::State& state, double amount, const char* unit) {
  state.counters[unit] = benchmark::Counter(amount * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

struct AttentionSetup {
  AttentionSetup(const benchmark::State& state, DType dtype, int64_t queries = 0) : keys(state.range(3)) {
    if (queries == 0) queries = keys;
    params.heads = state.range(0);
    params.kv_heads = state.range(1);
    params.head_size = state.range(2);
    params.scale = 0.125f;
    q = random({queries, params.heads * params.head_size}, dtype);
    k = random({keys, params.kv_heads * params.head_size}, dtype, 2);
    v = random(k.shape(), dtype, 3);
    out = random(q.shape(), dtype);
    lse = Tensor::empty(pool(), {params.heads, queries}, DType::f32);
    spans = {{0, queries, 0, keys}};
  }
  /// FLOP of `count` products of a causal mask.
  double products(int count) const {
    return static_cast<double>(count * keys * (keys + 1) * params.heads * params.head_size);
  }
  int64_t keys;
  ops::AttentionParams params;
  std::vector<ops::AttentionSpan> spans;
  Tensor q, k, v, out, lse;
};

void attention_forward(benchmark::State& state, DType dtype) {
  AttentionSetup a(state, dtype);
  for (auto _ : state) ops::attention_forward(a.q, a.k, a.v, a.spans, a.params, a.out, a.lse);
  report(state, a.products(2), "GFLOP/s");
}

void attention_backward(benchmark::State& state, DType dtype) {
  AttentionSetup a(state, dtype);
  ops::attention_forward(a.q, a.k, a.v, a.spans, a.params, a.out, a.lse);
  const Tensor dout = random(a.q.shape(), dtype, 4);
  Tensor dq = random(a.q.shape(), dtype), dk = random(a.k.shape(), dtype), dv = random(a.v.shape(), dtype);
  for (auto _ : state) ops::attention_backward(dout, a.q, a.k, a.v, a.out, a.lse, a.spans, a.params, dq, dk, dv);
  report(state, a.products(5), "GFLOP/s");
}

void attention_decode(benchmark::State& state, DType dtype) {
  AttentionSetup a(state, dtype, 1);
  for (auto _ : state) ops::attention_forward(a.q, a.k, a.v, a.spans, a.params, a.out, a.lse);
  report(state, static_cast<double>(a.k.bytes() + a.v.bytes()), "GB/s");
}

#define NIBBLE_ATTENTION_OF(function, dtype, keys) \
  BENCHMARK_CAPTURE(function, dtype, DType::dtype) \
      ->Args({9, 3, 64, keys})                     \
      ->Args({32, 4, 64, keys})                    \
      ->Args({16, 16, 128, keys})
#define NIBBLE_ATTENTION(function, keys)    \
  NIBBLE_ATTENTION_OF(function, f32, keys); \
  NIBBLE_ATTENTION_OF(function, bf16, keys)
NIBBLE_ATTENTION(attention_forward, 2048);
NIBBLE_ATTENTION(attention_forward, 512);
NIBBLE_ATTENTION(attention_backward, 2048);
NIBBLE_ATTENTION(attention_backward, 512);
NIBBLE_ATTENTION(attention_decode, 65536);

constexpr int64_t kTokens = 2048, kWidth = 2048, kFeatures = 5632;

void rms_norm_forward(benchmark::State& state) {
  const Tensor x = random({kTokens, kWidth}, DType::f32), w = random({kWidth}, DType::f32);
  Tensor y = Tensor::empty(pool(), x.shape(), DType::bf16), inv = Tensor::empty(pool(), {kTokens}, DType::f32);
  for (auto _ : state) ops::rms_norm_forward(x, w, 1e-5f, 0, y, inv);
  report(state, static_cast<double>(x.bytes() + y.bytes()), "GB/s");
}
BENCHMARK(rms_norm_forward);

void rms_norm_backward(benchmark::State& state) {
  const Tensor x = random({kTokens, kWidth}, DType::f32), w = random({kWidth}, DType::f32);
  const Tensor dy = random(x.shape(), DType::bf16, 2), inv = random({kTokens}, DType::f32);
  Tensor dx = Tensor::zeros(pool(), x.shape(), DType::f32),
         dw = state.range(0) ? random({kWidth}, DType::f32) : Tensor();
  for (auto _ : state) ops::rms_norm_backward(dy, x, w, 0, inv, dx, dw);
  report(state, static_cast<double>(x.bytes() + dy.bytes() + 2 * dx.bytes()), "GB/s");
}
BENCHMARK(rms_norm_backward)->Arg(0)->Arg(1);

void gated_forward(benchmark::State& state) {
  const Tensor gate = random({kTokens, kFeatures}, DType::bf16), up = random(gate.shape(), DType::bf16, 2);
  Tensor y = Tensor::empty(pool(), gate.shape(), DType::bf16);
  for (auto _ : state) ops::gated_forward(ops::Activation::silu, gate, up, y);
  report(state, 3.0 * static_cast<double>(y.bytes()), "GB/s");
}
BENCHMARK(gated_forward);

void gated_backward(benchmark::State& state) {
  const Tensor gate = random({kTokens, kFeatures}, DType::bf16), up = random(gate.shape(), DType::bf16, 2);
  const Tensor dy = random(gate.shape(), DType::bf16, 3);
  Tensor dgate = random(gate.shape(), DType::bf16), dup = random(gate.shape(), DType::bf16), again;
  for (auto _ : state) ops::gated_backward(ops::Activation::silu, dy, gate, up, dgate, dup, again);
  report(state, 5.0 * static_cast<double>(dy.bytes()), "GB/s");
}
BENCHMARK(gated_backward);

void cross_entropy(benchmark::State& state) {
  const Tensor logits = random({256, state.range(0)}, DType::f32);
  const Tensor targets = Tensor::zeros(pool(), {256}, DType::i32);
  Tensor losses = Tensor::empty(pool(), {256}, DType::f32), dlogits = random(logits.shape(), DType::bf16);
  for (auto _ : state) ops::cross_entropy(logits, targets, 0, 1, losses, dlogits);
  report(state, static_cast<double>(logits.bytes() + dlogits.bytes()), "GB/s");
}
BENCHMARK(cross_entropy)->Arg(32000)->Arg(151936);

void dropout(benchmark::State& state) {
  const Tensor x = random({kTokens, kWidth}, DType::bf16), keys = Tensor::zeros(pool(), {kTokens}, DType::i64);
  Tensor y = Tensor::empty(pool(), x.shape(), DType::bf16);
  for (auto _ : state) ops::dropout(x, keys, 0.05f, {}, y);
  report(state, 2.0 * static_cast<double>(x.bytes()), "GB/s");
}
BENCHMARK(dropout);

void adamw(benchmark::State& state) {
  const Tensor g = random({1 << 24}, DType::f32);
  Tensor w = random(g.shape(), DType::f32, 2), m = random(g.shape(), DType::f32, 3);
  Tensor v = Tensor::zeros(pool(), g.shape(), DType::f32);
  for (auto _ : state) ops::adamw(w, g, m, v, {.lr = 1e-4});
  report(state, 7.0 * static_cast<double>(g.bytes()), "GB/s");
}
BENCHMARK(adamw);

void cast_to_bf16(benchmark::State& state) {
  const Tensor x = random({1 << 24}, DType::f32);
  Tensor y = Tensor::empty(pool(), x.shape(), DType::bf16);
  for (auto _ : state) ops::cast(x, y);
  report(state, static_cast<double>(x.bytes() + y.bytes()), "GB/s");
}
BENCHMARK(cast_to_bf16);

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  // OMP_NUM_THREADS=1 measures a kernel itself on a machine that others use: then the CPU time, which the rates are of,
  // is all the time it takes.
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    nibble::set_threads(static_cast<int>(std::thread::hardware_concurrency()));
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
