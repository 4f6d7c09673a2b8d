#include "nibble/core/models/batch.h"

#include <gmock/gmock.h>

namespace nibble {
namespace {

using ::testing::ElementsAre;

TEST(Batch, DocumentsStandOneAfterAnotherWithTheirOwnPositionsAndSpans) {
  MemoryPool pool;
  const std::vector<Sample> samples = {{{5, 6, 7}, {kIgnoreLabel, 6, 7}, 4}, {{8, 9}, {8, 9}, 11}};
  const Batch batch = make_batch(samples, pool);
  EXPECT_THAT(batch.ids.span<const int32_t>(), ElementsAre(5, 6, 7, 8, 9));
  EXPECT_THAT(batch.positions.span<const int32_t>(), ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(batch.row_keys.span<const int64_t>(),
              ElementsAre(int64_t{4} << 32, (int64_t{4} << 32) + 1, (int64_t{4} << 32) + 2, int64_t{11} << 32,
                          (int64_t{11} << 32) + 1));
  ASSERT_EQ(batch.spans.size(), 2u);
  EXPECT_EQ(batch.spans[1].q_begin, 3);
  EXPECT_EQ(batch.spans[1].q_end, 5);
  EXPECT_EQ(batch.spans[1].k_begin, 3);
  EXPECT_EQ(batch.spans[1].k_end, 5);
}

TEST(Batch, TargetsAreTheNextLabelAndNeverCrossIntoTheNextDocument) {
  MemoryPool pool;
  const std::vector<Sample> samples = {{{5, 6, 7}, {5, kIgnoreLabel, 7}, 0}, {{8, 9}, {8, 9}, 1}};
  const Batch batch = make_batch(samples, pool);
  EXPECT_THAT(batch.targets.span<const int32_t>(), ElementsAre(kIgnoreLabel, 7, kIgnoreLabel, 9, kIgnoreLabel));
  EXPECT_EQ(batch.label_tokens, 2);
}

TEST(Batch, SamplesWithoutLabelsHaveNoTargets) {
  MemoryPool pool;
  const std::vector<Sample> samples = {{{5, 6}, {}, 0}};
  const Batch batch = make_batch(samples, pool);
  EXPECT_THAT(batch.targets.span<const int32_t>(), ElementsAre(kIgnoreLabel, kIgnoreLabel));
  EXPECT_EQ(batch.label_tokens, 0);
}

TEST(Batch, EmptyOrUnevenSamplesAreRefused) {
  MemoryPool pool;
  EXPECT_THROW(make_batch({}, pool), std::logic_error);
  EXPECT_THROW(make_batch(std::vector<Sample>{{{}, {}, 0}}, pool), std::logic_error);
  EXPECT_THROW(make_batch(std::vector<Sample>{{{1, 2}, {1}, 0}}, pool), std::logic_error);
}

}  // namespace
}  // namespace nibble
