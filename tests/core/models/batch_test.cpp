#include "nibble/core/models/batch.h"

#include <gmock/gmock.h>

#include "nibble/core/models/decoder_config.h"
#include "nibble/tests/assets.h"

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

TEST(Batch, KnowsAnswersWhoseFirstTokenNothingPredicts) {
  MemoryPool pool;
  const std::vector<Sample> samples = {{{5, 6}, {5, 6}, 0}, {{5, 6}, {kIgnoreLabel, 6}, 1}, {{5, 6}, {}, 2}};
  EXPECT_THAT(make_batch(samples, pool).answers_open, ElementsAre(true, false, false));
}

Sample answered(int prompt, int32_t first, int length, uint64_t index) {
  Sample sample{.ids = {}, .labels = {}, .index = index, .group = 3};
  for (int t = 0; t < prompt + length; ++t) {
    sample.ids.push_back(t < prompt ? 100 + t : first + t);
    sample.labels.push_back(t < prompt ? kIgnoreLabel : sample.ids.back());
    sample.reference.push_back(static_cast<float>(t) + static_cast<float>(index) / 4);
  }
  return sample;
}

// The last token of the prompt predicts the answers' first ones, so each answer has one of its own.
TEST(Batch, SamplesOfAGroupShareTheirBeginningUpToTheFirstTarget) {
  MemoryPool pool;
  const std::vector<Sample> samples = {answered(20, 300, 2, 4), answered(20, 500, 3, 5), answered(17, 700, 1, 6)};
  const Batch batch = make_batch(samples, pool, true);
  ASSERT_EQ(batch.spans.size(), 3u);
  EXPECT_EQ(batch.ids.numel(), 22 + 4 + 18);
  EXPECT_EQ(sample_tokens(batch), 22 + 23 + 18);
  EXPECT_EQ(batch.label_tokens, 6);
  const ops::AttentionSpan& second = batch.spans[1];
  EXPECT_EQ(second.q_begin, 22);
  EXPECT_EQ(second.q_end, 26);
  EXPECT_EQ(second.k_begin, 0);
  EXPECT_EQ(second.k_end, 26);
  EXPECT_EQ(second.hole_begin, 19);
  EXPECT_EQ(second.hole_end, 22);
  EXPECT_EQ(batch.spans[2].hole(), 0);  // 16 tokens would be shared, but not those that the second one shares
  EXPECT_THAT(batch.answers, ElementsAre(19, 22, 26 + 16));
  const auto of_second = [&]<typename T>(const Tensor& tensor, T) {
    const std::span<const T> all = tensor.span<const T>();
    return std::vector<T>(all.begin() + 22, all.begin() + 26);
  };
  EXPECT_THAT(of_second(batch.ids, int32_t{}), ElementsAre(119, 520, 521, 522));
  EXPECT_THAT(of_second(batch.targets, int32_t{}), ElementsAre(520, 521, 522, kIgnoreLabel));
  EXPECT_THAT(of_second(batch.positions, int32_t{}), ElementsAre(19, 20, 21, 22));
  EXPECT_THAT(of_second(batch.row_keys, int64_t{}), ElementsAre((int64_t{5} << 32) + 19, (int64_t{5} << 32) + 20,
                                                                (int64_t{5} << 32) + 21, (int64_t{5} << 32) + 22));
  EXPECT_THAT(of_second(batch.reference, float{}), ElementsAre(21.25f, 22.25f, 23.25f, 0.0f));
  EXPECT_EQ(make_batch(samples, pool).ids.numel(), 22 + 23 + 18) << "where nobody asks for it";
  EXPECT_EQ(batch_rows(samples, true), batch.ids.numel());
  EXPECT_EQ(batch_rows(samples, false), 22 + 23 + 18);
}

TEST(Batch, ShortBeginningsAndPromptsWithTargetsAreNotShared) {
  MemoryPool pool;
  std::vector<Sample> samples = {answered(16, 300, 2, 0), answered(16, 500, 3, 1)};
  EXPECT_EQ(make_batch(samples, pool, true).ids.numel(), 18 + 19);
  samples = {answered(20, 300, 2, 0), answered(20, 500, 3, 1)};
  samples[1].prompt_counts = true;
  EXPECT_EQ(make_batch(samples, pool, true).ids.numel(), 22 + 23);
  samples[1].prompt_counts = false;
  samples[0].prompt_counts = true;  // whose rows stay
  EXPECT_EQ(make_batch(samples, pool, true).ids.numel(), 22 + 4);
  samples[1].group = 4;
  EXPECT_EQ(make_batch(samples, pool, true).ids.numel(), 22 + 23);
}

TEST(Batch, EmptyOrUnevenSamplesAreRefused) {
  MemoryPool pool;
  EXPECT_THROW(make_batch({}, pool), std::logic_error);
  EXPECT_THROW(make_batch(std::vector<Sample>{{{}, {}, 0}}, pool), std::logic_error);
  EXPECT_THROW(make_batch(std::vector<Sample>{{{1, 2}, {1}, 0}}, pool), std::logic_error);
}

// A layer with a state has to see the whole beginning; in these families the other layers have latent attention.
TEST(Batch, DocumentsShareNothingWhereSomeLayersHaveAState) {
  const auto share = [](const std::string& kind) {
    return read_decoder_config(test::data_path("goldens/model_types/" + kind + "/model")).documents_may_share();
  };
  for (const char* kind : {"kimi_linear", "bailing_hybrid", "lfm3", "lara_mini", "jamba"})
    EXPECT_FALSE(share(kind)) << kind;
  for (const char* kind : {"exaone", "mistral4", "axk1"}) EXPECT_TRUE(share(kind)) << kind;
}

}  // namespace
}  // namespace nibble
