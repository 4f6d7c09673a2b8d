#include "nibble/core/ops/experts/grouped.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/core/ops/ref/grouped.h"
#include "nibble/tests/core/ops/four_bit_matrix.h"

namespace nibble::ops {
namespace {

using namespace test;
using Values = std::vector<double>;

constexpr int64_t kGroupedTokens = 90;

/// Groups of these sizes; group g has the tokens g, g + 1, ... in falling order.
RowGroups groups_of(MemoryPool& pool, const std::vector<int64_t>& counts) {
  RowGroups groups{.begins = {0}, .rows = {}};
  std::vector<int32_t> rows;
  for (size_t g = 0; g < counts.size(); ++g) {
    for (int64_t n = counts[g]; n > 0; --n)
      rows.push_back(static_cast<int32_t>((static_cast<int64_t>(g) + n) % kGroupedTokens));
    groups.begins.push_back(std::ssize(rows));
  }
  groups.rows = Tensor::from<int32_t>(pool, {std::ssize(rows)}, rows);
  return groups;
}

const std::vector<int64_t> kCounts = {1, 0, 3, 5, 8, 13, 16, 17, 80, 0, 49};

Values values_in(const Tensor& x, bool rounded = false) {
  Values result;
  result.reserve(static_cast<size_t>(x.numel()));
  const auto read = [&](auto elements) {
    for (const auto element : elements) {
      const auto value = static_cast<float>(element);
      result.push_back(rounded ? static_cast<float>(bf16(value)) : value);
    }
  };
  x.dtype() == DType::f32 ? read(x.span<const float>()) : read(x.span<const bf16>());
  return result;
}

struct GroupedCase {
  DType x, y;
  int64_t in, out, rank;
  bool four_bit, transposed, gathers, scatters, biases, accumulate;

  std::string describe() const {
    return std::string(dtype_name(x)) + " " + std::string(dtype_name(y)) + " " + to_string({in, out, rank}) +
           (four_bit ? " 4-bit" : "") + (transposed ? " nt" : " nn") + (gathers ? " gathers" : "") +
           (scatters ? " scatters" : "") + (biases ? " biases" : "") + (accumulate ? " accumulate" : "");
  }
};

/// A weight of each group, and what they are.
struct Weights {
  std::vector<WeightView> views;
  std::vector<Tensor> dense;
};

/// Made once for all cases of these sizes.
const Weights& weights_of(int64_t rows, int64_t columns, bool four_bit) {
  static MemoryPool pool;
  static std::map<std::tuple<int64_t, int64_t, bool>, Weights> all;
  Weights& cached = all[{rows, columns, four_bit}];
  if (!cached.views.empty()) return cached;
  const auto count = std::ssize(kCounts);
  const FourBitMatrix codes = four_bit ? random_matrix(pool, count * rows, columns, 64, true) : FourBitMatrix();
  const WeightView whole =
      four_bit ? WeightView(codes, "weights") : WeightView(random(pool, {count * rows, columns}, DType::bf16));
  for (int64_t g = 0; g < count; ++g) {
    cached.views.push_back(whole.slice_rows(g * rows, (g + 1) * rows));
    const WeightView& own = cached.views.back();
    cached.dense.push_back(four_bit ? expanded(pool, own.four_bit, DType::f32) : own.dense);
  }
  return cached;
}

struct GroupedOperands {
  MemoryPool pool;
  RowGroups groups = groups_of(pool, kCounts);
  Tensor x, y;
  GroupedWeights weights;
  std::vector<Tensor> dense;  // what the weights are

  explicit GroupedOperands(const GroupedCase& k) {
    x = random(pool, {k.gathers ? kGroupedTokens : groups.size(), k.in}, k.x);
    y = random(pool, {k.scatters ? kGroupedTokens : groups.size(), k.out}, k.y);
    weights.transposed = k.transposed;
    if (k.rank > 0) weights.left = random(pool, {groups.size(), k.rank}, k.x);
    if (k.biases) weights.bias_weights = random(pool, {groups.size()}, DType::f32);
    const Weights& shared = weights_of(k.transposed ? k.out : k.in, k.transposed ? k.in : k.out, k.four_bit);
    weights.w = shared.views;
    dense = shared.dense;
    for (size_t g = 0; g < kCounts.size(); ++g) {
      if (k.rank > 0) weights.right.push_back(random(pool, {k.rank, k.out}, DType::f32));
      if (k.biases) weights.biases.push_back(random(pool, {k.out}, DType::f32));
    }
  }

  Values expected(const GroupedCase& k) const {
    Values result = values_in(y);
    const Values rows = values_in(x), left = k.rank > 0 ? values_in(weights.left) : Values();
    const bool narrow = k.x == DType::bf16;
    for (int64_t g = 0; g < groups.groups(); ++g) {
      const auto index = static_cast<size_t>(g);
      const Values w = values_in(dense[index], narrow),
                   right = k.rank > 0 ? values_in(weights.right[index], narrow) : Values();
      const Values bias = k.biases ? values_in(weights.biases[index]) : Values();
      const Values bias_weights = k.biases ? values_in(weights.bias_weights) : Values();
      const int64_t begin = groups.begin(g);
      const int32_t* row = groups.rows.data<const int32_t>() + begin;
      ref::grouped_matmul(
          rows.data(), [&](int64_t n) { return k.gathers ? int64_t{row[n]} : begin + n; }, w.data(), k.transposed,
          left.data() + begin * k.rank, right.data(), k.rank, bias_weights.data() + begin,
          k.biases ? bias.data() : nullptr, groups.count(g), k.in, k.out, 1.0, k.accumulate || k.scatters,
          result.data(), [&](int64_t n) { return k.scatters ? int64_t{row[n]} : begin + n; });
    }
    return result;
  }

  void multiply(const GroupedCase& k) {
    const auto order = [](bool tokens) { return tokens ? RowOrder::tokens : RowOrder::groups; };
    grouped_matmul(x, order(k.gathers), groups, weights, y, order(k.scatters), k.accumulate);
  }
};

std::vector<GroupedCase> cases() {
  std::vector<GroupedCase> result;
  const std::vector<std::vector<int64_t>> sizes = {
      {96, 70, 4}, {64, 192, 0}, {33, 130, 5}, {2112, 80, 16}, {64, 600, 0}};
  for (const auto& size : sizes) {
    for (int bits = 0; bits < 64; ++bits) {
      const bool four_bit = (bits & 1) != 0, transposed = (bits & 2) != 0, gathers = (bits & 4) != 0;
      const bool scatters = (bits & 8) != 0, narrow = (bits & 16) != 0, more = (bits & 32) != 0;
      if (four_bit && size[0] % 64 != 0) continue;
      // An update of an odd rank is a product of its own: in bf16 its sum would be rounded twice.
      const DType y = narrow && !scatters && more && size[2] % 2 == 0 ? DType::bf16 : DType::f32;
      result.push_back({narrow ? DType::bf16 : DType::f32, y, size[0], size[1], size[2], four_bit, transposed, gathers,
                        scatters, scatters && more, !scatters && more});
    }
  }
  return result;
}

// How far a product that multiplies by the rounded factors of W, not by W rounded (WeightPanels::dots, of one row and a
// 4-bit weight), may be from the reference at element i: as either may differ by 2^-9, a bit for its digits.
double loss_of_factors(const GroupedCase& k, const GroupedOperands& of, size_t i) {
  const auto row = static_cast<int64_t>(i) / k.out, column = static_cast<int64_t>(i) % k.out;
  const int64_t alone = k.scatters ? of.groups.rows.data<const int32_t>()[0] : 0;  // of the first group, see kCounts
  if (k.x != DType::bf16 || !k.four_bit || !k.transposed || row != alone) return 0;
  const bf16* x = of.x.data<const bf16>() + (k.gathers ? of.groups.rows.data<const int32_t>()[0] : 0) * k.in;
  const float* w = of.dense[0].data<const float>() + column * k.in;
  double sum = 0;
  for (int64_t j = 0; j < k.in; ++j) sum += std::abs(static_cast<double>(static_cast<float>(x[j])) * double{w[j]});
  return sum / 128;
}

// The bound of gemm_test.cpp, for up to as many groups as add to one row.
TEST(Grouped, EqualsTheReference) {
  for (const GroupedCase& k : cases()) {
    GroupedOperands x(k);
    const Values expected = x.expected(k);
    x.multiply(k);
    const Values actual = values_in(x.y);
    const auto depth = static_cast<double>(k.in + k.rank);
    const double error = 8 * std::sqrt(depth) * std::exp2(-24) * (depth / 4 + 1) + 1e-6;
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i],
                  loss_of_factors(k, x, i) + error + (k.y == DType::bf16 ? 1.0 / 256 : 1e-6) * std::abs(expected[i]))
          << k.describe() << " element " << i;
    }
  }
}

TEST(Grouped, HasTheSameBitsForAnyThreads) {
  for (const GroupedCase& k : cases()) {
    GroupedOperands one(k), three(k);
    set_threads(1);
    one.multiply(k);
    set_threads(3);
    three.multiply(k);
    set_threads(1);
    ASSERT_TRUE(same_bytes(one.y, three.y)) << k.describe();
  }
}

// A row of a large group has the bits of a product of its own group alone.
TEST(Grouped, OfManyRowsIsTheProductOfOneGroup) {
  for (const GroupedCase& k : cases()) {
    if (k.gathers || k.scatters || k.accumulate || k.in % 2 != 0) continue;
    GroupedOperands x(k);
    x.multiply(k);
    for (int64_t g = 0; g < x.groups.groups(); ++g) {
      if (x.groups.count(g) <= kFewGroupedRows) continue;
      const auto own = [&](const Tensor& all) { return all.rows(x.groups.begin(g), x.groups.end(g)); };
      Tensor y = Tensor::empty(x.pool, {x.groups.count(g), k.out}, k.y);
      LowRankEpilogue update;
      if (k.rank > 0) update = {.left = own(x.weights.left), .right = x.weights.right[static_cast<size_t>(g)]};
      (k.transposed ? matmul_nt : matmul_nn)(own(x.x), x.weights.w[static_cast<size_t>(g)], y, false, 1,
                                             k.rank > 0 ? &update : nullptr);
      EXPECT_TRUE(same_bytes(y, own(x.y))) << k.describe();
    }
  }
}

TEST(Grouped, GradientsOfWeightsEqualTheReference) {
  MemoryPool pool;
  const RowGroups groups = groups_of(pool, kCounts);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const RowOrder order : {RowOrder::groups, RowOrder::tokens}) {
      const bool tokens = order == RowOrder::tokens;
      const Tensor a = random(pool, {tokens ? kGroupedTokens : groups.size(), 70}, dtype),
                   b = random(pool, {groups.size(), 5}, dtype);
      std::vector<Tensor> sums(kCounts.size()), turned(kCounts.size());
      for (size_t g = 0; g < sums.size(); ++g) {
        sums[g] = Tensor::zeros(pool, {70, 5}, DType::f32);
        turned[g] = Tensor::zeros(pool, {5, 70}, DType::f32);
      }
      for (int twice = 0; twice < 2; ++twice) {
        grouped_matmul_tn(a, order, b, RowOrder::groups, groups, sums);
        grouped_matmul_tn(b, RowOrder::groups, a, order, groups, turned);
      }
      for (int64_t g = 0; g < groups.groups(); ++g) {
        const Values left = values_in(a), right = values_in(b);
        const int64_t begin = groups.begin(g);
        const int32_t* row = groups.rows.data<const int32_t>() + begin;
        Values expected(70 * 5);
        ref::grouped_matmul_tn(
            left.data(), [&](int64_t n) { return tokens ? int64_t{row[n]} : begin + n; }, right.data(),
            [&](int64_t n) { return begin + n; }, groups.count(g), 70, 5, expected.data());
        for (int64_t i = 0; i < 70 * 5; ++i) {
          const double twice = 2 * expected[static_cast<size_t>(i)];
          ASSERT_NEAR(sums[static_cast<size_t>(g)].data<float>()[i], twice, 1e-4 + 1e-5 * std::abs(twice)) << g;
          ASSERT_NEAR(turned[static_cast<size_t>(g)].data<float>()[i % 5 * 70 + i / 5], twice,
                      1e-4 + 1e-5 * std::abs(twice));
        }
      }
    }
  }
}

TEST(Grouped, OfNoRowsLeavesWhatIsThere) {
  MemoryPool pool;
  const RowGroups groups = groups_of(pool, {0, 0});
  GroupedWeights weights;
  for (int g = 0; g < 2; ++g) weights.w.emplace_back(random(pool, {8, 16}, DType::f32));
  const Tensor x = random(pool, {4, 16}, DType::f32);
  Tensor y = random(pool, {4, 8}, DType::f32);
  const Tensor before = y.clone(pool);
  grouped_matmul(x, RowOrder::tokens, groups, weights, y, RowOrder::tokens);
  EXPECT_TRUE(same_bytes(y, before));
}

}  // namespace
}  // namespace nibble::ops
