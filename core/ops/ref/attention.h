#pragma once
// Plain reference of ops/attention.h: one query at a time, all its scores in one row.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "nibble/core/ops/attention.h"

namespace nibble::ops::ref {

/// What one query of one head sees: keys with the numbers [begin, end) of AttentionSpan::numbered and, for each, the
/// score before and after the soft cap.
template <typename Real>
struct AttentionRow {
  int64_t begin = 0, end = 0;
  std::vector<Real> raw, score;
};

template <typename Real>
AttentionRow<Real> attention_row(const Real* q, const Real* k, const AttentionSpan& document, const AttentionParams& p,
                                 int64_t query, int64_t head) {
  const AttentionSpan span = document.numbered();
  AttentionRow<Real> row;
  const int64_t position = span.k_end - span.q_end + query;  // the key this query sits at
  row.end = position + 1;
  row.begin = p.window > 0 ? std::max(span.k_begin, row.end - p.window) : span.k_begin;
  const int64_t kv_head = head / (p.heads / p.kv_heads);
  for (int64_t j = row.begin; j < row.end; ++j) {
    Real dot = 0;
    for (int64_t d = 0; d < p.head_size; ++d) {
      dot +=
          q[(query * p.heads + head) * p.head_size + d] * k[(span.key_row(j) * p.kv_heads + kv_head) * p.head_size + d];
    }
    dot *= static_cast<Real>(p.scale);
    row.raw.push_back(dot);
    if (p.softcap > 0) dot = static_cast<Real>(p.softcap) * std::tanh(dot / static_cast<Real>(p.softcap));
    if (!p.alibi_slopes.empty()) {
      const float slope = p.alibi_slopes[static_cast<size_t>(head)];
      if (p.alibi_rounded_scale == 0) {
        dot += static_cast<Real>(slope) * static_cast<Real>(j - position);
      } else {
        const auto bias = [&](int64_t key) {
          return static_cast<Real>(static_cast<float>(bf16(slope * static_cast<float>(key - span.k_begin))));
        };
        dot += (bias(j) - bias(position)) * static_cast<Real>(p.alibi_rounded_scale);
      }
    }
    row.score.push_back(dot);
  }
  return row;
}

/// out [Tq, H * K] and log_sum_exp [H, Tq] zeroed by the caller.
template <typename Real>
void attention_forward(const Real* q, const Real* k, const Real* v, int64_t queries,
                       std::span<const AttentionSpan> spans, const AttentionParams& p, Real* out, Real* log_sum_exp) {
  for (const AttentionSpan& span : spans) {
    for (int64_t head = 0; head < p.heads; ++head) {
      const int64_t kv_head = head / (p.heads / p.kv_heads);
      for (int64_t i = span.q_begin; i < span.q_end; ++i) {
        const AttentionRow<Real> row = attention_row(q, k, span, p, i, head);
        const Real top = *std::max_element(row.score.begin(), row.score.end());
        Real sum = 0;
        for (Real score : row.score) sum += std::exp(score - top);
        const Real lse = top + std::log(sum);
        log_sum_exp[head * queries + i] = lse;
        for (int64_t j = row.begin; j < row.end; ++j) {
          const Real weight = std::exp(row.score[static_cast<size_t>(j - row.begin)] - lse);
          for (int64_t d = 0; d < p.head_size; ++d) {
            out[(i * p.heads + head) * p.head_size + d] +=
                weight * v[(span.key_row(j) * p.kv_heads + kv_head) * p.head_size + d];
          }
        }
      }
    }
  }
}

/// dq, dk, dv zeroed by the caller.
template <typename Real>
void attention_backward(const Real* dout, const Real* q, const Real* k, const Real* v, const Real* out,
                        const Real* log_sum_exp, int64_t queries, std::span<const AttentionSpan> spans,
                        const AttentionParams& p, Real* dq, Real* dk, Real* dv) {
  const int64_t width = p.head_size;
  for (const AttentionSpan& span : spans) {
    for (int64_t head = 0; head < p.heads; ++head) {
      const int64_t kv_head = head / (p.heads / p.kv_heads);
      for (int64_t i = span.q_begin; i < span.q_end; ++i) {
        const AttentionRow<Real> row = attention_row(q, k, span, p, i, head);
        const int64_t at = (i * p.heads + head) * width;
        Real mean = 0;
        for (int64_t d = 0; d < width; ++d) mean += dout[at + d] * out[at + d];
        for (int64_t j = row.begin; j < row.end; ++j) {
          const size_t column = static_cast<size_t>(j - row.begin);
          const int64_t key = (span.key_row(j) * p.kv_heads + kv_head) * width;
          const Real weight = std::exp(row.score[column] - log_sum_exp[head * queries + i]);
          Real dscore = 0;
          for (int64_t d = 0; d < width; ++d) dscore += dout[at + d] * v[key + d];
          dscore = weight * (dscore - mean) * static_cast<Real>(p.scale);
          if (p.softcap > 0) {
            const Real tanh = std::tanh(row.raw[column] / static_cast<Real>(p.softcap));
            dscore *= 1 - tanh * tanh;
          }
          for (int64_t d = 0; d < width; ++d) {
            dv[key + d] += weight * dout[at + d];
            dk[key + d] += dscore * q[at + d];
            dq[at + d] += dscore * k[key + d];
          }
        }
      }
    }
  }
}

/// out and log_sum_exp of attention_forward, with the sinks.
template <typename Real>
void attention_sinks_forward(const Real* sinks, int64_t queries, int64_t heads, int64_t width, Real* out,
                             Real* log_sum_exp) {
  for (int64_t i = 0; i < queries * heads; ++i) {
    Real& lse = log_sum_exp[i % heads * queries + i / heads];
    const Real with = std::log(std::exp(lse) + std::exp(sinks[i % heads]));
    for (int64_t d = 0; d < width; ++d) out[i * width + d] *= std::exp(lse - with);
    lse = with;
  }
}

template <typename Real>
void attention_sinks_backward(const Real* dout, const Real* out, const Real* sinks, const Real* log_sum_exp,
                              int64_t queries, int64_t heads, int64_t width, Real* dsinks) {
  for (int64_t i = 0; i < queries * heads; ++i) {
    Real mean = 0;
    for (int64_t d = 0; d < width; ++d) mean += dout[i * width + d] * out[i * width + d];
    dsinks[i % heads] -= std::exp(sinks[i % heads] - log_sum_exp[i % heads * queries + i / heads]) * mean;
  }
}

}  // namespace nibble::ops::ref
