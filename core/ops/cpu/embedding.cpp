#include "nibble/core/ops/embedding.h"

#include <cstring>
#include <string>

#include "nibble/core/base/parallel.h"

namespace nibble::ops {

namespace {

constexpr int64_t kRowGrain = 32;

void check_rows(const Tensor& rows, int64_t count, int64_t limit, const char* op) {
  NIBBLE_CHECK(rows.numel() == count, std::string(op) + ": number of rows");
  const int32_t* row = rows.data<const int32_t>();
  for (int64_t n = 0; n < count; ++n) {
    NIBBLE_CHECK(row[n] >= 0 && row[n] < limit, std::string(op) + ": row " + std::to_string(row[n]));
  }
}

template <typename Element>
void look_up(const int32_t* ids, const Element* table, int64_t tokens, int64_t width, float scale, float* out) {
  parallel_for(tokens, kRowGrain, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Element* row = table + static_cast<int64_t>(ids[t]) * width;
      for (int64_t d = 0; d < width; ++d) out[t * width + d] = scale * static_cast<float>(row[d]);
    }
  });
}

template <typename From, typename To>
void gather(const From* x, const int32_t* rows, int64_t count, int64_t width, To* out) {
  parallel_for(count, kRowGrain, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const From* from = x + static_cast<int64_t>(rows[n]) * width;
      To* to = out + n * width;
      if constexpr (std::is_same_v<From, To>) {
        std::memcpy(to, from, static_cast<size_t>(width) * sizeof(To));
      } else {
        for (int64_t d = 0; d < width; ++d) to[d] = static_cast<To>(static_cast<float>(from[d]));
      }
    }
  });
}

template <typename Element>
void scatter_add(const Element* y, const int32_t* rows, int64_t count, int64_t width, float* x) {
  parallel_for(count, kRowGrain, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* to = x + static_cast<int64_t>(rows[n]) * width;
      for (int64_t d = 0; d < width; ++d) to[d] += static_cast<float>(y[n * width + d]);
    }
  });
}

}  // namespace

void embedding_forward(const Tensor& ids, const Tensor& table, float scale, Tensor& out) {
  const int64_t tokens = ids.numel(), width = table.dim(1);
  NIBBLE_CHECK(out.numel() == tokens * width, "embedding: shape of out");
  const int32_t* id = ids.data<const int32_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    if (id[t] < 0 || id[t] >= table.dim(0)) {
      throw InputError("token " + std::to_string(t),
                       "id " + std::to_string(id[t]) + " is outside the vocabulary of " + std::to_string(table.dim(0)));
    }
  }
  float* to = out.data<float>();
  if (table.dtype() == DType::f32) return look_up(id, table.data<const float>(), tokens, width, scale, to);
  if (table.dtype() == DType::f16) return look_up(id, table.data<const f16>(), tokens, width, scale, to);
  look_up(id, table.data<const bf16>(), tokens, width, scale, to);
}

void embedding_backward(const Tensor& ids, const Tensor& dout, float scale, Tensor& dtable) {
  const int64_t tokens = ids.numel(), width = dtable.dim(1);
  NIBBLE_CHECK(dout.numel() == tokens * width, "embedding: shape of dout");
  check_rows(ids, tokens, dtable.dim(0), "embedding");
  const int32_t* id = ids.data<const int32_t>();
  const float* from = dout.data<const float>();
  float* to = dtable.data<float>();
  // An id may come many times, so threads share columns, not tokens: every sum runs in the order of t.
  parallel_for(width, 256, [=](int64_t begin, int64_t end) {
    for (int64_t t = 0; t < tokens; ++t) {
      float* row = to + static_cast<int64_t>(id[t]) * width;
      for (int64_t d = begin; d < end; ++d) row[d] += scale * from[t * width + d];
    }
  });
}

void gather_rows(const Tensor& x, const Tensor& rows, Tensor& out) {
  const int64_t count = rows.numel(), width = x.dim(1);
  NIBBLE_CHECK(out.numel() == count * width, "gather_rows: shape of out");
  check_rows(rows, count, x.dim(0), "gather_rows");
  const int32_t* row = rows.data<const int32_t>();
  if (x.dtype() == DType::bf16) return gather(x.data<const bf16>(), row, count, width, out.data<bf16>());
  if (out.dtype() == DType::bf16) return gather(x.data<const float>(), row, count, width, out.data<bf16>());
  gather(x.data<const float>(), row, count, width, out.data<float>());
}

void scatter_add_rows(const Tensor& y, const Tensor& rows, Tensor& x) {
  const int64_t count = rows.numel(), width = x.dim(1);
  NIBBLE_CHECK(y.numel() == count * width, "scatter_add_rows: shape of y");
  check_rows(rows, count, x.dim(0), "scatter_add_rows");
  const int32_t* row = rows.data<const int32_t>();
  if (y.dtype() == DType::bf16) return scatter_add(y.data<const bf16>(), row, count, width, x.data<float>());
  scatter_add(y.data<const float>(), row, count, width, x.data<float>());
}

}  // namespace nibble::ops
