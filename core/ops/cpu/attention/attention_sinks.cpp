#include <algorithm>
#include <cmath>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/backend.h"

namespace nibble::ops::cpu {

namespace {

constexpr int64_t kRowGrain = 64;

template <typename Element>
void add_sinks(const float* sinks, int64_t heads, Tensor& out, float* log_sum_exp) {
  const int64_t queries = out.dim(0), width = out.dim(1) / heads;
  Element* rows = out.data<Element>();
  parallel_for(queries, kRowGrain, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        float& lse = log_sum_exp[h * queries + t];
        const float top = std::max(lse, sinks[h]),
                    with = top + std::log(std::exp(lse - top) + std::exp(sinks[h] - top));
        const float share = std::exp(lse - with);
        Element* head = rows + (t * heads + h) * width;
        for (int64_t i = 0; i < width; ++i) head[i] = Element(static_cast<float>(head[i]) * share);
        lse = with;
      }
    }
  });
}

// Each head's sum runs in the order of the rows.
template <typename Element>
void sink_gradients(const Tensor& dout, const Tensor& out, const float* sinks, int64_t heads, const float* log_sum_exp,
                    float* dsinks) {
  const int64_t queries = out.dim(0), width = out.dim(1) / heads;
  const Element *gradients = dout.data<const Element>(), *rows = out.data<const Element>();
  parallel_for(heads, 1, [=](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      double sum = 0;
      for (int64_t t = 0; t < queries; ++t) {
        const int64_t at = (t * heads + h) * width;
        float mean = 0;
        for (int64_t i = at; i < at + width; ++i)
          mean += static_cast<float>(gradients[i]) * static_cast<float>(rows[i]);
        sum += static_cast<double>(std::exp(sinks[h] - log_sum_exp[h * queries + t]) * mean);
      }
      dsinks[h] -= static_cast<float>(sum);
    }
  });
}

}  // namespace

void attention_sinks_forward(const Tensor& sinks, Tensor& out, Tensor& log_sum_exp) {
  const auto add = out.dtype() == DType::bf16 ? add_sinks<bf16> : add_sinks<float>;
  add(sinks.data<const float>(), sinks.numel(), out, log_sum_exp.data<float>());
}

void attention_sinks_backward(const Tensor& dout, const Tensor& out, const Tensor& sinks, const Tensor& log_sum_exp,
                              Tensor& dsinks) {
  const auto add = out.dtype() == DType::bf16 ? sink_gradients<bf16> : sink_gradients<float>;
  add(dout, out, sinks.data<const float>(), sinks.numel(), log_sum_exp.data<const float>(), dsinks.data<float>());
}

}  // namespace nibble::ops::cpu
