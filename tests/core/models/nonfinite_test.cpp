#include "nibble/core/models/nonfinite.h"

#include <gtest/gtest.h>

#include <limits>

#include "nibble/core/ops/elementwise.h"

namespace nibble {
namespace {

TEST(Nonfinite, NamesTheFirstTensorAndElementInEveryDtypeOfWeights) {
  MemoryPool pool;
  const Tensor good = Tensor::zeros(pool, {2, 3}, DType::f32), codes = Tensor::zeros(pool, {6}, DType::u8);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Tensor values = Tensor::zeros(pool, {2, 3}, DType::f32), bad = Tensor::empty(pool, {2, 3}, dtype);
    values.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
    ops::cast(values, bad);
    EXPECT_EQ(nonfinite_text({{"codes", codes}, {"good", good}, {"bad", bad}, {"next", bad}}),
              "bad, element 5 of 6, is nan");
    values.data<float>()[4] = -std::numeric_limits<float>::infinity();
    ops::cast(values, bad);
    EXPECT_EQ(nonfinite_text("bad", bad), "bad, element 4 of 6, is -inf");
  }
  EXPECT_EQ(nonfinite_text({{"codes", codes}, {"good", good}}), "");
}

}  // namespace
}  // namespace nibble
