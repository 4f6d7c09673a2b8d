#include "nibble/core/tensor/memory_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

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

/// Resident bytes of this process.
size_t resident() {
  size_t pages = 0;
  std::ifstream statm("/proc/self/statm");
  statm >> pages >> pages;
  return pages * 4096;
}

TEST(MemoryPool, BlocksOfVaryingSizesDoNotPileUp) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps what is freed for a while";
#endif
  MemoryPool pool;
  constexpr size_t kLeast = size_t{32} << 20, kStep = size_t{2} << 20;
  const size_t before = resident();
  size_t most = 0;
  for (size_t i = 0; i < 16; ++i) {
    const size_t bytes = kLeast + (i * 7 % 16) * kStep;
    std::memset(pool.allocate(bytes).get(), 1, bytes);
    most = std::max(most, resident());
  }
  EXPECT_LT(most - before, 2 * (kLeast + 16 * kStep)) << "kept, all blocks together would be 750 MB";
}

TEST(MemoryPool, BlocksOfTheSameSizesAreUsedAgain) {
  MemoryPool pool;
  const std::byte *large = pool.allocate(size_t{8} << 20).get(), *small = pool.allocate(size_t{1} << 20).get();
  for (int i = 0; i < 3; ++i) {
    const auto a = pool.allocate(size_t{8} << 20), b = pool.allocate(size_t{1} << 20);
    EXPECT_EQ(a.get(), large);
    EXPECT_EQ(b.get(), small);
  }
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
