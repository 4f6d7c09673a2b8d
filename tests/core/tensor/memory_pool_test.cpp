#include "nibble/core/tensor/memory_pool.h"

#include <gtest/gtest.h>

#include "nibble/core/base/error.h"
#include "nibble/core/tensor/tensor.h"

namespace nibble {
namespace {

TEST(MemoryPool, RefusesWhatIsOverItsBudgetAndNamesIt) {
  MemoryPool pool(1 << 20);
  auto held = pool.allocate(900 << 10);
  try {
    pool.allocate(200 << 10, "logits");
    FAIL() << "went over the budget";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("logits"), std::string::npos);
  }
  held.reset();
  EXPECT_NO_THROW(pool.allocate(200 << 10));
}

TEST(MemoryPool, KeepsThePeak) {
  MemoryPool pool;
  { auto first = pool.allocate(1 << 20); }
  auto second = pool.allocate(1 << 10);
  EXPECT_EQ(pool.in_use(), size_t{1} << 10);
  EXPECT_EQ(pool.peak(), size_t{1} << 20);
}

TEST(MemoryPool, BlocksMayOutliveThePool) {
  Tensor tensor;
  {
    MemoryPool pool;
    tensor = Tensor::zeros(pool, {4}, DType::f32);
  }
  EXPECT_EQ(tensor.data<float>()[3], 0.0f);
}

}  // namespace
}  // namespace nibble
