#include "nibble/core/ops/dropout.h"

#include <algorithm>

#include "nibble/core/ops/ref/dropout.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

class DropoutTest : public EverySimd {};
NIBBLE_EVERY_SIMD(DropoutTest);

Tensor keys(const std::vector<int64_t>& rows) {
  return Tensor::from<int64_t>(pool(), {static_cast<int64_t>(rows.size())}, rows);
}

const ops::DropoutKey kKey = {.seed = 77, .step = 3, .site = 5};

TEST_P(DropoutTest, MatchesReferenceElementForElement) {
  const std::vector<int64_t> rows = {0, 1, (int64_t{9} << 32) + 4, (int64_t{1} << 62) + 1};
  for (int64_t width : {1, 3, 64, 1026, 2500}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Tensor x = random_tensor({4, width}, dtype, 1);
      Tensor y = Tensor::empty(pool(), x.shape(), dtype);
      ops::dropout(x, keys(rows), 0.3f, kKey, y);
      Values expected(static_cast<size_t>(x.numel()));
      ops::ref::dropout(values_of(x).data(), rows.data(), 4, width, 0.3f, kKey, expected.data());
      expect_close(y, expected, rounding(dtype, 1e-7), 0, "y");
    }
  }
}

TEST_P(DropoutTest, MaskBelongsToTheRowKeyNotToItsPlace) {
  const Tensor ones = tensor_of(Values(3 * 100, 1.0), {3, 100}, DType::f32);
  Tensor abc = Tensor::empty(pool(), {3, 100}, DType::f32), ca = Tensor::empty(pool(), {2, 100}, DType::f32);
  ops::dropout(ones, keys({10, 20, 30}), 0.5f, kKey, abc);
  ops::dropout(ones.rows(0, 2), keys({30, 10}), 0.5f, kKey, ca);
  EXPECT_EQ(std::memcmp(ca.rows(0, 1).raw(), abc.rows(2, 3).raw(), 400), 0);
  EXPECT_EQ(std::memcmp(ca.rows(1, 2).raw(), abc.rows(0, 1).raw(), 400), 0);
  EXPECT_NE(std::memcmp(abc.rows(0, 1).raw(), abc.rows(1, 2).raw(), 400), 0);
}

TEST_P(DropoutTest, PartOfARowHasTheMaskOfThatPart) {
  const Tensor ones = tensor_of(Values(2200, 1.0), {1, 2200}, DType::f32);
  Tensor whole = Tensor::empty(pool(), {1, 2200}, DType::f32);
  ops::dropout(ones, keys({10}), 0.5f, kKey, whole);
  for (const int64_t first : {0, 1, 64, 1027}) {
    ops::DropoutKey key = kKey;
    key.first_column = first;
    Tensor part = Tensor::empty(pool(), {1, 1100}, DType::f32);
    ops::dropout(ones.reshape({2, 1100}).rows(0, 1), keys({10}), 0.5f, key, part);
    EXPECT_EQ(std::memcmp(part.raw(), whole.raw() + first * 4, 4400), 0) << first;
  }
}

TEST_P(DropoutTest, SeedStepAndSiteEachChangeTheMask) {
  const Tensor ones = tensor_of(Values(256, 1.0), {1, 256}, DType::f32);
  std::vector<Values> masks;
  for (const ops::DropoutKey& key : {ops::DropoutKey{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}}) {
    Tensor y = Tensor::empty(pool(), {1, 256}, DType::f32);
    ops::dropout(ones, keys({0}), 0.5f, key, y);
    for (const Values& other : masks) EXPECT_NE(values_of(y), other);
    masks.push_back(values_of(y));
  }
}

// 2e6 draws: the standard deviation of the kept share is below 3.6e-4; five of them are allowed.
TEST_P(DropoutTest, RateIsRight) {
  for (float p : {0.05f, 0.5f, 0.9f}) {
    std::vector<int64_t> rows(500);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i) << 32;
    Tensor ones = tensor_of(Values(500 * 4000, 1.0), {500, 4000}, DType::f32);
    ops::dropout(ones, keys(rows), p, kKey, ones);
    const std::span<const float> kept = ones.span<const float>();
    const double share =
        static_cast<double>(std::count_if(kept.begin(), kept.end(), [](float v) { return v != 0; })) / 2e6;
    EXPECT_NEAR(share, 1 - static_cast<double>(p), 5 * std::sqrt(static_cast<double>(p * (1 - p)) / 2e6));
  }
}

TEST_P(DropoutTest, RateZeroKeepsEverything) {
  const Tensor x = random_tensor({2, 50}, DType::f32, 1);
  Tensor y = Tensor::empty(pool(), x.shape(), DType::f32);
  ops::dropout(x, keys({0, 1}), 0, kKey, y);
  EXPECT_EQ(std::memcmp(x.raw(), y.raw(), x.bytes()), 0);
}

}  // namespace
}  // namespace nibble
