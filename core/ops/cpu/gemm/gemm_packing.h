#pragma once
// Packing and storing in plain C++, for the kernels that have no better: see GemmKernel for the layouts.

#include <algorithm>
#include <cstring>

#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"

namespace nibble::ops::cpu {

template <typename T, int64_t kLanes, int64_t kWidth, int64_t kStep>
void pack_transposed(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip) {
  T zero{};
  std::memset(&zero, 0, sizeof zero);
  const auto* source = reinterpret_cast<const T*>(from);
  auto* out = reinterpret_cast<T*>(strip);
  for (int64_t k = 0; k < depth; k += kStep) {
    T* group = out + k * kWidth;
    for (int64_t n = 0; n < kLanes; ++n) {
      for (int64_t i = 0; i < kStep; ++i) {
        group[n * kStep + i] = n < columns && k + i < depth ? source[n * stride + k + i] : zero;
      }
    }
  }
}

template <typename T, int64_t kWidth, int64_t kStep>
void pack_rows(const std::byte* from, int64_t stride, int64_t columns, int64_t depth, std::byte* strip) {
  T zero{};
  std::memset(&zero, 0, sizeof zero);
  const auto* source = reinterpret_cast<const T*>(from);
  auto* out = reinterpret_cast<T*>(strip);
  for (int64_t k = 0; k < depth; k += kStep) {
    T* group = out + k * kWidth;
    for (int64_t i = 0; i < kStep; ++i) {
      for (int64_t n = 0; n < kWidth; ++n) {
        group[n * kStep + i] = n < columns && k + i < depth ? source[(k + i) * stride + n] : zero;
      }
    }
  }
}

template <typename T>
void store_as(const float* sums, int64_t rows, int64_t columns, const TileOutput& output) {
  for (int64_t m = 0; m < rows; ++m) {
    const float* from = sums + m * output.sums_stride;
    T* to = reinterpret_cast<T*>(output.c) + m * output.c_stride;
    if (output.accumulate) {
      for (int64_t n = 0; n < columns; ++n) to[n] = T(static_cast<float>(to[n]) + output.alpha * from[n]);
    } else {
      for (int64_t n = 0; n < columns; ++n) to[n] = T(output.alpha * from[n]);
    }
  }
}

inline void store_sums(const float* sums, int64_t rows, int64_t columns, const TileOutput& output) {
  (output.dtype == DType::f32 ? store_as<float> : store_as<bf16>)(sums, rows, columns, output);
}

/// A kernel for operands of T that does all but `multiply` with the functions above.
template <typename T, int64_t kRows, int64_t kLanes, int64_t kWidth, int64_t kStep>
constexpr GemmKernel plain_kernel(int64_t depth_block, int64_t panel_columns, decltype(GemmKernel::multiply) multiply) {
  return {.compute = dtype_of<T>::value,
          .rows = kRows,
          .lanes = kLanes,
          .width = kWidth,
          .depth_step = kStep,
          .depth_block = depth_block,
          .panel_columns = panel_columns,
          .multiply = multiply,
          .pack_transposed = pack_transposed<T, kLanes, kWidth, kStep>,
          .pack_rows = pack_rows<T, kWidth, kStep>,
          .store = store_sums};
}

}  // namespace nibble::ops::cpu
