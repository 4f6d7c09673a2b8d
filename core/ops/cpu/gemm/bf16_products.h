#pragma once
#include <cstdint>

namespace nibble::ops {

/// The arithmetic of products (ops/gemm.h) and attention of bf16 tensors on CPUs with instructions for them: those, or
/// the ones of f32 on widened elements, which some CPUs do at twice the rate. Products of elements are exact either
/// way, sums are f32.
enum class Bf16Products : uint8_t { bf16, f32 };

/// Of this process from now on; bf16 before the first call. Results keep their bits only where it is the same. Products
/// of at most 4 rows and gradients of low rank, which wait for memory, are bf16 always.
void set_bf16_products(Bf16Products products);
Bf16Products bf16_products();

}  // namespace nibble::ops
