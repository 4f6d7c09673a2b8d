// How fast weights become 4-bit: bytes of the 16/32-bit weight per second.
//   build/release/bin/quantize_benchmark

#include <benchmark/benchmark.h>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/quant/codec.h"

namespace {

using namespace nibble;

void quantize_matrix(benchmark::State& state, DType dtype, QuantType type) {
  set_threads(static_cast<int>(state.range(0)));
  MemoryPool pool;
  Tensor normal = Tensor::empty(pool, {2048, 4096}, DType::f32), weight = Tensor::empty(pool, {2048, 4096}, dtype);
  ops::fill_normal(normal, 0.02f, 1, 1);
  ops::cast(normal, weight);
  for (auto _ : state) benchmark::DoNotOptimize(quantize(weight, {type}, pool, "w").nested_offset);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(weight.bytes()));
}

BENCHMARK_CAPTURE(quantize_matrix, nf4_of_f32, DType::f32, QuantType::nf4)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(quantize_matrix, nf4_of_bf16, DType::bf16, QuantType::nf4)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(quantize_matrix, fp4_of_bf16, DType::bf16, QuantType::fp4)->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK_CAPTURE(quantize_matrix, nf4_of_f16, DType::f16, QuantType::nf4)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
