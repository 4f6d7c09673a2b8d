#include "nibble/core/models/head_loss.h"

#include <gtest/gtest.h>
#include <algorithm>

namespace nibble {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// 32 MiB are 170 rows of 49,152 logits, which would leave two rows of 512 for a pass over the whole weight.
TEST(HeadChunkRows, AreNearlyAsManyEachTime) {
  EXPECT_EQ(head_chunk_rows(512, 49152, 576, false), 171);
  EXPECT_EQ(head_chunk_rows(2048, 32000, 2048, false), 256);
  EXPECT_EQ(head_chunk_rows(1024, 151936, 896, false), 128);
  EXPECT_EQ(head_chunk_rows(2048, 262144, 1152, true), 512);
}

TEST(HeadChunkRows, AreAllOfAFewAndAtLeastOne) {
  EXPECT_EQ(head_chunk_rows(100, 49152, 576, false), 100);
  EXPECT_EQ(head_chunk_rows(1, 49152, 576, false), 1);
  EXPECT_EQ(head_chunk_rows(0, 49152, 576, false), 1);
}

TEST(HeadChunkRows, TakeAtMostAnEighthMore) {
  for (int64_t rows = 1; rows < 3000; ++rows) {
    const int64_t chunk = head_chunk_rows(rows, 32000, 2048, false);
    EXPECT_LE(chunk * 32000 * 4, 36 * kMiB) << rows;
    const int64_t last = rows - (rows - 1) / chunk * chunk;
    EXPECT_GE(2 * last, std::min(rows, chunk)) << rows;
  }
}

}  // namespace
}  // namespace nibble
