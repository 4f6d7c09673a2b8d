#include "nibble/core/models/generation/answers.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "nibble/core/base/parallel.h"
#include "nibble/core/models/load.h"
#include "nibble/tests/core/models/golden.h"

namespace nibble {
namespace {

using namespace nibble::test;

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3,
    "max_position_embeddings": 48, "tie_word_embeddings": false})";
constexpr const char* kHybrid = R"({"model_type": "lfm2", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3,
    "max_position_embeddings": 48, "conv_L_cache": 3, "layer_types": ["conv", "full_attention"],
    "block_auto_adjust_ff_dim": false})";

constexpr const char* kLatent = R"({"model_type": "youtu", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.3,
    "max_position_embeddings": 48, "q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6,
    "v_head_dim": 8, "tie_word_embeddings": false})";

const std::vector<AnsweredPrompt> kPrompts = {{.ids = {3, 7, 9}, .sequences = {0, 1, 2}},
                                              {.ids = {11, 5}, .sequences = {3, 4, 5}},
                                              {.ids = {1, 2, 3, 4, 5, 6, 7, 8}, .sequences = {6, 7, 8}}};

AnswerOptions warm() {
  AnswerOptions options;
  options.sampling = {.temperature = 1.2f, .seed = 5};
  options.max_new_tokens = 14;
  options.stop_ids = {2};
  return options;
}

class Answers : public ::testing::TestWithParam<const char*> {
 protected:
  /// By sequence.
  std::map<int64_t, Answer> sample(const std::vector<AnsweredPrompt>& prompts, const AnswerOptions& options,
                                   int passes = 1000) {
    std::map<int64_t, Answer> found;
    const NextLogits next = [&](const Batch& batch, KvCache& cache) {
      EXPECT_GE(batch.spans.size(), 5u) << "products of fewer rows add in another order";
      rows_ += batch.ids.numel();
      return decoder_.next_logits(batch, step_, cache);
    };
    sample_answers(
        decoder_, next, prompts, options, step_,
        [&](Answer answer) { found.emplace(answer.sequence, std::move(answer)); }, [&] { return passes-- > 0; });
    return found;
  }

  static void expect_same(const std::map<int64_t, Answer>& one, const std::map<int64_t, Answer>& other) {
    ASSERT_EQ(one.size(), other.size());
    for (const auto& [sequence, answer] : one) {
      EXPECT_EQ(answer.ids, other.at(sequence).ids) << sequence;
      EXPECT_EQ(answer.log_probs, other.at(sequence).log_probs) << sequence;
      EXPECT_EQ(answer.truncated, other.at(sequence).truncated) << sequence;
    }
  }

  Rank rank_;
  Decoder decoder_ = random_decoder(parse_decoder_config(GetParam(), "test"), 3, rank_.context());
  StepContext step_ = rank_.step();
  int64_t rows_ = 0;
};

TEST_P(Answers, DoNotDependOnTheOthers) {
  const auto all = sample(kPrompts, warm());
  ASSERT_EQ(all.size(), 9u);
  for (const int64_t together : {1, 2, 4, 32}) {
    AnswerOptions options = warm();
    options.together = together;
    options.prompt_tokens = together;
    expect_same(sample(kPrompts, options), all);
  }
  const std::vector<AnsweredPrompt> other_order = {{.ids = kPrompts[2].ids, .sequences = {8, 6}},
                                                   {.ids = kPrompts[0].ids, .sequences = {2, 1, 0}},
                                                   {.ids = kPrompts[2].ids, .sequences = {7}},
                                                   {.ids = kPrompts[1].ids, .sequences = {4, 3, 5}}};
  const auto reordered = sample(other_order, warm());
  for (const auto& [sequence, answer] : all) EXPECT_EQ(answer.ids, reordered.at(sequence).ids);
  const int before = threads();
  set_threads(before == 1 ? 2 : 1);
  expect_same(sample(kPrompts, warm()), all);
  set_threads(before);
}

TEST_P(Answers, GreedyOnesAreThoseOfGenerate) {
  AnswerOptions options = warm();
  options.sampling.temperature = 0;
  const auto found = sample(kPrompts, options);
  for (const auto& [sequence, answer] : found) {
    GenerateOptions alone;
    alone.max_new_tokens = options.max_new_tokens;
    alone.stop_ids = options.stop_ids;
    std::vector<int32_t> expected = generate(decoder_, kPrompts[answer.prompt].ids, alone, step_);
    if (!answer.truncated) expected.push_back(2);
    EXPECT_EQ(answer.ids, expected) << sequence;
  }
}

TEST_P(Answers, ComputeAPromptOnce) {
  AnswerOptions options = warm();
  options.max_new_tokens = 1;
  options.together = 9;
  sample(kPrompts, options);
  EXPECT_LE(rows_, 13 + 4) << "13 tokens of prompts, and what fills the pass";
}

TEST_P(Answers, LogProbabilitiesAreThoseOfTheWholeText) {
  const auto found = sample(kPrompts, warm());
  for (const auto& [sequence, answer] : found) {
    Sample text;
    text.ids = kPrompts[answer.prompt].ids;
    const size_t begin = text.ids.size();
    text.ids.insert(text.ids.end(), answer.ids.begin(), answer.ids.end());
    const Batch batch = make_batch(std::span(&text, 1), rank_.context().pool);
    const std::vector<float> logits = all_logits(decoder_, batch, step_);
    for (size_t t = 0; t < answer.ids.size(); ++t) {
      const float* row = logits.data() + (begin + t - 1) * 40;
      double sum = 0;
      for (size_t v = 0; v < 40; ++v) sum += std::exp(static_cast<double>(row[v]) / 1.2f);
      const double log_prob = static_cast<double>(row[answer.ids[t]]) / 1.2f - std::log(sum);
      EXPECT_NEAR(answer.log_probs[t], log_prob, 1e-4);
    }
  }
}

TEST_P(Answers, StopWhereTheyAreToldTo) {
  AnswerOptions options = warm();
  options.ends = [](std::span<const int32_t> answer) { return answer.size() == 3; };
  for (const auto& [sequence, answer] : sample(kPrompts, options)) {
    EXPECT_LE(answer.ids.size(), 3u);
    EXPECT_FALSE(answer.truncated);
  }
  EXPECT_TRUE(sample(kPrompts, warm(), 0).empty());
}

TEST(AnswersMemory, IsThatOfTheLongestPromptWhereverItStands) {
  nlohmann::json config = nlohmann::json::parse(kLlama);
  config["max_position_embeddings"] = 256;
  const auto peak = [&](size_t of_others) {
    Rank rank;
    Decoder decoder = random_decoder(parse_decoder_config(config.dump(), "test"), 3, rank.context());
    rank.context().pool.reset_peak();
    std::vector<AnsweredPrompt> prompts;
    for (int64_t p = 0; p < 8; ++p) prompts.push_back({std::vector<int32_t>(p < 7 ? of_others : 100, 3), {p}});
    AnswerOptions options = warm();
    options.max_new_tokens = 2;
    options.prompt_tokens = 128;
    const StepContext step = rank.step();
    const NextLogits next = [&](const Batch& batch, KvCache& cache) { return decoder.next_logits(batch, step, cache); };
    sample_answers(
        decoder, next, prompts, options, step, [](const Answer&) {}, [] { return true; });
    return rank.context().pool.peak();
  };
  EXPECT_LE(peak(70), peak(100));
}

INSTANTIATE_TEST_SUITE_P(Models, Answers, ::testing::Values(kLlama, kHybrid, kLatent));

// Pearson's statistic of 50000 draws against the distribution that temperature, top-k, top-p and min-p leave of a
// softmax; a fair sampler is above the bound once in 100000 seeds.
void expect_distributed(const SamplingOptions& options) {
  std::vector<float> logits;
  for (int v = 0; v < 12; ++v) logits.push_back(std::sin(static_cast<float>(v) * 2.3f) * 2);
  std::vector<double> probability;
  std::vector<size_t> order(logits.size());
  for (size_t v = 0; v < order.size(); ++v) order[v] = v;
  std::ranges::sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  for (const float z : logits) probability.push_back(std::exp(static_cast<double>(z) / options.temperature));
  size_t left = options.top_k > 0 ? static_cast<size_t>(options.top_k) : order.size();
  const auto sum_of_left = [&] {
    double sum = 0;
    for (size_t k = 0; k < left; ++k) sum += probability[order[k]];
    return sum;
  };
  const double all = sum_of_left();
  while (left > 1 && sum_of_left() - probability[order[left - 1]] >= static_cast<double>(options.top_p) * all) --left;
  while (probability[order[left - 1]] < static_cast<double>(options.min_p) * probability[order[0]]) --left;
  const double sum = sum_of_left();
  for (size_t k = left; k < order.size(); ++k) probability[order[k]] = 0;
  constexpr int kDraws = 50000;
  std::vector<double> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(sample_token(logits, options, i, 3))];
  double statistic = 0;
  for (size_t v = 0; v < counts.size(); ++v) {
    const double expected = kDraws * probability[v] / sum;
    if (expected == 0) {
      EXPECT_EQ(counts[v], 0);
    }
    if (expected > 0) statistic += (counts[v] - expected) * (counts[v] - expected) / expected;
  }
  const double freedom = static_cast<double>(left) - 1, h = 2 / (9 * freedom);
  const double bound = freedom * std::pow(1 - h + 4.265 * std::sqrt(h), 3);  // Wilson and Hilferty
  EXPECT_LT(statistic, bound);
}

TEST(SampleToken, IsDistributedAsTheSoftmaxSays) {
  expect_distributed({.temperature = 1, .seed = 1});
  expect_distributed({.temperature = 0.7f, .seed = 2});
  expect_distributed({.temperature = 1.5f, .top_k = 5, .seed = 3});
  expect_distributed({.temperature = 1, .top_p = 0.8f, .seed = 4});
  expect_distributed({.temperature = 1.5f, .min_p = 0.1f, .seed = 5});
  expect_distributed({.temperature = 1.3f, .top_k = 9, .top_p = 0.9f, .min_p = 0.05f, .seed = 6});
}

}  // namespace
}  // namespace nibble
