#include "nibble/core/ops/recurrent/causal_conv.h"

#include <algorithm>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/element_type.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/recurrent/causal_conv.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kRows = 64, kColumns = 64;

// w [C, taps] as [taps, C].
std::vector<float> filters_by_tap(const Tensor& w) {
  const int64_t width = w.dim(0), taps = w.numel() / width;
  const float* from = w.data<const float>();
  std::vector<float> result(static_cast<size_t>(width * taps));
  for (int64_t c = 0; c < width; ++c) {
    for (int64_t k = 0; k < taps; ++k) result[static_cast<size_t>(k * width + c)] = from[c * taps + k];
  }
  return result;
}

// to [width] += filter * from
template <typename From>
void add_product(const float* filter, const From* from, int64_t width, float* to) {
  for_lanes(width, [=](int64_t i, auto lanes) HWY_ATTR {
    store(hn::MulAdd(load(filter + i, lanes), load(from + i, lanes), load(to + i, lanes)), to + i, lanes);
  });
}

// Row t of the document `span` of y; old [taps - 1, C], or null for zeros, stands before the document.
template <typename In, typename Out>
void conv_row(const In* x, const float* filters, const float* b, const float* old, int64_t begin, int64_t t,
              int64_t width, int64_t taps, float* sums, Out* y) {
  for_lanes(width, [=](int64_t i, auto lanes)
                       HWY_ATTR { store(b == nullptr ? hn::Zero(kF) : load(b + i, lanes), sums + i, lanes); });
  for (int64_t k = 0; k < taps; ++k) {
    const int64_t from = t - taps + 1 + k;
    if (from >= begin) {
      add_product(filters + k * width, x + from * width, width, sums);
    } else if (old != nullptr) {
      add_product(filters + k * width, old + (from - begin + taps - 1) * width, width, sums);
    }
  }
  for_lanes(width, [=](int64_t i, auto lanes) HWY_ATTR { store(load(sums + i, lanes), y + t * width + i, lanes); });
}

// body(document, first row, last row) for what of every document lies in rows [begin, end).
template <typename Body>
void for_documents(std::span<const AttentionSpan> spans, int64_t begin, int64_t end, const Body& body) {
  const auto after = [](int64_t row, const AttentionSpan& span) { return row < span.q_end; };
  auto span = std::upper_bound(spans.begin(), spans.end(), begin, after);
  for (; span != spans.end() && span->q_begin < end; ++span) {
    body(span - spans.begin(), std::max(begin, span->q_begin), std::min(end, span->q_end));
  }
}

// The last taps - 1 rows of `state` followed by the document's own.
template <typename In>
void keep_last_rows(const In* x, const AttentionSpan& span, int64_t width, int64_t taps, float* state) {
  const int64_t tokens = span.q_end - span.q_begin;
  for (int64_t j = 0; j < taps - 1; ++j) {
    float* to = state + j * width;
    const int64_t from = j + tokens;  // in state and document together
    if (from < taps - 1) {
      std::copy_n(state + from * width, width, to);
      continue;
    }
    const In* row = x + (span.q_begin + from - (taps - 1)) * width;
    for_lanes(width, [=](int64_t i, auto lanes) HWY_ATTR { store(load(row + i, lanes), to + i, lanes); });
  }
}

template <typename In, typename Out>
void conv_forward(const Tensor& x, const Tensor& w, const Tensor& b, std::span<const AttentionSpan> spans,
                  RecurrentState* state, Tensor& y) {
  const int64_t width = x.dim(1), taps = w.numel() / width;
  const std::vector<float> filters = filters_by_tap(w);
  const float* bias = b ? b.data<const float>() : nullptr;
  float* states = state ? state->values.data<float>() : nullptr;
  const In* from = x.data<const In>();
  Out* to = y.data<Out>();
  const auto state_of = [&](int64_t document) {
    return states ? states + state->rows[static_cast<size_t>(document)] * (taps - 1) * width : nullptr;
  };
  parallel_for(x.dim(0), kRows, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(static_cast<size_t>(width));
    for_documents(spans, begin, end, [&](int64_t document, int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t) {
        conv_row(from, filters.data(), bias, state_of(document), spans[static_cast<size_t>(document)].q_begin, t, width,
                 taps, sums.data(), to);
      }
    });
  });
  if (!states) return;
  for (size_t i = 0; i < spans.size(); ++i) {
    keep_last_rows(from, spans[i], width, taps, state_of(static_cast<int64_t>(i)));
  }
}

template <typename Gradient, typename In>
void conv_backward(const Tensor& dy, const Tensor& x, const Tensor& w, std::span<const AttentionSpan> spans, Tensor& dx,
                   Tensor& dw, Tensor& db) {
  const int64_t width = x.dim(1), taps = w.numel() / width;
  const std::vector<float> filters = filters_by_tap(w);
  const Gradient* grads = dy.data<const Gradient>();
  const In* from = x.data<const In>();
  In* to = dx.data<In>();
  parallel_for(x.dim(0), kRows, [&](int64_t begin, int64_t end) {
    std::vector<float> sums(static_cast<size_t>(width));
    for_documents(spans, begin, end, [&](int64_t document, int64_t first, int64_t last) {
      const int64_t document_end = spans[static_cast<size_t>(document)].q_end;
      for (int64_t t = first; t < last; ++t) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t k = taps - 1; k >= 0 && t + taps - 1 - k < document_end; --k) {
          add_product(filters.data() + k * width, grads + (t + taps - 1 - k) * width, width, sums.data());
        }
        const float* sum = sums.data();
        for_lanes(width,
                  [=](int64_t i, auto lanes) HWY_ATTR { store(load(sum + i, lanes), to + t * width + i, lanes); });
      }
    });
  });
  if (!dw && !db) return;
  // Every column's sums go over all rows in order.
  parallel_for(width, kColumns, [&](int64_t begin, int64_t end) {
    const int64_t columns = end - begin;
    std::vector<float> sums(static_cast<size_t>((taps + 1) * columns), 0.0f);
    for (const AttentionSpan& span : spans) {
      for (int64_t t = span.q_begin; t < span.q_end; ++t) {
        const Gradient* grad = grads + t * width + begin;
        for (int64_t k = 0; k <= taps; ++k) {
          const int64_t row = t - taps + 1 + k;
          if (k < taps && row < span.q_begin) continue;
          float* sum = sums.data() + k * columns;
          const In* input = k < taps ? from + row * width + begin : nullptr;  // the bias sees ones
          for_lanes(columns, [=](int64_t i, auto lanes) HWY_ATTR {
            const V value = input == nullptr ? splat(1) : load(input + i, lanes);
            store(hn::MulAdd(load(grad + i, lanes), value, load(sum + i, lanes)), sum + i, lanes);
          });
        }
      }
    }
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t k = 0; dw && k < taps; ++k) {
        dw.data<float>()[(begin + c) * taps + k] += sums[static_cast<size_t>(k * columns + c)];
      }
      if (db) db.data<float>()[begin + c] += sums[static_cast<size_t>(taps * columns + c)];
    }
  });
}

void causal_conv_forward(const Tensor& x, const Tensor& w, const Tensor& b, std::span<const AttentionSpan> spans,
                         RecurrentState* state, Tensor& y) {
  cpu::with_element(x, [&]<typename In>(In) {
    cpu::with_element(y, [&]<typename Out>(Out) { conv_forward<In, Out>(x, w, b, spans, state, y); });
  });
}

void causal_conv_backward(const Tensor& dy, const Tensor& x, const Tensor& w, std::span<const AttentionSpan> spans,
                          Tensor& dx, Tensor& dw, Tensor& db) {
  cpu::with_element(dy, [&]<typename Gradient>(Gradient) {
    cpu::with_element(x, [&]<typename In>(In) { conv_backward<Gradient, In>(dy, x, w, spans, dx, dw, db); });
  });
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(causal_conv_forward);
NIBBLE_SIMD_KERNEL(causal_conv_backward);

}  // namespace nibble::ops::cpu
#endif
