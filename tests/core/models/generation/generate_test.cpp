#include "nibble/core/models/generation/generate.h"

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

TEST(SampleToken, IdsBehindTheVocabularyOfTheTokenizerAreNeverDrawn) {
  const std::vector<float> logits = {0, 1, 0, 9, 8};
  EXPECT_EQ(sample_token(logits, {.vocabulary = 3}, 0), 1);
  EXPECT_EQ(sample_token(logits, {.vocabulary = 9}, 0), 3) << "a tokenizer with more tokens than the model";
  for (int64_t position = 0; position < 100; ++position) {
    EXPECT_LT(sample_token(logits, {.temperature = 1, .vocabulary = 3}, position), 3);
    EXPECT_LT(sample_token(logits, {.temperature = 1, .top_k = 4, .vocabulary = 3}, position), 3);
  }
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
  const std::vector<int32_t> result =
      generate(decoder_, prompt, {.max_new_tokens = 10, .sampling = sampling, .stop_ids = {}}, rank_.step());
  ASSERT_EQ(result.size(), 10u);
  Sample text{.ids = prompt, .labels = {}};
  for (int32_t id : result) {
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

/// Logits of the last tokens of sequences that grow together in one cache by the tokens given, and of each by itself.
class Together : public ::testing::TestWithParam<DType> {
 protected:
  Together() {
    config_ = parse_decoder_config(R"({"model_type": "llama", "hidden_size": 96, "intermediate_size": 160,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 200,
        "initializer_range": 0.2})",
                                   "test");
  }

  /// Texts of sequences [0, count): prompts of 5 tokens and more, then kSteps tokens one by one.
  std::vector<std::vector<float>> logits(Decoder& decoder, const std::vector<int64_t>& texts) {
    const StepContext step = rank_.step(GetParam());
    KvCache cache = decoder.make_cache(step, static_cast<int64_t>(texts.size()));
    std::vector<std::vector<float>> result(texts.size());
    for (int64_t round = 0; round <= kSteps; ++round) {
      std::vector<Sample> next;
      for (const int64_t text : texts) {
        Sample& sample = next.emplace_back();
        const int64_t prompt = 5 + 17 * text % 23;
        for (int64_t t = round == 0 ? 0 : prompt + round - 1; t < prompt + round; ++t) {
          sample.ids.push_back(static_cast<int32_t>((t * t + 31 * text + 7) % 200));
        }
      }
      const Tensor all = decoder.next_logits(make_batch(next, step.pool()), step, cache);
      EXPECT_EQ(all.shape(), (Shape{static_cast<int64_t>(texts.size()), 200}));
      for (size_t i = 0; i < texts.size(); ++i) {
        const std::span<const float> row = all.span<const float>().subspan(200 * i, 200);
        result[i].insert(result[i].end(), row.begin(), row.end());
      }
    }
    return result;
  }

  static constexpr int64_t kSteps = 70;  // beyond the room of 64 tokens that a cache begins with
  Rank rank_;
  DecoderConfig config_;
};

TEST_P(Together, UpToFourSequencesHaveTheBitsOfEachAlone) {
  Decoder decoder = random_decoder(config_, 1, rank_.context());
  const auto four = logits(decoder, {0, 1, 2, 3}), two = logits(decoder, {3, 1});
  for (int64_t text = 0; text < 4; ++text) {
    EXPECT_TRUE(four[static_cast<size_t>(text)] == logits(decoder, {text})[0]) << text;
  }
  EXPECT_TRUE(two[0] == four[3] && two[1] == four[1]);
}

// A product of more than four rows adds in another order than one of fewer, so that more sequences agree with each
// other to the bit, and with one alone as closely as roundings let them: the relative distance of the logits is 1.4e-6
// in f32, 5e-3 in bf16.
TEST_P(Together, MoreSequencesAgreeWithEachOther) {
  Decoder decoder = random_decoder(config_, 1, rank_.context());
  const auto seven = logits(decoder, {0, 1, 2, 3, 4, 5, 6}), five = logits(decoder, {6, 4, 2, 1, 0});
  EXPECT_TRUE(five[0] == seven[6] && five[1] == seven[4] && five[2] == seven[2] && five[3] == seven[1] &&
              five[4] == seven[0]);
  const std::vector<float> alone = logits(decoder, {2})[0];
  EXPECT_LE(distance(seven[2], alone), (GetParam() == DType::f32 ? 5e-6 : 2e-2) * norm(alone));
}

INSTANTIATE_TEST_SUITE_P(, Together, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

TEST_F(Generate, SeveralPromptsGiveWhatEachGives) {
  const NextLogits next = [&](const Batch& batch, KvCache& cache) {
    return decoder_.next_logits(batch, rank_.step(), cache);
  };
  GenerateOptions options{.sampling = {.temperature = 1.5, .top_k = 10, .seed = 3}, .stop_ids = {7}};
  const std::vector<Prompt> prompts = {{{3, 17, 8, 1, 5}, 9, 0},
                                       {{2, 2, 4, 8, 16, 32}, 30, 5},
                                       {{9, 8, 7, 6, 5, 4, 3, 2}, 1, 2},
                                       {{11, 12, 13, 14, 15}, 12, 3}};
  std::vector<std::vector<int32_t>> wanted;
  for (const Prompt& prompt : prompts) {
    wanted.push_back(generate(decoder_, next, {&prompt, 1}, options, rank_.step()).front());
  }
  EXPECT_EQ(wanted[2].size(), 1u);
  for (const int64_t tokens : {512, 11, 1}) {  // all together, by twos, one after another
    options.tokens_together = tokens;
    std::vector<std::vector<int32_t>> heard(prompts.size());
    const auto on_token = [&](size_t i, int32_t id) {
      heard[i].push_back(id);
      return true;
    };
    EXPECT_EQ(generate(decoder_, next, prompts, options, rank_.step(), on_token), wanted) << tokens;
    EXPECT_EQ(heard, wanted);
  }
  const auto ends_second = [](size_t i, int32_t) { return i != 1; };
  const auto ended = generate(decoder_, next, prompts, options, rank_.step(), ends_second);
  EXPECT_EQ(ended[1], std::vector<int32_t>(wanted[1].begin(), wanted[1].begin() + 1));
  EXPECT_EQ(ended[3], wanted[3]);
}

// Another text takes the place of one that has ended, while the others go on.
TEST_F(Generate, ASequenceOfTheCacheBeginsAnew) {
  const StepContext step = rank_.step();
  KvCache cache = decoder_.make_cache(step, 2);
  const auto feed = [&](std::vector<Sample> samples, std::vector<int64_t> sequences) {
    Batch batch = make_batch(samples, step.pool());
    batch.sequences = std::move(sequences);
    return decoder_.next_logits(batch, step, cache);
  };
  feed({{.ids = {1, 2, 3, 4, 5}, .labels = {}}, {.ids = {6, 7, 8, 9, 10, 11}, .labels = {}}}, {});
  cache.forget(0);
  const Tensor result = feed({{.ids = {20, 21, 22, 23, 24}, .labels = {}}, {.ids = {12}, .labels = {}}}, {0, 1});
  EXPECT_EQ(cache.length(0), 5);
  EXPECT_EQ(cache.length(1), 7);
  const std::vector<Sample> whole = {{.ids = {20, 21, 22, 23, 24}, .labels = {}},
                                     {.ids = {6, 7, 8, 9, 10, 11, 12}, .labels = {}}};
  const std::vector<float> all = all_logits(decoder_, make_batch(whole, step.pool()), step);
  const std::vector<float> first(all.begin() + 4 * 40, all.begin() + 5 * 40), second(all.end() - 40, all.end());
  const std::span<const float> rows = result.span<const float>();
  EXPECT_LE(largest_difference(rows.first(40), first), 2e-5);
  EXPECT_LE(largest_difference(rows.last(40), second), 2e-5);
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
