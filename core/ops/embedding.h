#pragma once
#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// out [T, D] f32 = scale * table[ids[t]]; ids [T] i32, table [V, D] f32, bf16 or f16. Throws InputError for an id
/// outside [0, V), naming it and its place.
void embedding_forward(const Tensor& ids, const Tensor& table, float scale, Tensor& out);
/// dtable [V, D] f32 += scale * dout summed over the places of each id, in order of t; ids of -1 are passed over.
void embedding_backward(const Tensor& ids, const Tensor& dout, float scale, Tensor& dtable);

/// out [N, D] = x[rows[n]]: rows [N] i32, x and out of one dtype (f32 or bf16) or out bf16 from x f32.
void gather_rows(const Tensor& x, const Tensor& rows, Tensor& out);
/// x[rows[n]] += y[n]: rows [N] i32 all different, x [T, D] f32, y [N, D] f32 or bf16.
void scatter_add_rows(const Tensor& y, const Tensor& rows, Tensor& x);

}  // namespace nibble::ops
