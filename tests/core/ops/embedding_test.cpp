#include "nibble/core/ops/embedding.h"

#include "nibble/core/ops/ref/embedding.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class EmbeddingTest : public EverySimd {};
NIBBLE_EVERY_SIMD(EmbeddingTest);

const std::vector<int32_t> kIds = {3, 0, 6, 3, 3, 5, 0, 1};

// One product per element.
TEST_P(EmbeddingTest, ForwardTakesScaledRowsOfAnyDtype) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor table = random_tensor({7, 53}, dtype, 1), ids = Tensor::from<int32_t>(pool(), {8}, kIds);
    Tensor out = Tensor::empty(pool(), {8, 53}, DType::f32);
    ops::embedding_forward(ids, table, 1.5f, out);
    Values expected(8 * 53);
    ops::ref::embedding_forward(kIds.data(), values_of(table).data(), 8, 53, 1.5, expected.data());
    expect_close(out, expected, 1e-7, 0, "out");
  }
}

TEST_P(EmbeddingTest, BackwardAddsRowsOfRepeatedIdsAndPassesOverMinusOne) {
  std::vector<int32_t> some = kIds;
  some[2] = -1;
  const Tensor dout = random_tensor({8, 533}, DType::f32, 2), ids = Tensor::from<int32_t>(pool(), {8}, some);
  Tensor dtable = random_tensor({7, 533}, DType::f32, 3);
  Values expected = values_of(dtable);
  ops::embedding_backward(ids, dout, 1.5f, dtable);
  ops::ref::embedding_backward(some.data(), values_of(dout).data(), 8, 533, 1.5, expected.data());
  expect_close(dtable, expected, 1e-6, 1e-6, "dtable");
}

TEST_P(EmbeddingTest, GatherAndScatterAreEachOthersTranspose) {
  const std::vector<int32_t> picked = {6, 2, 3};
  const Tensor rows = Tensor::from<int32_t>(pool(), {3}, picked);
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({7, 41}, DType::f32, 1);
    Tensor out = Tensor::empty(pool(), {3, 41}, dtype), sum = random_tensor({7, 41}, DType::f32, 4);
    Values expected(3 * 41), expected_sum = values_of(sum);
    ops::gather_rows(x, rows, out);
    ops::ref::gather_rows(values_of(x).data(), picked.data(), 3, 41, expected.data());
    expect_close(out, expected, rounding(dtype, 0), 0, "gathered");
    ops::scatter_add_rows(out, rows, sum);
    ops::ref::scatter_add_rows(values_of(out).data(), picked.data(), 3, 41, expected_sum.data());
    expect_close(sum, expected_sum, 1e-6, 1e-7, "scattered");
  }
  const Tensor halves = random_tensor({7, 41}, DType::bf16, 1);
  Tensor same = Tensor::empty(pool(), {3, 41}, DType::bf16);
  ops::gather_rows(halves, rows, same);
  EXPECT_EQ(std::memcmp(same.raw(), halves.rows(6, 7).raw(), 41 * 2), 0);
}

TEST(Embedding, UnknownIdIsNamedWithItsPlace) {
  const Tensor table = random_tensor({7, 4}, DType::f32, 1);
  Tensor out = Tensor::empty(pool(), {2, 4}, DType::f32);
  for (int32_t wrong : {-1, 7}) {
    const Tensor ids = Tensor::from<int32_t>(pool(), {2}, std::vector<int32_t>{1, wrong});
    try {
      ops::embedding_forward(ids, table, 1, out);
      FAIL() << "id " << wrong << " was accepted";
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("token 1: id " + std::to_string(wrong)), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace nibble
