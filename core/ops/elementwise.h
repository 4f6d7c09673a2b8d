#pragma once
// Small operations over whole tensors.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// to = from, between f32, bf16, f16 (round to nearest even); from may be unaligned.
void cast(const Tensor& from, Tensor& to);
/// x += y (scaled): x f32; y f32 or bf16 of the same number of elements.
void add(const Tensor& y, Tensor& x, float scale = 1.0f);
/// x *= factor, f32 or bf16
void scale(Tensor& x, float factor);
/// Row t of x [T, D], f32 or bf16, *= factors[t], f32; one factor is for all of x.
void scale_rows(const Tensor& factors, Tensor& x);
/// x [T, D] f32 or bf16 += bias [D] f32
void add_bias(const Tensor& bias, Tensor& x);
/// dbias [D] f32 += column sums of dy [T, D] f32 or bf16
void bias_backward(const Tensor& dy, Tensor& dbias);
/// Sum in f64, in order of the elements. f32.
double sum(const Tensor& x);
/// Sum of squares in f64, the same bits for any number of threads. f32 or bf16.
double sum_of_squares(const Tensor& x);
/// Index of the first element that is NaN or infinite, or -1. f32, bf16 or f16.
int64_t first_nonfinite(const Tensor& x);
/// x = normal(0, std) or uniform(low, high): element i is a function of (seed, purpose, i) only. f32 or bf16.
void fill_normal(Tensor& x, float std, uint64_t seed, uint64_t purpose);
void fill_uniform(Tensor& x, float low, float high, uint64_t seed, uint64_t purpose);

}  // namespace nibble::ops
