#include "nibble/parallel/data/tree_sum.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>

#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/data/assignment.h"

namespace nibble {
namespace {

/// Values whose sum depends on the order.
float awkward(int rank, int64_t i) {
  return static_cast<float>((rank + 1) * 0.1 + static_cast<double>(i % 97) * 1e-4) * (rank % 2 ? 1e4f : 1.0f);
}

float tree(const std::vector<float>& values, size_t begin, size_t end) {
  if (end - begin == 1) return values[begin];
  const size_t middle = begin + (end - begin) / 2;
  return tree(values, begin, middle) + tree(values, middle, end);
}

float expected(int ranks, int64_t i) {
  std::vector<float> values;
  for (int r = 0; r < ranks; ++r) values.push_back(awkward(r, i));
  return tree(values, 0, values.size());
}

Tensor values_of(int rank, int64_t count, MemoryPool& pool) {
  Tensor values = Tensor::empty(pool, {count}, DType::f32);
  for (int64_t i = 0; i < count; ++i) values.data<float>()[i] = awkward(rank, i);
  return values;
}

class TreeSum : public testing::TestWithParam<int> {};

TEST_P(TreeSum, AllReduceAddsInTheOrderOfTheTree) {
  const int ranks = GetParam();
  run_on_threads(ranks, [&](Communicator& comm) {
    MemoryPool pool;
    for (const int64_t count : {1, 7, 10'000}) {
      Tensor values = values_of(comm.rank(), count, pool);
      all_reduce_tree(comm, "sum", values, std::vector<bool>(static_cast<size_t>(ranks), true), {}, pool);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(values.data<float>()[i], expected(ranks, i)) << i;
    }
  });
}

TEST_P(TreeSum, ReduceScatterGivesEachRankItsShardAndAddsToIt) {
  const int ranks = GetParam();
  run_on_threads(ranks, [&](Communicator& comm) {
    MemoryPool pool;
    std::vector<int64_t> bounds = {0};
    for (int r = 0; r < ranks; ++r) bounds.push_back(bounds.back() + 100 * r);  // the first rank has nothing
    const int64_t begin = bounds[static_cast<size_t>(comm.rank())], mine = 100 * comm.rank();
    Tensor sum = Tensor::zeros(pool, {mine}, DType::f32);
    const Tensor values = values_of(comm.rank(), std::max<int64_t>(bounds.back(), 1), pool).rows(0, bounds.back());
    reduce_scatter_tree(comm, "scatter", values, bounds, sum, std::vector<bool>(static_cast<size_t>(ranks), true), {},
                        pool);
    for (int64_t i = 0; i < mine; ++i) ASSERT_EQ(sum.data<float>()[i], expected(ranks, begin + i));
  });
}

TEST_P(TreeSum, BrainFloatOnTheWireRoundsAndIsTheSameEverywhere) {
  const int ranks = GetParam();
  if (ranks == 1) GTEST_SKIP() << "nothing travels";
  std::vector<std::vector<float>> results(static_cast<size_t>(ranks));
  run_on_threads(ranks, [&](Communicator& comm) {
    MemoryPool pool;
    Tensor values = values_of(comm.rank(), 500, pool);
    all_reduce_tree(comm, "sum", values, std::vector<bool>(static_cast<size_t>(ranks), true), {DType::bf16}, pool);
    const std::span<const float> got = values.span<const float>();
    results[static_cast<size_t>(comm.rank())].assign(got.begin(), got.end());
  });
  for (const auto& result : results) EXPECT_EQ(result, results.front());
  for (size_t i = 0; i < 500; ++i) {
    EXPECT_NEAR(results[0][i], expected(ranks, static_cast<int64_t>(i)),
                0.02 * expected(ranks, static_cast<int64_t>(i)));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, TreeSum, testing::Values(1, 2, 3, 4));

TEST(TreeSumOf, LeavesOutRanksWithNothing) {
  MemoryPool pool;
  const std::vector<float> of_ranks = {1, 20, 300, 3};
  const Tensor parts = Tensor::from<float>(pool, {4, 1}, of_ranks);
  EXPECT_EQ(tree_sum(parts, {true, false, false, true}).data<const float>()[0], 4);
}

TEST(Assignment, PowersOfTwoOwnWholeSubtrees) {
  EXPECT_EQ(whole_subtrees(8, 2, 1), (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(whole_subtrees(5, 2, 0), (std::vector<int64_t>{0, 1}));  // as the tree halves 5
  EXPECT_EQ(whole_subtrees(5, 4, 3), (std::vector<int64_t>{3, 4}));
  EXPECT_TRUE(whole_subtrees(1, 2, 0).empty());
  EXPECT_EQ(whole_subtrees(1, 2, 1), (std::vector<int64_t>{0}));
}

TEST(Assignment, EveryMicrobatchHasOneRank) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int64_t count = 0; count < 12; ++count) {
      std::vector<int64_t> subtrees, rounds, all(static_cast<size_t>(count));
      for (int r = 0; r < ranks; ++r) {
        for (const int64_t i : whole_subtrees(count, ranks, r)) subtrees.push_back(i);
      }
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(subtrees, all);
      for (const GradientSum kind : {GradientSum::tree, GradientSum::running}) {
        rounds.clear();
        for (int r = 0; r < ranks; ++r) {
          for (const int64_t i : in_rounds(round_begins(count, ranks, kind), ranks, r)) {
            if (i != kIdle) rounds.push_back(i);
          }
        }
        std::sort(rounds.begin(), rounds.end());
        EXPECT_EQ(rounds, all);
      }
    }
  }
}

// "(a+b)", as the binary tree over [begin, end) adds what leaf(i) says.
std::string added(int64_t begin, int64_t end, const std::function<std::string(int64_t)>& leaf) {
  if (begin == end) return "";
  if (end - begin == 1) return leaf(begin);
  const int64_t middle = begin + (end - begin) / 2;
  const std::string left = added(begin, middle, leaf), right = added(middle, end, leaf);
  return left.empty() || right.empty() ? left + right : "(" + left + "+" + right + ")";
}

TEST(Assignment, RoundsOfAnyCountAddAsOneRankDoes) {
  for (const int ranks : {2, 4, 8}) {
    for (int64_t count = 1; count < 100; ++count) {
      const std::vector<int64_t> begins = round_begins(count, ranks, GradientSum::tree);
      const auto round = [&](int64_t i) {
        return added(0, ranks, [&](int64_t rank) {
          const int64_t mine = in_rounds(begins, ranks, static_cast<int>(rank))[static_cast<size_t>(i)];
          return mine == kIdle ? "" : std::to_string(mine);
        });
      };
      EXPECT_EQ(added(0, static_cast<int64_t>(begins.size()) - 1, round),
                added(0, count, [](int64_t i) { return std::to_string(i); }))
          << count << " on " << ranks;
      for (const GradientSum kind : {GradientSum::tree, GradientSum::running}) {
        EXPECT_EQ(static_cast<int64_t>(round_begins(count, ranks, kind).size()) - 1, round_count(count, ranks, kind));
      }
      if ((count & (count - 1)) == 0) {  // no rank idles
        EXPECT_EQ(begins, round_begins(count, ranks, GradientSum::running));
      }
    }
  }
}

}  // namespace
}  // namespace nibble
