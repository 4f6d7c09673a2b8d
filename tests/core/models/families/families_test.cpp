// Every family against Transformers: the cases of tests/oracles/families.py and families_named.py.

#include <algorithm>

#include "nibble/tests/assets.h"
#include "nibble/tests/core/models/golden.h"

namespace nibble {
namespace {

using namespace nibble::test;

const std::filesystem::path kCommitted = std::string(kSourceDir) + "/tests/data/goldens/families";

std::vector<std::string> committed_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kCommitted)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class Families : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_.emplace(kCommitted / GetParam());
    decoder_.emplace(load_decoder(golden_->model, rank_.context()));
  }
  Batch batch() { return make_batch(golden_->samples, rank_.context().pool); }

  Rank rank_;
  std::optional<FamilyCase> golden_;
  std::optional<Decoder> decoder_;
};

TEST_P(Families, LogitsAreThoseOfTransformers) {
  const std::vector<float> wanted = read_floats(golden_->folder / "logits.npy");
  const double rms = norm(wanted) / std::sqrt(static_cast<double>(wanted.size()));
  EXPECT_LE(largest_difference(all_logits(*decoder_, batch(), rank_.step()), wanted), 1e-4 * std::max(1.0, rms));
}

TEST_P(Families, EveryGradientIsThatOfTransformers) {
  make_trainable(*decoder_, rank_.context());
  const Batch both = batch();
  ASSERT_EQ(both.label_tokens, golden_->record["label_tokens"].get<int64_t>());
  const double tokens = static_cast<double>(both.label_tokens);
  const double loss = decoder_->loss_sum_and_gradients(both, rank_.step(), static_cast<float>(1 / tokens)) / tokens;
  EXPECT_NEAR(loss, golden_->record["loss"].get<double>(), 1e-4);
  EXPECT_NEAR(decoder_->loss_sum(both, rank_.step()) / tokens, loss, 1e-12);

  expect_gradients(gradients_of(*decoder_), golden_->folder / "grads.safetensors");
}

// Three answers of 3 to 9 tokens to one prompt. Sums have another order: up to roundings of f32.
TEST_P(Families, DocumentsThatShareABeginningAreAsIfEachHadItsOwn) {
  if (!decoder_->config().documents_may_share()) GTEST_SKIP() << "its documents do not share";
  make_trainable(*decoder_, rank_.context());
  std::vector<Sample> samples;
  for (uint64_t answer = 0; answer < 3; ++answer) {
    Sample& sample = samples.emplace_back();
    for (int64_t t = 0; t < 20 + 3 * static_cast<int64_t>(answer); ++t) {
      const bool asked = t < 17;
      const int64_t id = asked ? 5 * t + t * t : 11 * t + 31 * static_cast<int64_t>(answer);
      sample.ids.push_back(static_cast<int32_t>(id % decoder_->config().vocab_size));
      sample.labels.push_back(asked ? kIgnoreLabel : sample.ids.back());
    }
    sample.index = answer;
    sample.group = 0;
  }
  const Batch apart = make_batch(samples, rank_.context().pool);
  const Batch shared = make_batch(samples, rank_.context().pool, true);
  ASSERT_EQ(shared.ids.numel(), apart.ids.numel() - 2 * 16);
  const double loss = decoder_->loss_sum_and_gradients(apart, rank_.step(), 0.1f);
  const auto wanted = gradients_of(*decoder_);
  decoder_->visit([](Parameter& parameter) {
    if (parameter.gradient) parameter.gradient.zero();  // buffers have none
  });
  EXPECT_NEAR(decoder_->loss_sum_and_gradients(shared, rank_.step(), 0.1f), loss, 1e-5 * loss);
  double squares = 0;
  for (const auto& [name, gradient] : wanted) squares += std::pow(norm(gradient), 2);
  const auto result = gradients_of(*decoder_);
  for (const auto& [name, gradient] : wanted) {
    EXPECT_LE(distance(result.at(name), gradient), 1e-4 * norm(gradient) + 1e-6 * std::sqrt(squares)) << name;
  }
}

TEST_P(Families, GreedyTextIsThatOfTransformers) {
  const size_t prompt = golden_->record["prompt_tokens"].get<size_t>();
  const std::vector<int32_t> wanted = read_ids(golden_->folder / "greedy.npy");
  const std::span<const int32_t> ids(golden_->samples[0].ids.data(), prompt);
  const GenerateOptions options{.max_new_tokens = static_cast<int64_t>(wanted.size()), .stop_ids = {}};
  EXPECT_EQ(generate(*decoder_, ids, options, rank_.step()), wanted);
}

TEST_P(Families, CachedLogitsAreThoseOfTheWholeText) {
  const Sample& whole = golden_->samples[0];
  const StepContext step = rank_.step();
  const std::vector<float> wanted = all_logits(*decoder_, make_batch({&whole, 1}, step.pool()), step);
  KvCache cache = decoder_->make_cache(step);
  std::vector<float> result;
  size_t begin = 0;
  for (size_t count : {size_t{5}, size_t{1}, size_t{3}, whole.ids.size() - 9}) {
    const Sample piece{
        .ids = {whole.ids.begin() + static_cast<long>(begin), whole.ids.begin() + static_cast<long>(begin + count)},
        .labels = {}};
    const std::vector<float> part = all_logits(*decoder_, make_batch({&piece, 1}, step.pool()), step, &cache);
    result.insert(result.end(), part.begin(), part.end());
    begin += count;
  }
  EXPECT_LE(largest_difference(result, wanted), 2e-5);
}

TEST_P(Families, RecomputedLayersGiveTheSameBits) {
  make_trainable(*decoder_, rank_.context());
  const double kept_loss = decoder_->loss_sum_and_gradients(batch(), rank_.step(), 0.125f);
  const auto kept = gradients_of(*decoder_);
  decoder_->visit([](Parameter& parameter) {
    if (parameter.gradient) parameter.gradient.zero();  // buffers have none
  });
  decoder_->set_recompute(Recompute::block);
  EXPECT_EQ(decoder_->loss_sum_and_gradients(batch(), rank_.step(), 0.125f), kept_loss);
  EXPECT_EQ(gradients_of(*decoder_), kept);
}

std::string test_name(const ::testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Committed, Families, ::testing::ValuesIn(committed_cases()), test_name);

}  // namespace
}  // namespace nibble
