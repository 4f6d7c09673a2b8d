#include "nibble/core/nn/parameter.h"

#include <gtest/gtest.h>

#include "nibble/core/ops/elementwise.h"

namespace nibble {
namespace {

TEST(Parameter, TrainingMakesAnF32CopyAndAZeroGradient) {
  MemoryPool pool;
  Tensor frozen = Tensor::empty(pool, {3, 5}, DType::bf16);
  ops::fill_normal(frozen, 1, 1, 1);
  Parameter parameter{"w", frozen, {}, false};
  parameter.make_trainable(pool);
  EXPECT_TRUE(parameter.trainable);
  EXPECT_EQ(parameter.value.dtype(), DType::f32);
  EXPECT_EQ(parameter.value.shape(), frozen.shape());
  for (int i = 0; i < 15; ++i) {
    EXPECT_EQ(parameter.value.data<float>()[i], static_cast<float>(frozen.data<bf16>()[i]));
    EXPECT_EQ(parameter.gradient.data<float>()[i], 0);
  }
}

TEST(Parameter, AValueThatMayBeWrittenInF32StaysWhereItIs) {
  MemoryPool pool;
  Parameter parameter{"w", Tensor::zeros(pool, {4}, DType::f32), {}, false};
  const std::byte* place = parameter.value.raw();
  parameter.make_trainable(pool);
  EXPECT_EQ(parameter.value.raw(), place);
}

}  // namespace
}  // namespace nibble
