#include "nibble/core/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/parallel_each.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

/// softcap * tanh(x / softcap), or x itself
template <bool capped>
HWY_INLINE V cap(V x, V softcap, V inverse) {
  if constexpr (!capped) return x;
  return hn::Mul(softcap, tanh(hn::Mul(x, inverse)));
}

/// sum = sum of e^(x - row_max). Kept apart, so that neither loss nor probabilities lose digits to a large row_max.
struct Exponentials {
  float row_max, sum;
};

/// What cross_entropy_statistics may tell beside them, e = e^(x - row_max): the sums of e (x - row_max), e^2 and x.
struct MoreSums {
  float shifted = 0, squares = 0, logits = 0;
};

/// The sum of exponentials of a row, read once: blocks small enough for the first-level cache, each with its
/// own maximum, the sum so far rescaled when a block brings a greater one. With `more` the bits of the sum are the
/// same.
template <bool capped, bool all = false>
Exponentials sum_exponentials(const float* row, int64_t count, float softcap, MoreSums* more = nullptr) {
  constexpr int64_t kBlock = 2048;
  const V limit = splat(softcap), inverse = splat(capped ? 1 / softcap : 0);
  float row_max = -std::numeric_limits<float>::infinity(), sum = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const float* block = row + begin;
    const int64_t size = std::min(kBlock, count - begin);
    V maxima[2] = {splat(block[0]), splat(block[0])};
    int64_t i = 0;
    for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
      maxima[0] = hn::Max(maxima[0], load(block + i));
      maxima[1] = hn::Max(maxima[1], load(block + i + kLanes));
    }
    float block_max = hn::GetLane(hn::MaxOfLanes(kF, hn::Max(maxima[0], maxima[1])));
    for (; i < size; ++i) block_max = std::max(block_max, block[i]);
    const float new_max = std::max(row_max, hn::GetLane(cap<capped>(splat(block_max), limit, inverse)));
    const float rescale = std::exp(row_max - new_max);
    if (all && sum > 0) {
      more->shifted = rescale * (more->shifted + (row_max - new_max) * sum);
      more->squares *= rescale * rescale;
    }
    sum *= rescale;
    row_max = new_max;
    const V shift = splat(row_max);
    V shifted = hn::Zero(kF), squares = shifted, logits = shifted;
    const auto exponential = [&](V raw) HWY_ATTR {
      const V x = cap<capped>(raw, limit, inverse), below = hn::Sub(x, shift), e = exp(below);
      if constexpr (all) {
        shifted = hn::MulAdd(e, below, shifted);
        squares = hn::MulAdd(e, e, squares);
        logits = hn::Add(logits, x);
      }
      return e;
    };
    const int64_t whole = size / kLanes * kLanes;
    sum += sum_lanes(whole, [&](int64_t j, auto lanes) HWY_ATTR { return exponential(load(block + j, lanes)); });
    if constexpr (all) {
      more->shifted += hn::GetLane(hn::SumOfLanes(kF, shifted));
      more->squares += hn::GetLane(hn::SumOfLanes(kF, squares));
      more->logits += hn::GetLane(hn::SumOfLanes(kF, logits));
    }
    for (int64_t j = whole; j < size; ++j) {
      if constexpr (all) shifted = squares = logits = hn::Zero(kF);
      sum += hn::GetLane(exponential(splat(block[j])));
      if constexpr (all) {
        more->shifted += hn::GetLane(shifted);
        more->squares += hn::GetLane(squares);
        more->logits += hn::GetLane(logits);
      }
    }
  }
  return {row_max, sum};
}

template <bool capped, typename Out>
void gradients(const float* row, int64_t count, float softcap, Exponentials total, float scale, Out* out) {
  const V limit = splat(softcap), inverse = splat(capped ? 1 / softcap : 0), shift = splat(total.row_max),
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
  const float gradient = (std::exp(target - total.row_max) / total.sum - 1) * scale;
  return capped ? gradient * (1 - target / softcap * (target / softcap)) : gradient;
}

template <bool capped, typename Out>
void rows(const float* logits, const int32_t* targets, int64_t count, int64_t vocabulary, float softcap, float scale,
          const float* weights, float* losses, Out* dlogits) {
  for (int64_t n = 0; n < count; ++n) {
    const float* row = logits + n * vocabulary;
    const Exponentials total = sum_exponentials<capped>(row, vocabulary, softcap);
    const float target = capped_logit<capped>(row[targets[n]], softcap);
    losses[n] = std::log(total.sum) + (total.row_max - target);
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

// Whether none is greater than `target`, and none before it as great.
bool is_first_of_largest(const float* row, int64_t count, int32_t target) {
  const float own = row[target];
  float before = -std::numeric_limits<float>::infinity(), behind = before;
  for (int32_t i = 0; i < target; ++i) before = std::max(before, row[i]);
  if (before >= own) return false;
  for (int64_t i = target + 1; i < count; ++i) behind = std::max(behind, row[i]);
  return behind <= own;
}

template <bool capped, bool all>
void row_statistics(const Tensor& logits, const Tensor& targets, float softcap, Tensor& statistics) {
  const int64_t rows = logits.dim(0), vocabulary = logits.dim(1);
  const float* from = logits.data<const float>();
  const int32_t* target = targets.data<const int32_t>();
  float* statistic = statistics.data<float>();
  parallel_each(rows, 1, [=](int64_t n) {
    const float* row = from + n * vocabulary;
    MoreSums more;
    const Exponentials total = sum_exponentials<capped, all>(row, vocabulary, softcap, &more);
    statistic[n] = total.row_max;
    statistic[rows + n] = total.sum;
    statistic[2 * rows + n] = target[n] < 0 ? 0 : capped_logit<capped>(row[target[n]], softcap);
    if constexpr (!all) return;
    statistic[3 * rows + n] = more.shifted;
    statistic[4 * rows + n] = more.squares;
    statistic[5 * rows + n] = more.logits;
    statistic[6 * rows + n] = target[n] < 0 ? -1 : is_first_of_largest(row, vocabulary, target[n]) ? 1 : 0;
  });
}

void cross_entropy_statistics(const Tensor& logits, const Tensor& targets, float softcap, Tensor& statistics) {
  const bool all = statistics.dim(0) > 3;
  if (softcap > 0) {
    return all ? row_statistics<true, true>(logits, targets, softcap, statistics)
               : row_statistics<true, false>(logits, targets, softcap, statistics);
  }
  all ? row_statistics<false, true>(logits, targets, softcap, statistics)
      : row_statistics<false, false>(logits, targets, softcap, statistics);
}

template <bool capped, typename Out>
void backward_rows(const Tensor& logits, const Tensor& targets, const Tensor& row_max, const Tensor& row_sumexp,
                   float softcap, float scale, Out* dlogits, const Tensor& weights) {
  const int64_t vocabulary = logits.dim(1);
  const float *from = logits.data<const float>(), *maxima = row_max.data<const float>();
  const float* sum = row_sumexp.data<const float>();
  const int32_t* target = targets.data<const int32_t>();
  const float* weight = weights ? weights.data<const float>() : nullptr;
  parallel_each(logits.dim(0), 1, [=](int64_t n) {
    const float* row = from + n * vocabulary;
    Out* out = dlogits + n * vocabulary;
    const float of_row = weight ? scale * weight[n] : scale;
    const float own = target[n] < 0 ? 0 : capped_logit<capped>(row[target[n]], softcap);
    gradients<capped>(row, vocabulary, softcap, {maxima[n], sum[n]}, of_row, out);
    if (target[n] >= 0) out[target[n]] = Out(target_gradient<capped>(own, softcap, {maxima[n], sum[n]}, of_row));
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

/// A row of two models' logits divided by the temperature, up to whole vectors, and what makes them log-probabilities.
class RowPair {
 public:
  RowPair(int64_t vocabulary, float softcap, float temperature)
      : softcap_(softcap), inverse_(1 / temperature), student_(padded(vocabulary)), teacher_(padded(vocabulary)) {}

  template <bool capped>
  void read(const float* logits, const float* teacher, int64_t count) {
    const V limit = splat(softcap_), inverse = splat(capped ? 1 / softcap_ : 0), factor = splat(inverse_);
    for_lanes(count, [&](int64_t i, auto lanes) HWY_ATTR {
      store(hn::Mul(cap<capped>(load(logits + i, lanes), limit, inverse), factor), student_.data() + i, lanes);
      store(hn::Mul(load(teacher + i, lanes), factor), teacher_.data() + i, lanes);
    });
    of_student_ = sum_exponentials<false>(student_.data(), count, 0);
    of_teacher_ = sum_exponentials<false>(teacher_.data(), count, 0);
  }

  V log_p(int64_t i) const { return log_probability(student_.data() + i, of_student_); }
  V log_q(int64_t i) const { return log_probability(teacher_.data() + i, of_teacher_); }
  int64_t size() const { return std::ssize(student_); }
  const float* student() const { return student_.data(); }

 private:
  static size_t padded(int64_t count) { return static_cast<size_t>((count + kLanes - 1) / kLanes * kLanes); }
  static V log_probability(const float* at, Exponentials total) {
    return hn::Sub(hn::Sub(load(at), splat(total.row_max)), splat(std::log(total.sum)));
  }
  // What is behind the last logit has no probability.
  struct Padding : std::vector<float> {
    explicit Padding(size_t count) : std::vector<float>(count, -1e30f) {}
  };

  float softcap_, inverse_;
  Padding student_, teacher_;
  Exponentials of_student_{}, of_teacher_{};
};

// The logarithm of m = (1 - beta) p + beta q; what both leave out counts for nothing in any sum.
HWY_INLINE V log_mixture(V p, V q, float beta) {
  const V m = hn::MulAdd(splat(1 - beta), p, hn::Mul(splat(beta), q));
  return hn::Log(kF, hn::Max(m, splat(1e-37f)));
}

struct Divergences {
  double of_teacher = 0, of_student = 0;  ///< KL(q || m), KL(p || m); m is p for beta 0, q for beta 1
  double entropy = 0;                     ///< of p
};

Divergences divergences(const RowPair& row, float beta) {
  constexpr int64_t kBlock = 4096;
  Divergences sums;
  for (int64_t begin = 0; begin < row.size(); begin += kBlock) {
    V of_teacher = hn::Zero(kF), of_student = of_teacher, entropy = of_teacher;
    for (int64_t i = begin; i < std::min(begin + kBlock, row.size()); i += kLanes) {
      const V log_p = row.log_p(i), log_q = row.log_q(i), p = exp(log_p), q = exp(log_q);
      const V log_m = beta == 0 ? log_p : beta == 1 ? log_q : log_mixture(p, q, beta);
      of_teacher = hn::MulAdd(q, hn::Sub(log_q, log_m), of_teacher);
      of_student = hn::MulAdd(p, hn::Sub(log_p, log_m), of_student);
      entropy = hn::NegMulAdd(p, log_p, entropy);
    }
    sums.of_teacher += static_cast<double>(hn::GetLane(hn::SumOfLanes(kF, of_teacher)));
    sums.of_student += static_cast<double>(hn::GetLane(hn::SumOfLanes(kF, of_student)));
    sums.entropy += static_cast<double>(hn::GetLane(hn::SumOfLanes(kF, entropy)));
  }
  return sums;
}

template <bool capped>
void divergence_gradient(const RowPair& row, int64_t count, float softcap, float temperature, float beta, float scale,
                         float of_student, float* out) {
  const V factor = splat((beta == 0 || beta == 1 ? 1 : 1 - beta) * scale / temperature), shift = splat(of_student);
  const V share_of_cap = splat(capped ? temperature / softcap : 0);
  for_lanes(count, [&](int64_t i, auto lanes) HWY_ATTR {
    const V log_p = row.log_p(i), log_q = row.log_q(i), p = exp(log_p), q = exp(log_q);
    V gradient = hn::Sub(p, q);
    if (beta != 0) {
      const V log_m = beta == 1 ? log_q : log_mixture(p, q, beta);
      gradient = hn::Mul(p, hn::Sub(hn::Sub(log_p, log_m), shift));
    }
    if constexpr (capped) {
      const V share = hn::Mul(load(row.student() + i), share_of_cap);
      gradient = hn::Mul(gradient, hn::NegMulAdd(share, share, splat(1)));
    }
    store(hn::Mul(gradient, factor), out + i, lanes);
  });
}

template <bool capped>
void divergence_rows(const Tensor& logits, const Tensor& teacher, float softcap, float temperature, float beta,
                     float scale, Tensor& losses, Tensor& entropies, Tensor& dlogits) {
  const int64_t vocabulary = logits.dim(1);
  const float *from = logits.data<const float>(), *other = teacher.data<const float>();
  float *loss = losses.data<float>(), *entropy = entropies.data<float>();
  float* out = dlogits ? dlogits.data<float>() : nullptr;
  parallel_for(logits.dim(0), 1, [=](int64_t begin, int64_t end) {
    RowPair row(vocabulary, softcap, temperature);
    for (int64_t n = begin; n < end; ++n) {
      row.read<capped>(from + n * vocabulary, other + n * vocabulary, vocabulary);
      const Divergences kl = divergences(row, beta);
      const double b = static_cast<double>(beta);
      entropy[n] = static_cast<float>(kl.entropy);
      loss[n] = static_cast<float>(beta == 0   ? kl.of_teacher
                                   : beta == 1 ? kl.of_student
                                               : b * kl.of_teacher + (1 - b) * kl.of_student);
      if (out == nullptr) continue;
      divergence_gradient<capped>(row, vocabulary, softcap, temperature, beta, scale, static_cast<float>(kl.of_student),
                                  out + n * vocabulary);
    }
  });
}

void divergence(const Tensor& logits, const Tensor& teacher, float softcap, float temperature, float beta, float scale,
                Tensor& losses, Tensor& entropies, Tensor& dlogits) {
  if (softcap > 0) {
    return divergence_rows<true>(logits, teacher, softcap, temperature, beta, scale, losses, entropies, dlogits);
  }
  divergence_rows<false>(logits, teacher, softcap, temperature, beta, scale, losses, entropies, dlogits);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(cross_entropy);
NIBBLE_SIMD_KERNEL(cross_entropy_statistics);
NIBBLE_SIMD_KERNEL(cross_entropy_backward);
NIBBLE_SIMD_KERNEL(divergence);

void cross_entropy_merge(const Tensor& statistics, Tensor& row_max, Tensor& row_sumexp, Tensor& losses,
                         Tensor& token_statistics) {
  const int64_t count = losses.numel(), width = token_statistics ? 7 : 3, ranks = statistics.dim(0) / width;
  const float* from = statistics.data<const float>();
  float *maxima = row_max.data<float>(), *sums = row_sumexp.data<float>(), *loss = losses.data<float>();
  for (int64_t n = 0; n < count; ++n) {
    const auto at = [&](int64_t rank, int64_t which) { return from[(rank * width + which) * count + n]; };
    float highest = at(0, 0), exponentials = 0, target = 0;
    for (int64_t r = 1; r < ranks; ++r) highest = std::max(highest, at(r, 0));
    for (int64_t r = 0; r < ranks; ++r) {
      exponentials += at(r, 1) * std::exp(at(r, 0) - highest);
      target += at(r, 2);
    }
    maxima[n] = highest;
    sums[n] = exponentials;
    loss[n] = std::log(exponentials) + (highest - target);
    if (!token_statistics) continue;
    float shifted = 0, squares = 0, logits = 0, top1 = 0, highest_before = -std::numeric_limits<float>::infinity();
    for (int64_t r = 0; r < ranks; ++r) {
      const float off = at(r, 0) - highest, rescale = std::exp(off);
      shifted += rescale * (at(r, 3) + off * at(r, 1));
      squares += rescale * rescale * at(r, 4);
      logits += at(r, 5);
      if (at(r, 6) > 0 && at(r, 0) == highest && highest_before < highest) top1 = 1;
      highest_before = std::max(highest_before, at(r, 0));
    }
    const auto set = [&](TokenStatistic which, float value) {
      token_statistics.data<float>()[static_cast<int64_t>(which) * count + n] = value;
    };
    set(TokenStatistic::collision, std::log(squares) - 2 * std::log(exponentials));
    set(TokenStatistic::entropy, std::log(exponentials) - shifted / exponentials);
    set(TokenStatistic::mean_logit, logits);
    set(TokenStatistic::top1, top1);
  }
}

}  // namespace nibble::ops::cpu
#endif
