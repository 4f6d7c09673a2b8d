#include "nibble/core/models/generate.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SampleToken, GreedyTakesTheLargestLogitAndTheLowestIdAmongEquals) {
  const std::vector<float> logits = {0, 3, 1, 3};
  EXPECT_EQ(sample_token(logits, {}, 0), 1);
}

TEST(SampleToken, DependsOnSeedSequenceAndPositionOnly) {
  const std::vector<float> logits(50, 0.0f);
  const SamplingOptions options{.temperature = 1, .seed = 7};
  std::vector<int32_t> first, again, other_seed, other_sequence;
  for (int64_t position = 0; position < 20; ++position) {
    first.push_back(sample_token(logits, options, position));
    again.push_back(sample_token(logits, options, position));
    other_seed.push_back(sample_token(logits, {.temperature = 1, .seed = 8}, position));
    other_sequence.push_back(sample_token(logits, options, position, 1));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other_seed);
  EXPECT_NE(first, other_sequence);
}

// Shares of 20000 draws; the standard deviation of a share is at most 0.0035.
std::vector<double> shares(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<double> counts(logits.size());
  for (int64_t position = 0; position < 20000; ++position) {
    counts[static_cast<size_t>(sample_token(logits, options, position))] += 1.0 / 20000;
  }
  return counts;
}

TEST(SampleToken, DrawsByTheSoftmaxOfTheLogitsOverTheTemperature) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.125f), std::log(0.375f)};
  const std::vector<double> plain = shares(logits, {.temperature = 1});
  EXPECT_NEAR(plain[0], 0.5, 0.015);
  EXPECT_NEAR(plain[1], 0.125, 0.015);
  const std::vector<double> cold = shares(logits, {.temperature = 0.5});  // squares: 0.25, 1/64, 9/64
  EXPECT_NEAR(cold[0], 0.25 / (0.25 + 1.0 / 64 + 9.0 / 64), 0.015);
}

TEST(SampleToken, TopKAndTopPLeaveTheMostProbable) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.125f), std::log(0.375f)};
  const std::vector<double> top_k = shares(logits, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(top_k[1], 0);
  EXPECT_NEAR(top_k[0], 0.5 / 0.875, 0.015);
  EXPECT_NEAR(shares(logits, {.temperature = 1, .top_p = 0.4f})[0], 1, 1e-9);  // the first alone is enough
  const std::vector<double> top_p = shares(logits, {.temperature = 1, .top_p = 0.6f});
  EXPECT_EQ(top_p[1], 0);
  EXPECT_NEAR(top_p[0], 0.5 / 0.875, 0.015);
}

TEST(SampleToken, RefusesLogitsThatAreNoNumbersAndOptionsOutOfRange) {
  EXPECT_THROW(sample_token(std::vector<float>{0, NAN}, {}, 3), NumericError);
  EXPECT_THROW(sample_token(std::vector<float>{0, INFINITY}, {}, 3), NumericError);
  EXPECT_THROW(sample_token(std::vector<float>{-INFINITY, -INFINITY}, {}, 3), NumericError);
  EXPECT_THROW(check({.temperature = -1}), UsageError);
  EXPECT_THROW(check({.temperature = NAN}), UsageError);
  EXPECT_THROW(check({.top_k = -1}), UsageError);
  EXPECT_THROW(check({.top_p = 0}), UsageError);
  EXPECT_THROW(check({.top_p = 1.5f}), UsageError);
}

class Generate : public ::testing::Test {
 protected:
  Rank rank_;
  Decoder decoder_ =
      random_decoder(parse_decoder_config(R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 24,
          "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40, "max_position_embeddings": 20,
          "initializer_range": 0.5})",
                                          "test"),
                     1, rank_.context());
};

TEST_F(Generate, IsTheSameAsRunningTheWholeTextEachTime) {
  const std::vector<int32_t> prompt = {3, 17, 8};
  const SamplingOptions sampling{.temperature = 1.5, .top_k = 10, .seed = 3};
  const std::vector<int32_t> made =
      generate(decoder_, prompt, {.max_new_tokens = 10, .sampling = sampling, .stop_ids = {}}, rank_.step());
  ASSERT_EQ(made.size(), 10u);
  Sample text{.ids = prompt, .labels = {}};
  for (int32_t id : made) {
    const std::vector<float> logits = all_logits(decoder_, make_batch({&text, 1}, rank_.context().pool), rank_.step());
    EXPECT_EQ(sample_token(std::span(logits).last(40), sampling, static_cast<int64_t>(text.ids.size())), id);
    text.ids.push_back(id);
  }
}

TEST_F(Generate, StopsBeforeAStopIdAtTheCallersWordAndAtTheLastPosition) {
  const std::vector<int32_t> prompt = {3, 17, 8};
  const std::vector<int32_t> all = generate(decoder_, prompt, {.max_new_tokens = 100, .stop_ids = {}}, rank_.step());
  EXPECT_EQ(all.size(), 17u);
  const std::vector<int32_t> stopped =
      generate(decoder_, prompt, {.max_new_tokens = 100, .stop_ids = {all[4]}}, rank_.step());
  EXPECT_EQ(stopped, std::vector<int32_t>(all.begin(), std::find(all.begin(), all.end(), all[4])));
  std::vector<int32_t> seen;
  const auto until_two = [&](int32_t id) {
    seen.push_back(id);
    return seen.size() < 2;
  };
  EXPECT_EQ(generate(decoder_, prompt, {.max_new_tokens = 100, .stop_ids = {}}, rank_.step(), until_two), seen);
  EXPECT_THAT(seen, ElementsAre(all[0], all[1]));
}

TEST_F(Generate, RefusesPromptsTheModelCannotRead) {
  const auto error = [&](std::vector<int32_t> prompt) {
    return error_of<InputError>([&] { generate(decoder_, prompt, {}, rank_.step()); });
  };
  EXPECT_THAT(error({}), HasSubstr("no tokens"));
  EXPECT_THAT(error({1, 40}), HasSubstr("id 40 is outside the vocabulary of 40"));
  EXPECT_THAT(error(std::vector<int32_t>(21, 1)), HasSubstr("21 tokens, the model holds 20"));
}

}  // namespace
}  // namespace nibble
