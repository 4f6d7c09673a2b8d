#include "nibble/core/tensor/spill_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "nibble/core/base/error.h"
#include "nibble/core/tensor/file_space.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

Tensor filled(MemoryPool& pool, Shape shape, float first) {
  Tensor tensor = Tensor::empty(pool, std::move(shape), DType::f32);
  for (float& value : tensor.span<float>()) value = first++;
  return tensor;
}

bool holds(const Tensor& tensor, float first) {
  for (const float value : tensor.span<const float>()) {
    if (value != first++) return false;
  }
  return true;
}

class Spilling : public testing::Test {
 protected:
  test::TemporaryDirectory directory_;
  MemoryPool pool_;
};

TEST_F(Spilling, BytesComeBackAndWhatSharedThemSharesThemAgain) {
  SpillFile file(directory_.path().string(), 0, pool_);
  Tensor whole = filled(pool_, {100, 40}, 1);
  std::vector<Tensor> tensors = {whole.rows(10, 90), filled(pool_, {7}, -3), whole.rows(10, 90).reshape({40, 80})};
  whole = {};
  auto spilled = file.put(std::move(tensors), false);
  const std::vector<Tensor> back = spilled->take();
  ASSERT_EQ(back.size(), 3u);
  EXPECT_EQ(back[0].shape(), (Shape{80, 40}));
  EXPECT_EQ(back[2].shape(), (Shape{40, 80}));
  EXPECT_TRUE(holds(back[0], 401));
  EXPECT_TRUE(holds(back[1], -3));
  EXPECT_EQ(back[0].raw(), back[2].raw());
  EXPECT_TRUE(back[0].writable());
}

TEST_F(Spilling, MemoryFallsWhileTensorsAreInTheFile) {
  SpillFile file(directory_.path().string(), 0, pool_);
  std::vector<std::unique_ptr<SpillFile::Spilled>> spilled;
  const size_t each = size_t{1} << 20;
  for (int i = 0; i < 16; ++i) {
    std::vector<Tensor> tensors = {filled(pool_, {1 << 18}, static_cast<float>(i))};
    spilled.push_back(file.put(std::move(tensors), false));
    // This one, and the one before it, which may have been on its way until now.
    EXPECT_LE(pool_.in_use(), 2 * each);
  }
  EXPECT_LE(pool_.peak(), 2 * each);
  EXPECT_EQ(file.file_bytes(), 16 << 20);
  for (int i = 16; i-- > 0;) {
    if (i > 0) spilled[static_cast<size_t>(i) - 1]->fetch();
    const std::vector<Tensor> back = spilled[static_cast<size_t>(i)]->take();
    EXPECT_TRUE(holds(back.front(), static_cast<float>(i)));
    EXPECT_LE(pool_.in_use(), 3 * each);
  }
}

TEST_F(Spilling, WhatStaysIsWrittenOnlyIfItIsNotWantedNext) {
  SpillFile file(directory_.path().string(), 0, pool_);
  std::vector<Tensor> tensors = {filled(pool_, {5000}, 1)};
  auto first = file.put(std::move(tensors), true);
  EXPECT_TRUE(holds(first->take().front(), 1));
  EXPECT_EQ(file.written_bytes(), 0);
  first.reset();

  tensors = {filled(pool_, {5000}, 2)};
  auto second = file.put(std::move(tensors), true);
  file.write_what_stays();
  tensors = {filled(pool_, {5000}, 3)};
  auto third = file.put(std::move(tensors), false);
  EXPECT_GE(file.written_bytes(), 20480);  // the third may be written by now
  EXPECT_TRUE(holds(second->take().front(), 2));
  EXPECT_TRUE(holds(third->take().front(), 3));
}

TEST_F(Spilling, TheFileHasNoNameAndGivesItsPlacesBack) {
  SpillFile file(directory_.path().string(), 1 << 20, pool_);
  EXPECT_TRUE(fs::is_empty(directory_.path()));
  for (int i = 0; i < 50; ++i) {
    std::vector<Tensor> tensors = {filled(pool_, {1000 + 100 * (i % 5)}, 1)};
    const auto dropped = file.put(std::move(tensors), i % 3 == 0);
    if (i % 2 == 0) dropped->take();
    file.write_what_stays();
  }
  EXPECT_LE(file.file_bytes(), 2 * 8192);
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

TEST_F(Spilling, WhatIsSpilledMayOutliveTheFile) {
  std::unique_ptr<SpillFile::Spilled> left;
  {
    SpillFile file(directory_.path().string(), 0, pool_);
    std::vector<Tensor> tensors = {filled(pool_, {1 << 20}, 1)};
    left = file.put(std::move(tensors), false);
  }
  left.reset();
  EXPECT_EQ(pool_.in_use(), 0u);
}

TEST_F(Spilling, APlaceThatDoesNotExistIsNamed) {
  const std::string message = test::error_of<IoError>([&] { SpillFile((directory_ / "nowhere").string(), 0, pool_); });
  EXPECT_NE(message.find("nowhere: activations cannot be kept here: No such file"), std::string::npos) << message;
  EXPECT_NE(message.find("parallel.offload_directory"), std::string::npos) << message;
}

TEST_F(Spilling, MoreThanTheDiskHasIsRefusedAtOnce) {
  const std::string message =
      test::error_of<IoError>([&] { SpillFile(directory_.path().string(), int64_t{1} << 58, pool_); });
  EXPECT_NE(message.find("no room for activations"), std::string::npos) << message;
}

TEST(FileSpace, RangesNeverOverlapAndTheFileShrinksToNothing) {
  FileSpace space;
  std::mt19937 random(7);
  std::map<int64_t, int64_t> used;
  int64_t held = 0;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 && used.size() < 40) {
      const int64_t size = 4096 * static_cast<int64_t>(1 + random() % 9);
      const int64_t at = space.take(size);
      const auto next = used.lower_bound(at);
      ASSERT_TRUE(next == used.end() || at + size <= next->first);
      ASSERT_TRUE(next == used.begin() || std::prev(next)->first + std::prev(next)->second <= at);
      used[at] = size;
      held += size;
    } else if (!used.empty()) {
      const auto one = std::next(used.begin(), static_cast<long>(random() % used.size()));
      space.give(one->first, one->second);
      held -= one->second;
      used.erase(one);
    }
    const int64_t end = used.empty() ? 0 : std::prev(used.end())->first + std::prev(used.end())->second;
    ASSERT_EQ(space.end(), end);
    ASSERT_GE(space.end(), held);
  }
}

}  // namespace
}  // namespace nibble
