#include "nibble/core/nn/shard_spec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace nibble {
namespace {

const Shape kMatrix = {7, 9};

const std::vector<ShardSpec>& specs() {
  static const std::vector<ShardSpec> all = {
      {kMatrix, {{2, 5}}, all_of(9)},                  // one run of rows
      {kMatrix, {{0, 1}, {3, 4}, {6, 7}}, all_of(9)},  // fused rows
      {kMatrix, all_of(7), {{4, 9}}},                  // columns
      {kMatrix, all_of(7), {{0, 2}, {3, 4}, {7, 9}}},  // fused columns
      {kMatrix, {{1, 3}, {5, 6}}, {{0, 1}, {6, 9}}},   // both
      {{11}, {{2, 3}, {7, 11}}, {}},                   // a vector
      {{11}, {{4, 9}}, {}},
      {{5, 2, 3}, {{1, 4}}, all_of(2)},  // some of several matrices
  };
  return all;
}

/// Elements of the shard counted in the global tensor, one by one.
std::vector<int64_t> places_of(const ShardSpec& spec) {
  const std::vector<Range> columns = spec.global.size() > 1 ? spec.columns : all_of(1);
  const int64_t width = spec.global.size() > 1 ? spec.global[1] : 1;
  const int64_t inner = spec.global.size() > 2 ? spec.global[2] : 1;
  std::vector<int64_t> places;
  for (const Range& rows : spec.rows) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (const Range& range : columns) {
        for (int64_t column = range.begin; column < range.end; ++column) {
          for (int64_t i = 0; i < inner; ++i) places.push_back((row * width + column) * inner + i);
        }
      }
    }
  }
  return places;
}

template <typename T>
Tensor counting(MemoryPool& pool, const Shape& shape) {
  std::vector<T> values(static_cast<size_t>(element_count(shape)));
  std::iota(values.begin(), values.end(), T(1));
  return Tensor::from<T>(pool, shape, values);
}

template <typename T>
class Shards : public testing::Test {};
using Elements = testing::Types<float, int64_t, uint8_t>;
TYPED_TEST_SUITE(Shards, Elements);

TYPED_TEST(Shards, HaveTheElementsOfTheirRowsAndColumns) {
  MemoryPool pool;
  for (const ShardSpec& spec : specs()) {
    const Tensor global = counting<TypeParam>(pool, spec.global);
    const Tensor shard = slice_shard(global, spec, pool);
    const std::vector<int64_t> places = places_of(spec);
    ASSERT_EQ(shard.shape(), spec.shape());
    ASSERT_EQ(static_cast<size_t>(shard.numel()), places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      EXPECT_EQ(shard.span<const TypeParam>()[i], global.span<const TypeParam>()[static_cast<size_t>(places[i])]);
    }
  }
}

TYPED_TEST(Shards, GoBackToTheirPlacesAndTouchNothingElse) {
  MemoryPool pool;
  for (const ShardSpec& spec : specs()) {
    const Tensor shard = counting<TypeParam>(pool, spec.shape());
    Tensor global = Tensor::zeros(pool, spec.global, shard.dtype());
    std::vector<TypeParam> wanted(static_cast<size_t>(global.numel()), TypeParam(0));
    const std::vector<int64_t> places = places_of(spec);
    for (size_t i = 0; i < places.size(); ++i) {
      wanted[static_cast<size_t>(places[i])] = shard.span<const TypeParam>()[i];
    }
    write_shard(shard, spec, global);
    EXPECT_EQ(std::memcmp(global.raw(), wanted.data(), global.bytes()), 0);
  }
}

TEST(ShardSpec, ARunOfWholeRowsSharesTheBytes) {
  MemoryPool pool;
  const Tensor global = counting<float>(pool, kMatrix);
  EXPECT_EQ(slice_shard(global, specs()[0], pool).storage(), global.storage());
  EXPECT_NE(slice_shard(global, specs()[2], pool).storage(), global.storage());
}

TEST(ShardSpec, ItsTransposeHasColumnsForRows) {
  const ShardSpec spec = specs()[4].transposed();
  EXPECT_EQ(spec.global, (Shape{9, 7}));
  EXPECT_EQ(spec.shape(), (Shape{4, 3}));
  EXPECT_TRUE(spec.slices_rows() && spec.slices_columns());
}

}  // namespace
}  // namespace nibble
