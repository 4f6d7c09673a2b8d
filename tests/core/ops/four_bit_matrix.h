#pragma once
// 4-bit matrices for tests: random ones, and what they are expanded.

#include <gtest/gtest.h>

#include <cstring>

#include "nibble/core/ops/ref/weight_view.h"
#include "nibble/tests/random_stream.h"

namespace nibble::test {

inline constexpr std::array<float, 16> kNf4 = {-1.0f,
                                               -0.6961928009986877f,
                                               -0.5250730514526367f,
                                               -0.39491748809814453f,
                                               -0.28444138169288635f,
                                               -0.18477343022823334f,
                                               -0.09105003625154495f,
                                               0.0f,
                                               0.07958029955625534f,
                                               0.16093020141124725f,
                                               0.24611230194568634f,
                                               0.33791524171829224f,
                                               0.44070982933044434f,
                                               0.5626170039176941f,
                                               0.7229568362236023f,
                                               1.0f};

/// `bytes` at an address that is one past a multiple of 16, as a checkpoint may have them.
inline Tensor unaligned(MemoryPool& pool, const void* bytes, Shape shape, DType dtype) {
  const size_t size = static_cast<size_t>(element_count(shape)) * dtype_size(dtype);
  auto storage = Storage::owned(pool, size + 1, "unaligned");
  std::memcpy(storage->data() + 1, bytes, size);
  return Tensor::view(storage, 1, std::move(shape), dtype);
}

/// A matrix with random codes and scales, all tensors unaligned.
inline ops::FourBitMatrix random_matrix(MemoryPool& pool, int64_t out, int64_t in, int64_t block_size,
                                        bool double_quantized) {
  test::RandomStream stream(3, 2, static_cast<uint64_t>(out * in));
  ops::FourBitMatrix m;
  m.table = kNf4;
  m.shape = {out, in};
  m.block_size = block_size;
  std::vector<uint8_t> packed(static_cast<size_t>((out * in + 1) / 2)), codes(static_cast<size_t>(m.blocks()));
  for (uint8_t& byte : packed) byte = static_cast<uint8_t>(stream.next_u32());
  for (uint8_t& code : codes) code = static_cast<uint8_t>(stream.next_u32());
  std::vector<float> absmax(codes.size()), nested((codes.size() + 255) / 256), map(256);
  for (float& value : absmax) value = stream.next_uniform() * 0.1f;
  for (float& value : nested) value = stream.next_uniform() * 0.02f;
  for (float& value : map) value = stream.next_uniform() * 2 - 1;
  m.packed = unaligned(pool, packed.data(), {static_cast<int64_t>(packed.size()), 1}, DType::u8);
  const auto blocks = static_cast<int64_t>(codes.size());
  if (double_quantized) {
    m.absmax_codes = unaligned(pool, codes.data(), {blocks}, DType::u8);
    m.nested_absmax = unaligned(pool, nested.data(), {static_cast<int64_t>(nested.size())}, DType::f32);
    m.nested_map = unaligned(pool, map.data(), {256}, DType::f32);
    m.nested_offset = 0.05f;
  } else {
    m.absmax = unaligned(pool, absmax.data(), {blocks}, DType::f32);
  }
  return m;
}

/// The same as MXFP4 has it: powers of two around `exponent` - 127 as scales of 32, the low nibble first.
inline ops::FourBitMatrix random_mxfp4(MemoryPool& pool, int64_t out, int64_t in, uint8_t exponent = 122) {
  ops::FourBitMatrix m = random_matrix(pool, out, in, 32, false);
  m.table = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  m.low_first = true;
  std::vector<uint8_t> exponents;
  test::RandomStream stream(3, 3, 1);
  for (int64_t b = 0; b < m.blocks(); ++b) exponents.push_back(static_cast<uint8_t>(exponent + stream.next_u32() % 4));
  m.exponents = unaligned(pool, exponents.data(), {m.blocks(), 1}, DType::u8);
  m.absmax = {};
  return m;
}

/// W in f32, or rounded once to bf16.
inline Tensor expanded(MemoryPool& pool, const ops::FourBitMatrix& m, DType dtype) {
  Tensor result = Tensor::empty(pool, m.shape, dtype);
  for (int64_t i = 0; i < result.numel(); ++i) {
    if (dtype == DType::f32) {
      result.data<float>()[i] = ops::ref::element(m, i / m.in_features(), i % m.in_features());
    } else {
      result.data<bf16>()[i] = bf16(ops::ref::element(m, i / m.in_features(), i % m.in_features()));
    }
  }
  return result;
}

inline Tensor random(MemoryPool& pool, Shape shape, DType dtype, uint64_t seed = 5) {
  test::RandomStream stream(seed, 2, 1);
  Tensor result = Tensor::empty(pool, std::move(shape), dtype);
  if (dtype == DType::f32) {
    for (float& element : result.span<float>()) element = stream.next_uniform() * 2 - 1;
  } else {
    for (bf16& element : result.span<bf16>()) element = bf16(stream.next_uniform() * 2 - 1);
  }
  return result;
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

}  // namespace nibble::test
