// How products are cut into jobs: whole, and so that threads end together.

#include "nibble/core/ops/cpu/gemm/gemm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/ops/cpu/gemm/gemm_packed.h"
#include "nibble/tests/core/base/workers.h"

namespace nibble::ops::cpu {
namespace {

struct Sizes {
  int64_t rows, columns, depth;
};

GemmPlan plan_of(const Sizes& of) { return {gemm_kernel(isa(), DType::f32).shape(), of.rows, of.columns, of.depth}; }

// The part of the threads' time for which they wait for each other, where they take jobs in order. A job's panel costs
// as much as 16 rows.
double waiting(const GemmPlan& plan, int workers) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < workers; ++i) free.push(0);
  double all = 0, end = 0;
  for (int64_t job = 0; job < plan.jobs(); ++job) {
    const auto [m, n] = plan.piece(job);
    const double cost = static_cast<double>((m.size() + 16) * n.size()), ends = free.top() + cost;
    free.pop();
    free.push(ends);
    all += cost;
    end = std::max(end, ends);
  }
  return 1 - all / (workers * end);
}

TEST(GemmPlan, JobsAreEveryElementOnce) {
  for (const int workers : {1, 2, 3, 7, 16, 64, 128}) {
    const test::Workers as(workers);
    for (const Sizes& sizes : {Sizes{1, 1, 1},
                               {1, 5000, 8},
                               {5000, 1, 8},
                               {128, 576, 576},
                               {97, 1009, 300},
                               {2048, 2048, 2048},
                               {256, 2048, 32000},
                               {513, 5632, 2048}}) {
      const GemmPlan plan = plan_of(sizes);
      std::vector<uint8_t> met(static_cast<size_t>(sizes.rows * sizes.columns));
      for (int64_t job = 0; job < plan.jobs(); ++job) {
        const auto [m, n] = plan.piece(job);
        ASSERT_LT(m.begin, m.end);
        ASSERT_LT(n.begin, n.end);
        ASSERT_LE(m.end, sizes.rows);
        ASSERT_LE(n.end, sizes.columns);
        for (int64_t row = m.begin; row < m.end; ++row) {
          for (int64_t column = n.begin; column < n.end; ++column) {
            ASSERT_EQ(met[static_cast<size_t>(row * sizes.columns + column)]++, 0) << row << ' ' << column;
          }
        }
      }
      EXPECT_EQ(std::ranges::count(met, 0), 0) << sizes.rows << ' ' << sizes.columns << ' ' << workers;
    }
  }
}

TEST(GemmPlan, ThreadsOfLargeProductsEndTogether) {
  for (const int workers : {2, 3, 6, 8, 16, 24, 48, 64}) {
    const test::Workers as(workers);
    for (const Sizes& sizes : {Sizes{2048, 2048, 2048}, {2048, 5632, 2048}, {2048, 2048, 5632}, {2048, 4096, 4096}}) {
      EXPECT_LT(waiting(plan_of(sizes), workers), 0.06) << workers << ' ' << sizes.columns << ' ' << sizes.depth;
    }
  }
}

// Of 576 columns by 80 the last chunk would have 16.
TEST(GemmPlan, ChunksOfColumnsAreOfNearlyTheSameSize) {
  const test::Workers as(2);
  for (const int64_t columns : {576, 1009, 2048, 49152}) {
    const GemmPlan plan = plan_of({171, columns, 4096});
    int64_t least = columns, most = 0;
    for (int64_t chunk = 0; chunk < plan.column_chunks(); ++chunk) {
      const int64_t size = chunk_of_columns(chunk, plan.column_chunks(), columns, plan.shape.width).size();
      least = std::min(least, size);
      most = std::max(most, size);
    }
    EXPECT_LE(most, plan.chunk_columns);
    EXPECT_LT(most - least, 2 * plan.shape.width) << columns;
  }
  EXPECT_LT(waiting(plan_of({171, 576, 49152}), 2), 0.02);
}

TEST(GemmPlan, APanelServesAllRowsWhereThreadsEndTogetherAnyway) {
  const test::Workers as(2);
  const GemmPlan plan = plan_of({512, 49152, 576});
  EXPECT_LT(plan.jobs(), plan.column_chunks() + 2 * GemmPlan::kMostTurns);
}

}  // namespace
}  // namespace nibble::ops::cpu
