#include "nibble/core/tensor/memory_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

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
  GTEST_SKIP() << "AddressSanitizer's own memory is resident too";
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

// Training steps of varied lengths: every layer keeps blocks until its backward pass and takes others in between, of
// sizes that go with the length.
TEST(MemoryPool, StepsOfVariedLengthsStayWithinTheLargest) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer's own memory is resident too";
#endif
  using Block = std::shared_ptr<std::byte>;
  MemoryPool pool;
  const auto take = [&](size_t bytes) {
    Block block = pool.allocate(bytes);
    std::memset(block.get(), 1, bytes);
    return block;
  };
  const size_t before = resident();
  const Block weights = take(size_t{3} << 20);
  std::vector<Block> moments;  // taken in the first step, kept
  std::mt19937 draw(1);
  for (int step = 0; step < 1000; ++step) {
    const size_t length = 16 + draw() % 496;
    std::vector<std::vector<Block>> kept;
    for (int layer = 0; layer < 12; ++layer) {
      kept.emplace_back();
      for (const size_t width : {256, 512, 128, 4, 1024, 1408}) {
        const Block between = take(length * (width + draw() % 64));
        if (width != 512) kept.back().push_back(take(length * width));
      }
    }
    { const Block logits = take(length * 4096); }
    while (!kept.empty()) {
      const Block gradient = take(length * 1024), wide = take(length * 1408 * 2);
      if (step == 0) moments.push_back(take(size_t{20} << 10));
      kept.pop_back();
    }
  }
  EXPECT_LT(resident() - before, pool.peak() + pool.peak() / 10 + (size_t{4} << 20));
}

TEST(MemoryPool, TrimGivesPagesBack) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer's own memory is resident too";
#endif
  MemoryPool pool;
  const size_t before = resident(), bytes = size_t{64} << 20;
  const auto held = pool.allocate(bytes / 4);
  std::memset(held.get(), 1, bytes / 4);
  for (int i = 0; i < 2; ++i) {
    std::memset(pool.allocate(bytes).get(), 1, bytes);
    pool.trim();
    EXPECT_LT(resident() - before, bytes / 2);
  }
  EXPECT_EQ(static_cast<int>(held.get()[bytes / 4 - 1]), 1);
}

TEST(MemoryPool, BlocksAreAligned) {
  MemoryPool pool;
  std::vector<std::shared_ptr<std::byte>> held;
  for (const size_t bytes : {1u, 65u, 5000u, 1u << 20, (1u << 21) - 1, 1u << 21, (1u << 21) + 1, 9u << 20}) {
    held.push_back(pool.allocate(bytes));
    const uintptr_t address = reinterpret_cast<uintptr_t>(held.back().get());
    EXPECT_EQ(address % (bytes >= 1u << 21 ? 1u << 21 : 64u), 0u) << bytes;
  }
}

#ifdef __SANITIZE_ADDRESS__
TEST(MemoryPoolDeathTest, AddressSanitizerSeesWhatIsNoBlock) {
  MemoryPool pool;
  const auto block = pool.allocate(100), next = pool.allocate(64);
  volatile std::byte* bytes = block.get();
  EXPECT_DEATH(bytes[100] = std::byte{1}, "use-after-poison");
  bytes = next.get();
  EXPECT_DEATH(bytes[64] = std::byte{1}, "use-after-poison");
  const volatile std::byte* released = pool.allocate(64).get();
  EXPECT_DEATH((void)static_cast<int>(released[0]), "use-after-poison");
}
#endif

TEST(MemoryPool, BlocksOfTheSameSizesAreUsedAgain) {
  MemoryPool pool;
  const std::byte *large = nullptr, *small = nullptr;
  for (int round = 0; round < 4; ++round) {
    const auto a = pool.allocate(size_t{8} << 20), b = pool.allocate(size_t{1} << 20);
    if (round > 1) {
      EXPECT_EQ(a.get(), large);
      EXPECT_EQ(b.get(), small);
    }
    large = a.get();
    small = b.get();
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

TEST(MemoryPool, SaysWhatForMostWasHeld) {
  MemoryPool pool;
  const auto kept = pool.allocate(1 << 10);
  {
    const MemoryPool::Use use(pool, MemoryUse::optimizer);
    const auto state = pool.allocate(3 << 10);
    const MemoryPool::Use inner(pool, MemoryUse::logits);
    const auto chunk = pool.allocate(2 << 10);
  }
  const auto after = pool.allocate(1 << 10);  // where the others were
  const MemoryPool::Peak peak = pool.take_peak();
  const MemorySplit& most = peak.split;
  EXPECT_EQ(most[MemoryUse::activations], 1 << 10);
  EXPECT_EQ(most[MemoryUse::optimizer], 3 << 10);
  EXPECT_EQ(most[MemoryUse::logits], 2 << 10);
  EXPECT_EQ(peak.resident, 8 << 10);  // whole pages
  const MemorySplit now = pool.take_peak().split;
  EXPECT_EQ(now[MemoryUse::activations], 2 << 10);
  EXPECT_EQ(now[MemoryUse::optimizer], 0);
}

}  // namespace
}  // namespace nibble
