// Matrix products as shares of the peak that a loop of multiply-adds in registers reaches in the same process on the
// same threads. Only such shares compare between machines and days. On an idle machine:
//   gemm_benchmark --benchmark_counters_tabular=true
// OpenBLAS takes this CPU's kernels from OPENBLAS_CORETYPE; its own guess may be an old one (0.3.21 on Zen 4 and 5).

#include <benchmark/benchmark.h>
#include <cblas.h>

#include <algorithm>
#include <limits>

#ifdef BENCHMARK_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

#include "nibble/core/ops/cpu/gemm/gemm_packed.h"
#include "nibble/core/ops/gemm.h"
#include "peak.h"

namespace nibble {
namespace {

using benchmarks::seconds;

double peak(DType dtype) {
  static double known[2] = {0, 0};
  double& best = known[dtype == DType::bf16];
  if (best == 0) best = benchmarks::measure_peak(dtype, 8);
  return best;
}

Tensor random(MemoryPool& pool, Shape shape, DType dtype) {
  Tensor result = Tensor::empty(pool, std::move(shape), dtype);
  uint32_t state = 1;
  for (int64_t i = 0; i < result.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    if (dtype == DType::f32) result.data<float>()[i] = value;
    if (dtype == DType::bf16) result.data<bf16>()[i] = bf16(value);
    if (dtype == DType::u8) result.data<uint8_t>()[i] = static_cast<uint8_t>(state >> 24);
  }
  return result;
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
                               {1, 2048, 2048},    {16, 2048, 512},   {2048, 16, 512}};

enum class Form { nt, nn, tn };

/// Operands of c [rows, columns] = a b in one form: a is [depth, rows] in tn, b is [columns, depth] in nt.
struct Operands {
  MemoryPool pool;
  Sizes sizes;
  Tensor a, b, c;

  Operands(benchmark::State& state, Form form, DType dtype) : sizes(kTraining[state.range(0)]) {
    const auto [rows, columns, depth] = sizes;
    a = random(pool, form == Form::tn ? Shape{depth, rows} : Shape{rows, depth}, dtype);
    b = random(pool, form == Form::nt ? Shape{columns, depth} : Shape{depth, columns}, dtype);
    c = Tensor::zeros(pool, {rows, columns}, form == Form::tn ? DType::f32 : dtype);
    state.SetLabel(to_string({rows, columns, depth}));
  }
  double flops() const {
    return 2.0 * static_cast<double>(sizes.rows) * static_cast<double>(sizes.columns) *
           static_cast<double>(sizes.depth);
  }
};

template <Form form, DType dtype>
void own(benchmark::State& state) {
  Operands x(state, form, dtype);
  measure(state, x.flops(), dtype, [&] {
    if (form == Form::nt) ops::matmul_nt(x.a, x.b, x.c);
    if (form == Form::nn) ops::matmul_nn(x.a, x.b, x.c);
    if (form == Form::tn) ops::matmul_tn(x.a, x.b, x.c);
  });
}

#ifdef BENCHMARK_WITH_ONEDNN
dnnl::memory::data_type onednn_type(const Tensor& x) {
  return x.dtype() == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

/// oneDNN's matmul on the same row-major operands, or with b in the blocked layout it likes best, made beforehand.
template <Form form, DType dtype, bool packed>
void onednn(benchmark::State& state) {
  using Memory = dnnl::memory;
  Operands x(state, form, dtype);
  const auto [rows, columns, depth] = x.sizes;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto plain = [](bool transposed) { return transposed ? Memory::format_tag::ba : Memory::format_tag::ab; };
  const Memory::desc a_desc({rows, depth}, onednn_type(x.a), plain(form == Form::tn));
  const Memory::desc b_plain({depth, columns}, onednn_type(x.b), plain(form == Form::nt));
  const Memory::desc b_desc =
      packed ? Memory::desc({depth, columns}, onednn_type(x.b), Memory::format_tag::any) : b_plain;
  const Memory::desc c_desc({rows, columns}, onednn_type(x.c), Memory::format_tag::ab);
  const dnnl::matmul::primitive_desc result(dnnl::matmul::desc(a_desc, b_desc, c_desc), engine);
  Memory a(a_desc, engine, x.a.mutable_raw()), b(b_plain, engine, x.b.mutable_raw()),
      c(c_desc, engine, x.c.mutable_raw());
  Memory b_best(result.weights_desc(), engine);
  dnnl::reorder(b, b_best).execute(stream, b, b_best);
  dnnl::matmul multiply(result);
  measure(state, x.flops(), dtype, [&] {
    multiply.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b_best}, {DNNL_ARG_DST, c}});
    stream.wait();
  });
}
#endif

/// In pieces of at most kPiece rows and columns, as a product is cut whose bits are not to depend on the threads.
template <Form form, int64_t kPiece = std::numeric_limits<blasint>::max()>
void openblas(benchmark::State& state) {
  Operands x(state, form, DType::f32);
  const int64_t rows = x.sizes.rows, columns = x.sizes.columns, depth = x.sizes.depth;
  const int64_t lda = form == Form::tn ? rows : depth, ldb = form == Form::nt ? depth : columns;
  const auto whole = [](int64_t size) { return static_cast<blasint>(size); };
  const auto piece = [](int64_t size) { return static_cast<blasint>(std::min(kPiece, size)); };
  measure(state, x.flops(), DType::f32, [&] {
    for (int64_t n = 0; n < columns; n += kPiece) {
      for (int64_t m = 0; m < rows; m += kPiece) {
        cblas_sgemm(CblasRowMajor, form == Form::tn ? CblasTrans : CblasNoTrans,
                    form == Form::nt ? CblasTrans : CblasNoTrans, piece(rows - m), piece(columns - n), whole(depth), 1,
                    x.a.data<float>() + m * (form == Form::tn ? 1 : depth), whole(lda),
                    x.b.data<float>() + n * (form == Form::nt ? depth : 1), whole(ldb), 0,
                    x.c.data<float>() + m * columns + n, whole(columns));
      }
    }
  });
}

/// A 4-bit matrix of random codes with double-quantized scales.
ops::FourBitMatrix random_packed(MemoryPool& pool, int64_t out, int64_t in) {
  ops::FourBitMatrix m;
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
  const ops::WeightView w(forward ? random_packed(pool, s.columns, s.depth) : random_packed(pool, s.depth, s.columns),
                          "w");
  Tensor x = random(pool, {s.rows, s.depth}, dtype), y = Tensor::zeros(pool, {s.rows, s.columns}, dtype);
  state.SetLabel(to_string({s.rows, s.columns, s.depth}));
  measure(state, 2.0 * s.rows * s.columns * s.depth, dtype,
          [&] { forward ? ops::matmul_nt(x, w, y) : ops::matmul_nn(x, w, y); });
}

#define NIBBLE_GEMM_BENCHMARK(...) \
  BENCHMARK(__VA_ARGS__)->DenseRange(0, std::size(kTraining) - 1)->UseManualTime()->Unit(benchmark::kMillisecond)

NIBBLE_GEMM_BENCHMARK(nf4<DType::bf16, true>);
NIBBLE_GEMM_BENCHMARK(nf4<DType::bf16, false>);
NIBBLE_GEMM_BENCHMARK(nf4<DType::f32, true>);
NIBBLE_GEMM_BENCHMARK(nf4<DType::f32, false>);
NIBBLE_GEMM_BENCHMARK(own<Form::nt, DType::bf16>);
NIBBLE_GEMM_BENCHMARK(own<Form::nn, DType::bf16>);
NIBBLE_GEMM_BENCHMARK(own<Form::tn, DType::bf16>);
NIBBLE_GEMM_BENCHMARK(own<Form::nt, DType::f32>);
NIBBLE_GEMM_BENCHMARK(own<Form::nn, DType::f32>);
NIBBLE_GEMM_BENCHMARK(own<Form::tn, DType::f32>);
#ifdef BENCHMARK_WITH_ONEDNN
NIBBLE_GEMM_BENCHMARK(onednn<Form::nt, DType::bf16, false>);
NIBBLE_GEMM_BENCHMARK(onednn<Form::nt, DType::bf16, true>);
NIBBLE_GEMM_BENCHMARK(onednn<Form::nn, DType::bf16, false>);
NIBBLE_GEMM_BENCHMARK(onednn<Form::tn, DType::bf16, false>);
NIBBLE_GEMM_BENCHMARK(onednn<Form::nt, DType::f32, false>);
NIBBLE_GEMM_BENCHMARK(onednn<Form::nn, DType::f32, false>);
NIBBLE_GEMM_BENCHMARK(onednn<Form::tn, DType::f32, false>);
#endif
NIBBLE_GEMM_BENCHMARK(openblas<Form::nt>);
NIBBLE_GEMM_BENCHMARK(openblas<Form::nn>);
NIBBLE_GEMM_BENCHMARK(openblas<Form::tn>);
NIBBLE_GEMM_BENCHMARK(openblas<Form::tn, 1024>);
NIBBLE_GEMM_BENCHMARK(openblas<Form::tn, 512>);

}  // namespace
}  // namespace nibble

BENCHMARK_MAIN();
