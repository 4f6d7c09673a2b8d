#pragma once
// Listed rows and columns of a row-major matrix, taken out, put in and added to. Indices are i32; the caller has
// checked them.

#include "nibble/core/tensor/tensor.h"

namespace nibble::ops {

/// part [T, K] = x [T, W] columns `columns` [K]. f32 or bf16, both of one dtype.
void take_columns(const Tensor& x, const Tensor& columns, Tensor& part);
/// x [T, W] columns `columns` [K], all different, = part [T, K]; part may be f32 where x is bf16.
void put_columns(const Tensor& part, const Tensor& columns, Tensor& x);
/// x [T, D] f32 rows `rows` [N], all different, = part [N, D] f32.
void put_rows(const Tensor& part, const Tensor& rows, Tensor& x);

/// out [N, R] f32: out[n] = column columns[n] of x [R, V] f32.
void gather_columns(const Tensor& x, const Tensor& columns, Tensor& out);
/// Column columns[n] of x [R, V] f32 += y[n], y [N, R] f32, in order of n; columns may come more than once, those of -1
/// are passed over.
void scatter_add_columns(const Tensor& y, const Tensor& columns, Tensor& x);

/// out [W] f64 = sums of squares of the columns of x [T, W] f32, bf16 or f16, in order of the rows.
void column_squares(const Tensor& x, Tensor& out);

}  // namespace nibble::ops
