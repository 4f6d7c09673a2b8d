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
void slopes(const float* row, int64_t count, float softcap, Exponentials total, float scale, Out* out) {
  const V limit = splat(softcap), inverse = splat(capped ? 1 / softcap : 0), shift = splat(total.top),
          factor = splat(scale / total.sum);
  for_lanes(count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V value = cap<capped>(load(row + i, lanes), limit, inverse);
    V slope = hn::Mul(exp(hn::Sub(value, shift)), factor);
    if constexpr (capped) {
      const V share = hn::Mul(value, inverse);
      slope = hn::Mul(slope, hn::NegMulAdd(share, share, splat(1)));
    }
    store(slope, out + i, lanes);
  });
}

template <bool capped>
float capped_logit(float raw, float softcap) {
  return hn::GetLane(cap<capped>(splat(raw), splat(softcap), splat(1 / softcap)));
}

template <bool capped>
float target_slope(float target, float softcap, Exponentials total, float scale) {
  const float slope = (std::exp(target - total.top) / total.sum - 1) * scale;
  return capped ? slope * (1 - target / softcap * (target / softcap)) : slope;
}

template <bool capped, typename Out>
void rows(const float* logits, const int32_t* targets, int64_t count, int64_t vocabulary, float softcap, float scale,
          float* losses, Out* dlogits) {
  for (int64_t n = 0; n < count; ++n) {
    const float* row = logits + n * vocabulary;
    const Exponentials total = sum_exponentials<capped>(row, vocabulary, softcap);
    const float target = capped_logit<capped>(row[targets[n]], softcap);
    losses[n] = std::log(total.sum) + (total.top - target);
    if (dlogits == nullptr) continue;
    Out* out = dlogits + n * vocabulary;
    slopes<capped>(row, vocabulary, softcap, total, scale, out);
    out[targets[n]] = Out(target_slope<capped>(target, softcap, total, scale));
  }
}

template <typename Out>
void all_rows(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses, Out* dlogits) {
  const int64_t vocabulary = logits.dim(1);
  const float* from = logits.data<const float>();
  const int32_t* target = targets.data<const int32_t>();
  float* loss = losses.data<float>();
  parallel_for(logits.dim(0), 1, [=](int64_t begin, int64_t end) {
    Out* out = dlogits == nullptr ? nullptr : dlogits + begin * vocabulary;
    const float* row = from + begin * vocabulary;
    if (softcap > 0) {
      rows<true>(row, target + begin, end - begin, vocabulary, softcap, scale, loss + begin, out);
    } else {
      rows<false>(row, target + begin, end - begin, vocabulary, softcap, scale, loss + begin, out);
    }
  });
}

void cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses,
                   Tensor& dlogits) {
  if (!dlogits) return all_rows<float>(logits, targets, softcap, scale, losses, nullptr);
  if (dlogits.dtype() == DType::bf16) return all_rows(logits, targets, softcap, scale, losses, dlogits.data<bf16>());
  all_rows(logits, targets, softcap, scale, losses, dlogits.data<float>());
}

template <bool capped>
void part_sums(const Tensor& logits, const Tensor& targets, float softcap, Tensor& tops, Tensor& sums,
               Tensor& target_logits) {
  const int64_t vocabulary = logits.dim(1);
  const float* from = logits.data<const float>();
  const int32_t* target = targets.data<const int32_t>();
  float *top = tops.data<float>(), *sum = sums.data<float>(), *picked = target_logits.data<float>();
  parallel_for(logits.dim(0), 1, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* row = from + n * vocabulary;
      const Exponentials total = sum_exponentials<capped>(row, vocabulary, softcap);
      top[n] = total.top;
      sum[n] = total.sum;
      picked[n] = target[n] < 0 ? 0 : capped_logit<capped>(row[target[n]], softcap);
    }
  });
}

void cross_entropy_sums(const Tensor& logits, const Tensor& targets, float softcap, Tensor& tops, Tensor& sums,
                        Tensor& target_logits) {
  if (softcap > 0) return part_sums<true>(logits, targets, softcap, tops, sums, target_logits);
  part_sums<false>(logits, targets, softcap, tops, sums, target_logits);
}

template <bool capped, typename Out>
void part_slopes(const Tensor& logits, const Tensor& targets, const Tensor& tops, const Tensor& sums, float softcap,
                 float scale, Out* dlogits) {
  const int64_t vocabulary = logits.dim(1);
  const float *from = logits.data<const float>(), *top = tops.data<const float>(), *sum = sums.data<const float>();
  const int32_t* target = targets.data<const int32_t>();
  parallel_for(logits.dim(0), 1, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* row = from + n * vocabulary;
      Out* out = dlogits + n * vocabulary;
      const float own = target[n] < 0 ? 0 : capped_logit<capped>(row[target[n]], softcap);
      slopes<capped>(row, vocabulary, softcap, {top[n], sum[n]}, scale, out);
      if (target[n] >= 0) out[target[n]] = Out(target_slope<capped>(own, softcap, {top[n], sum[n]}, scale));
    }
  });
}

void cross_entropy_slopes(const Tensor& logits, const Tensor& targets, const Tensor& tops, const Tensor& sums,
                          float softcap, float scale, Tensor& dlogits) {
  const auto run = [&](auto* out) {
    if (softcap > 0) return part_slopes<true>(logits, targets, tops, sums, softcap, scale, out);
    part_slopes<false>(logits, targets, tops, sums, softcap, scale, out);
  };
  dlogits.dtype() == DType::bf16 ? run(dlogits.data<bf16>()) : run(dlogits.data<float>());
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops {

HWY_EXPORT(cross_entropy);

void cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses,
                   Tensor& dlogits) {
  const int64_t count = logits.dim(0);
  NIBBLE_CHECK(logits.rank() == 2 && targets.numel() == count && losses.numel() == count, "cross_entropy: shapes");
  NIBBLE_CHECK(!dlogits || dlogits.shape() == logits.shape(), "cross_entropy: shape of dlogits");
  for (int32_t target : targets.span<const int32_t>()) {
    NIBBLE_CHECK(target >= 0 && target < logits.dim(1), "cross_entropy: target " + std::to_string(target));
  }
  NIBBLE_SIMD(cross_entropy)(logits, targets, softcap, scale, losses, dlogits);
}

HWY_EXPORT(cross_entropy_sums);
HWY_EXPORT(cross_entropy_slopes);

void cross_entropy_sums(const Tensor& logits, const Tensor& targets, float softcap, Tensor& tops, Tensor& sums,
                        Tensor& target_logits) {
  const int64_t count = logits.dim(0);
  NIBBLE_CHECK(targets.numel() == count && tops.numel() == count && sums.numel() == count &&
                   target_logits.numel() == count && logits.dim(1) > 0,
               "cross_entropy_sums: shapes");
  NIBBLE_SIMD(cross_entropy_sums)(logits, targets, softcap, tops, sums, target_logits);
}

void cross_entropy_slopes(const Tensor& logits, const Tensor& targets, const Tensor& tops, const Tensor& sums,
                          float softcap, float scale, Tensor& dlogits) {
  const int64_t count = logits.dim(0);
  NIBBLE_CHECK(
      targets.numel() == count && tops.numel() == count && sums.numel() == count && dlogits.shape() == logits.shape(),
      "cross_entropy_slopes: shapes");
  NIBBLE_SIMD(cross_entropy_slopes)(logits, targets, tops, sums, softcap, scale, dlogits);
}

}  // namespace nibble::ops
#endif
