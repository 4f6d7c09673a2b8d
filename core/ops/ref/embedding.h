#pragma once
// Plain reference of ops/embedding.h.

#include <cstdint>

namespace nibble::ops::ref {

template <typename Real>
void embedding_forward(const int32_t* ids, const Real* table, int64_t tokens, int64_t width, Real scale, Real* out) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t d = 0; d < width; ++d) out[t * width + d] = scale * table[ids[t] * width + d];
  }
}

template <typename Real>
void embedding_backward(const int32_t* ids, const Real* dout, int64_t tokens, int64_t width, Real scale, Real* dtable) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t d = 0; ids[t] >= 0 && d < width; ++d) dtable[ids[t] * width + d] += scale * dout[t * width + d];
  }
}

template <typename Real>
void gather_rows(const Real* x, const int32_t* rows, int64_t count, int64_t width, Real* out) {
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t d = 0; d < width; ++d) out[n * width + d] = x[rows[n] * width + d];
  }
}

template <typename Real>
void scatter_add_rows(const Real* y, const int32_t* rows, int64_t count, int64_t width, Real* x) {
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t d = 0; d < width; ++d) x[rows[n] * width + d] += y[n * width + d];
  }
}

}  // namespace nibble::ops::ref
