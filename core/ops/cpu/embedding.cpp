#include "nibble/core/ops/embedding.h"

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/embedding.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kRowGrain = 32;

/// to[n] = factor * from[row[n]]
template <typename From, typename To>
void take_rows(const From* from, const int32_t* row, int64_t count, int64_t width, float factor, To* to) {
  parallel_for(count, kRowGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    const V scale = splat(factor);
    for (int64_t n = begin; n < end; ++n) {
      const From* source = from + row[n] * width;
      To* target = to + n * width;
      for_lanes(width, [=](int64_t i, auto lanes)
                           HWY_ATTR { store(hn::Mul(scale, load(source + i, lanes)), target + i, lanes); });
    }
  });
}

/// row += factor * values
template <typename Element>
HWY_INLINE void add_row(const Element* values, int64_t width, float factor, float* row) {
  for_lanes(width, [=](int64_t i, auto lanes) HWY_ATTR {
    store(hn::MulAdd(splat(factor), load(values + i, lanes), load(row + i, lanes)), row + i, lanes);
  });
}

void embedding_forward(const Tensor& ids, const Tensor& table, float scale, Tensor& out) {
  const int64_t count = ids.numel(), width = table.dim(1);
  const int32_t* id = ids.data<const int32_t>();
  float* to = out.data<float>();
  if (table.dtype() == DType::f32) return take_rows(table.data<const float>(), id, count, width, scale, to);
  if (table.dtype() == DType::f16) return take_rows(table.data<const f16>(), id, count, width, scale, to);
  take_rows(table.data<const bf16>(), id, count, width, scale, to);
}

void embedding_backward(const Tensor& ids, const Tensor& dout, float scale, Tensor& dtable) {
  const int64_t tokens = ids.numel(), width = dtable.dim(1);
  const int32_t* id = ids.data<const int32_t>();
  const float* from = dout.data<const float>();
  float* to = dtable.data<float>();
  // An id may come many times, so threads share columns, not tokens: every sum runs in the order of t.
  parallel_for(width, 256, [=](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t t = 0; t < tokens; ++t) {
      if (id[t] >= 0) add_row(from + t * width + begin, end - begin, scale, to + id[t] * width + begin);
    }
  });
}

void gather_rows(const Tensor& x, const Tensor& rows, Tensor& out) {
  const int64_t count = rows.numel(), width = x.dim(1);
  const int32_t* row = rows.data<const int32_t>();
  if (x.dtype() == DType::bf16) return take_rows(x.data<const bf16>(), row, count, width, 1, out.data<bf16>());
  if (out.dtype() == DType::bf16) return take_rows(x.data<const float>(), row, count, width, 1, out.data<bf16>());
  take_rows(x.data<const float>(), row, count, width, 1, out.data<float>());
}

template <typename Element>
void scatter_add(const Element* y, const int32_t* row, int64_t count, int64_t width, float* x) {
  parallel_for(count, kRowGrain, [=](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t n = begin; n < end; ++n) add_row(y + n * width, width, 1, x + row[n] * width);
  });
}

void scatter_add_rows(const Tensor& y, const Tensor& rows, Tensor& x) {
  const int64_t count = rows.numel(), width = x.dim(1);
  const int32_t* row = rows.data<const int32_t>();
  if (y.dtype() == DType::bf16) return scatter_add(y.data<const bf16>(), row, count, width, x.data<float>());
  scatter_add(y.data<const float>(), row, count, width, x.data<float>());
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(embedding_forward);
NIBBLE_SIMD_KERNEL(embedding_backward);
NIBBLE_SIMD_KERNEL(gather_rows);
NIBBLE_SIMD_KERNEL(scatter_add_rows);

}  // namespace nibble::ops::cpu
#endif
