#include "nibble/core/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

/// softcap * tanh(x / softcap), or x itself
template <bool capped>
HWY_INLINE V cap(V x, V softcap, V inverse) {
  if constexpr (!capped) return x;
  return hn::Mul(softcap, tanh(hn::Mul(x, inverse)));
}

/// sum = sum of e^(x - top). Kept apart, so that neither loss nor probabilities lose digits to a large top.
struct Exponentials {
  float top, sum;
};

/// The sum of exponentials of a row, read once: blocks small enough for the first-level cache, each with its
/// own maximum, the sum so far rescaled when a block brings a greater one.
template <bool capped>
Exponentials sum_exponentials(const float* row, int64_t count, float softcap) {
  constexpr int64_t kBlock = 2048;
  const V limit = splat(softcap), inverse = splat(capped ? 1 / softcap : 0);
  float top = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const float* block = row + begin;
    const int64_t size = std::min(kBlock, count - begin);
    V tops[2] = {splat(block[0]), splat(block[0])};
    int64_t i = 0;
    for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
      tops[0] = hn::Max(tops[0], load(block + i));
      tops[1] = hn::Max(tops[1], load(block + i + kLanes));
    }
    float block_top = hn::GetLane(hn::MaxOfLanes(kF, hn::Max(tops[0], tops[1])));
    for (; i < size; ++i) block_top = std::max(block_top, block[i]);
    const float new_top = std::max(top, hn::GetLane(cap<capped>(splat(block_top), limit, inverse)));
    sum *= std::exp(top - new_top);
    top = new_top;
    const V shift = splat(top);
    const int64_t whole = size / kLanes * kLanes;
    sum += sum_lanes(whole, [&](int64_t j, auto lanes) HWY_ATTR {
      return exp(hn::Sub(cap<capped>(load(block + j, lanes), limit, inverse), shift));
    });
    for (int64_t j = whole; j < size; ++j) {
      sum += hn::GetLane(exp(hn::Sub(cap<capped>(splat(block[j]), limit, inverse), shift)));
    }
  }
  return {top, sum};
}

template <bool capped, typename Out>
void gradients(const float* row, int64_t count, float softcap, Exponentials total, float scale, Out* out) {
  const V limit = splat(softcap), inverse = splat(capped ? 1 / softcap : 0), shift = splat(total.top),
          factor = splat(scale / total.sum);
  for_lanes(count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V value = cap<capped>(load(row + i, lanes), limit, inverse);
    V gradient = hn::Mul(exp(hn::Sub(value, shift)), factor);
    if constexpr (capped) {
      const V share = hn::Mul(value, inverse);
      gradient = hn::Mul(gradient, hn::NegMulAdd(share, share, splat(1)));
    }
    store(gradient, out + i, lanes);
  });
}

template <bool capped>
float capped_logit(float raw, float softcap) {
  return hn::GetLane(cap<capped>(splat(raw), splat(softcap), splat(1 / softcap)));
}

template <bool capped>
float target_gradient(float target, float softcap, Exponentials total, float scale) {
  const float gradient = (std::exp(target - total.top) / total.sum - 1) * scale;
  return capped ? gradient * (1 - target / softcap * (target / softcap)) : gradient;
}

template <bool capped, typename Out>
void rows(const float* logits, const int32_t* targets, int64_t count, int64_t vocabulary, float softcap, float scale,
          const float* weights, float* losses, Out* dlogits) {
  for (int64_t n = 0; n < count; ++n) {
    const float* row = logits + n * vocabulary;
    const Exponentials total = sum_exponentials<capped>(row, vocabulary, softcap);
    const float target = capped_logit<capped>(row[targets[n]], softcap);
    losses[n] = std::log(total.sum) + (total.top - target);
    if (dlogits == nullptr) continue;
    Out* out = dlogits + n * vocabulary;
    const float of_row = weights ? scale * weights[n] : scale;
    gradients<capped>(row, vocabulary, softcap, total, of_row, out);
    out[targets[n]] = Out(target_gradient<capped>(target, softcap, total, of_row));
  }
}

template <typename Out>
void all_rows(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses, Out* dlogits,
              const Tensor& weights) {
  const int64_t vocabulary = logits.dim(1);
  const float* from = logits.data<const float>();
  const int32_t* target = targets.data<const int32_t>();
  const float* weight = weights ? weights.data<const float>() : nullptr;
  float* loss = losses.data<float>();
  parallel_for(logits.dim(0), 1, [=](int64_t begin, int64_t end) {
    Out* out = dlogits == nullptr ? nullptr : dlogits + begin * vocabulary;
    const float* own = weight ? weight + begin : nullptr;
    const float* row = from + begin * vocabulary;
    if (softcap > 0) {
      rows<true>(row, target + begin, end - begin, vocabulary, softcap, scale, own, loss + begin, out);
    } else {
      rows<false>(row, target + begin, end - begin, vocabulary, softcap, scale, own, loss + begin, out);
    }
  });
}

void cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses,
                   Tensor& dlogits, const Tensor& weights) {
  const auto run = [&](auto* out) { all_rows(logits, targets, softcap, scale, losses, out, weights); };
  if (!dlogits) return run(static_cast<float*>(nullptr));
  dlogits.dtype() == DType::bf16 ? run(dlogits.data<bf16>()) : run(dlogits.data<float>());
}

template <bool capped>
void row_statistics(const Tensor& logits, const Tensor& targets, float softcap, Tensor& statistics) {
  const int64_t rows = logits.dim(0), vocabulary = logits.dim(1);
  const float* from = logits.data<const float>();
  const int32_t* target = targets.data<const int32_t>();
  float *row_max = statistics.data<float>(), *row_sumexp = row_max + rows, *target_logits = row_sumexp + rows;
  parallel_for(rows, 1, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* row = from + n * vocabulary;
      const Exponentials total = sum_exponentials<capped>(row, vocabulary, softcap);
      row_max[n] = total.top;
      row_sumexp[n] = total.sum;
      target_logits[n] = target[n] < 0 ? 0 : capped_logit<capped>(row[target[n]], softcap);
    }
  });
}

void cross_entropy_statistics(const Tensor& logits, const Tensor& targets, float softcap, Tensor& statistics) {
  if (softcap > 0) return row_statistics<true>(logits, targets, softcap, statistics);
  row_statistics<false>(logits, targets, softcap, statistics);
}

template <bool capped, typename Out>
void backward_rows(const Tensor& logits, const Tensor& targets, const Tensor& row_max, const Tensor& row_sumexp,
                   float softcap, float scale, Out* dlogits, const Tensor& weights) {
  const int64_t vocabulary = logits.dim(1);
  const float *from = logits.data<const float>(), *top = row_max.data<const float>();
  const float* sum = row_sumexp.data<const float>();
  const int32_t* target = targets.data<const int32_t>();
  const float* weight = weights ? weights.data<const float>() : nullptr;
  parallel_for(logits.dim(0), 1, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* row = from + n * vocabulary;
      Out* out = dlogits + n * vocabulary;
      const float of_row = weight ? scale * weight[n] : scale;
      const float own = target[n] < 0 ? 0 : capped_logit<capped>(row[target[n]], softcap);
      gradients<capped>(row, vocabulary, softcap, {top[n], sum[n]}, of_row, out);
      if (target[n] >= 0) out[target[n]] = Out(target_gradient<capped>(own, softcap, {top[n], sum[n]}, of_row));
    }
  });
}

void cross_entropy_backward(const Tensor& logits, const Tensor& targets, const Tensor& row_max,
                            const Tensor& row_sumexp, float softcap, float scale, Tensor& dlogits,
                            const Tensor& weights) {
  const auto run = [&](auto* out) {
    if (softcap > 0) return backward_rows<true>(logits, targets, row_max, row_sumexp, softcap, scale, out, weights);
    backward_rows<false>(logits, targets, row_max, row_sumexp, softcap, scale, out, weights);
  };
  dlogits.dtype() == DType::bf16 ? run(dlogits.data<bf16>()) : run(dlogits.data<float>());
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

HWY_EXPORT(cross_entropy);

void cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses,
                   Tensor& dlogits, const Tensor& weights) {
  NIBBLE_SIMD(cross_entropy)(logits, targets, softcap, scale, losses, dlogits, weights);
}

HWY_EXPORT(cross_entropy_statistics);
HWY_EXPORT(cross_entropy_backward);

void cross_entropy_statistics(const Tensor& logits, const Tensor& targets, float softcap, Tensor& statistics) {
  NIBBLE_SIMD(cross_entropy_statistics)(logits, targets, softcap, statistics);
}

void cross_entropy_merge(const Tensor& statistics, Tensor& row_max, Tensor& row_sumexp, Tensor& losses) {
  const int64_t count = losses.numel(), ranks = statistics.dim(0) / 3;
  const float* from = statistics.data<const float>();
  float *maxima = row_max.data<float>(), *sums = row_sumexp.data<float>(), *loss = losses.data<float>();
  for (int64_t n = 0; n < count; ++n) {
    const auto at = [&](int64_t rank, int64_t which) { return from[(rank * 3 + which) * count + n]; };
    float highest = at(0, 0), exponentials = 0, target = 0;
    for (int64_t r = 1; r < ranks; ++r) highest = std::max(highest, at(r, 0));
    for (int64_t r = 0; r < ranks; ++r) {
      exponentials += at(r, 1) * std::exp(at(r, 0) - highest);
      target += at(r, 2);
    }
    maxima[n] = highest;
    sums[n] = exponentials;
    loss[n] = std::log(exponentials) + (highest - target);
  }
}

void cross_entropy_backward(const Tensor& logits, const Tensor& targets, const Tensor& row_max,
                            const Tensor& row_sumexp, float softcap, float scale, Tensor& dlogits,
                            const Tensor& weights) {
  NIBBLE_SIMD(cross_entropy_backward)(logits, targets, row_max, row_sumexp, softcap, scale, dlogits, weights);
}

}  // namespace nibble::ops::cpu
#endif
