#include "nibble/core/ops/pick.h"

#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/ref/pick.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

constexpr int64_t kRows = 71, kWidth = 37;
const std::vector<int32_t> kPicked = {30, 2, 17, 36, 0};

Tensor picked() { return Tensor::from<int32_t>(pool(), {5}, kPicked); }

TEST(Columns, AreCopiedOutAndInAsTheReferenceDoes) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({kRows, kWidth}, dtype, 1);
    Tensor part = Tensor::empty(pool(), {kRows, 9}, dtype), y = random_tensor({kRows, kWidth}, dtype, 2);
    Values expected(kRows * 9), expected_y = values_of(y);
    ops::ref::copy_columns_out(values_of(x).data(), kRows, kWidth, 20, 9, expected.data());
    ops::ref::copy_columns_in(expected.data(), kRows, kWidth, 3, 9, expected_y.data());
    ops::copy_columns_out(x, 20, part);
    ops::copy_columns_in(part, 3, y);
    expect_close(part, expected, 0, 0, "copied out");
    expect_close(y, expected_y, 0, 0, "copied in");
  }
}

TEST(Columns, AreTransposedAsTheReferenceDoes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor x = random_tensor({kRows, kWidth}, dtype, 1);
    Tensor y = Tensor::empty(pool(), {kWidth, kRows}, dtype);
    Values expected(kRows * kWidth);
    ops::ref::transpose(values_of(x).data(), kRows, kWidth, expected.data());
    ops::transpose(x, y);
    expect_close(y, expected, 0, 0, "transposed");
  }
}

TEST(Pick, ColumnsAreTakenAndPutAsTheReferenceDoes) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({kRows, kWidth}, dtype, 1);
    Tensor part = Tensor::empty(pool(), {kRows, 5}, dtype), y = random_tensor({kRows, kWidth}, dtype, 2);
    Values expected(kRows * 5), expected_y = values_of(y);
    ops::ref::take_columns(values_of(x).data(), kPicked.data(), kRows, kWidth, 5, expected.data());
    ops::ref::put_columns(expected.data(), kPicked.data(), kRows, kWidth, 5, expected_y.data());
    ops::take_columns(x, picked(), part);
    ops::put_columns(part, picked(), y);
    expect_close(part, expected, 0, 0, "taken");
    expect_close(y, expected_y, 0, 0, "put");
  }
}

TEST(Pick, WideColumnsAreRoundedWhenPut) {
  const Tensor part = random_tensor({kRows, 5}, DType::f32, 1);
  Tensor y = random_tensor({kRows, kWidth}, DType::bf16, 2);
  Values expected = values_of(y);
  ops::ref::put_columns(values_of(part).data(), kPicked.data(), kRows, kWidth, 5, expected.data());
  ops::put_columns(part, picked(), y);
  expect_close(y, expected, rounding(DType::bf16, 0), 0, "put");
}

TEST(Pick, RowsArePutAsTheReferenceDoes) {
  const Tensor part = random_tensor({5, kWidth}, DType::f32, 1);
  Tensor x = random_tensor({kRows, kWidth}, DType::f32, 2);
  Values expected = values_of(x);
  ops::ref::put_rows(values_of(part).data(), kPicked.data(), 5, kWidth, expected.data());
  ops::put_rows(part, picked(), x);
  expect_close(x, expected, 0, 0, "rows");
}

TEST(Pick, ColumnsOfATransposedTableAreGatheredAndAddedAsTheReferenceDoes) {
  std::vector<int32_t> columns = kPicked;
  columns.push_back(2);  // once more
  const Tensor where = Tensor::from<int32_t>(pool(), {6}, columns);
  Tensor x = random_tensor({kRows, kWidth}, DType::f32, 1), out = Tensor::empty(pool(), {6, kRows}, DType::f32);
  Values expected(6 * kRows), sum = values_of(x);
  ops::ref::gather_columns(sum.data(), columns.data(), kRows, kWidth, 6, expected.data());
  std::vector<int32_t> some = columns;
  some[1] = -1;
  ops::ref::scatter_add_columns(expected.data(), some.data(), kRows, kWidth, 6, sum.data());
  ops::gather_columns(x, where, out);
  expect_close(out, expected, 0, 0, "gathered");
  ops::scatter_add_columns(out, Tensor::from<int32_t>(pool(), {6}, some), x);
  expect_close(x, sum, 1e-6, 1e-6, "added");
}

TEST(Pick, ColumnSquaresAreTheReferences) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor x = random_tensor({kRows, kWidth}, dtype, 1);
    Tensor squares = Tensor::empty(pool(), {kWidth}, DType::f64);
    Values expected(kWidth);
    ops::ref::column_squares(values_of(x).data(), kRows, kWidth, expected.data());
    ops::column_squares(x, squares);
    for (int64_t i = 0; i < kWidth; ++i) {
      EXPECT_NEAR(squares.data<const double>()[i], expected[static_cast<size_t>(i)], 1e-12 * kRows);
    }
  }
}

TEST(Pick, AnIndexOutsideIsRefused) {
  const Tensor x = random_tensor({3, 4}, DType::f32, 1), wrong = Tensor::from<int32_t>(pool(), {1}, std::vector{4});
  Tensor part = Tensor::empty(pool(), {3, 1}, DType::f32);
  EXPECT_THROW(ops::take_columns(x, wrong, part), std::logic_error);
}

}  // namespace
}  // namespace nibble
