// Options of LoraConfig that reach further than A and B beside a Linear: each starts where it should, has the gradient
// of what it computes, and comes back the same from its directory and from a merged model. What PEFT itself computes is
// held in tests/oracles/peft_options.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/adapters/attach.h"
#include "nibble/adapters/merging/merge.h"
#include "nibble/adapters/peft/stored_tables.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/resize.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/tests/adapters/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Option {
  const char* name;
  void (*set)(AdapterOptions&);
  bool exact_gradient = true;  // DoRA holds the norms constant
};

class OptionTest : public ::testing::TestWithParam<Option> {
 protected:
  OptionTest() { set_threads(1); }

  AdapterOptions options() const {
    AdapterOptions result;
    result.r = 4;
    result.target_modules.names = {"q_proj", "down_proj"};
    GetParam().set(result);
    return result;
  }

  double loss(Decoder& decoder, const Batch& batch) {
    return decoder.loss_sum(batch, step) / static_cast<double>(batch.label_tokens);
  }

  test::TemporaryDirectory scratch;
  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool, 1, 11};
  StepContext step{rank};
};

TEST_P(OptionTest, StartsAtTheBaseAndComesBackFromItsDirectoryAndMerged) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const std::filesystem::path golden = test::data_path("lora-golden");
  const Batch batch = make_batch(test::read_samples(golden / "input_ids.npy", golden / "labels.npy"), pool);
  Decoder decoder = load_decoder(model, rank);
  const double before = loss(decoder, batch);
  const AttachedAdapter attached = attach_adapter(decoder, options(), rank);
  EXPECT_NEAR(loss(decoder, batch), before, 1e-4);

  StepContext training = step;
  training.training = true;
  test::AdamW optimizer(decoder, pool);
  for (int i = 0; i < 2; ++i) {
    test::zero_gradients(decoder);
    test::mean_loss(decoder, batch, training);
    optimizer.step(1e-2f, 0);
  }
  EXPECT_LT(loss(decoder, batch), before - 0.05);

  save_adapter(decoder, attached, scratch.path() / "adapter");
  const std::vector<float> logits = test::all_logits(decoder, batch, step);
  const PeftAdapter saved = read_peft_directory(scratch.path() / "adapter");
  Decoder again = load_decoder(model, rank);
  EXPECT_THAT(load_adapter(again, saved, false, rank).notes, ::testing::IsEmpty());
  EXPECT_LT(test::largest_distance(test::all_logits(again, batch, step), logits), 1e-3);

  const CheckpointDir checkpoint(model);
  merge_adapter(plain_source(checkpoint), saved, scratch.path() / "merged", {.dtype = DType::f32}, pool);
  Decoder merged = load_decoder(scratch.path() / "merged", rank);
  EXPECT_LT(test::largest_distance(test::all_logits(merged, batch, step), logits), 1e-3);
}

class ExactOptionTest : public OptionTest {};

TEST_P(ExactOptionTest, HasTheGradientOfItsLoss) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const std::filesystem::path golden = test::data_path("lora-golden");
  const Batch batch = make_batch(test::read_samples(golden / "input_ids.npy", golden / "labels.npy"), pool);
  Decoder decoder = load_decoder(model, rank);
  attach_adapter(decoder, options(), rank);
  decoder.visit([&](Parameter& parameter) {  // away from zeros, where half of the gradients vanish
    if (!parameter.trainable) return;
    Tensor noise = Tensor::empty(pool, parameter.value.shape(), DType::f32);
    ops::fill_normal(noise, 0.02f, 5, std::hash<std::string>()(parameter.name));
    ops::add(noise, parameter.value);
  });
  test::zero_gradients(decoder);
  test::mean_loss(decoder, batch, step);
  std::vector<Parameter*> trained;
  decoder.visit([&](Parameter& parameter) {
    if (parameter.trainable) trained.push_back(&parameter);
  });
  for (size_t i = 0; i < trained.size(); i += std::max<size_t>(trained.size() / 5, 1)) {
    Parameter& parameter = *trained[i];
    const double square = ops::sum_of_squares(parameter.gradient);
    ASSERT_GT(square, 0) << parameter.name;
    const auto size = static_cast<float>(2e-3 / std::sqrt(square));
    ops::add(parameter.gradient, parameter.value, size);
    const double up = loss(decoder, batch);
    ops::add(parameter.gradient, parameter.value, -2 * size);
    const double down = loss(decoder, batch);
    ops::add(parameter.gradient, parameter.value, size);
    EXPECT_NEAR((up - down) / (2 * double{size}), square, 0.02 * square) << parameter.name;
  }
}

std::vector<Option> all_options() {
  return {Option{"Pissa", [](AdapterOptions& o) { o.init_lora_weights = LoraInit::pissa; }},
          Option{"PissaNiter",
                 [](AdapterOptions& o) {
                   o.init_lora_weights = LoraInit::pissa;
                   o.pissa_iterations = 4;
                 }},
          Option{"Olora", [](AdapterOptions& o) { o.init_lora_weights = LoraInit::olora; }},
          Option{"Embedding",
                 [](AdapterOptions& o) {
                   o.target_modules.names = {"embed_tokens", "q_proj"};
                 }},
          Option{"EmbeddingDora",
                 [](AdapterOptions& o) {
                   o.target_modules.names = {"embed_tokens", "q_proj"};
                   o.use_dora = true;
                 },
                 false},
          Option{"Tokens", [](AdapterOptions& o) {
                   o.trainable_token_indices = {{"", {261, 403, 410}}};
                 }}};
}

// DoRA holds the norms constant, here as in PEFT: its gradient is held against PEFT's by tests/oracles/peft_options.py.
std::vector<Option> options_with_exact_gradients() {
  std::vector<Option> result = all_options();
  std::erase_if(result, [](const Option& option) { return !option.exact_gradient; });
  return result;
}

// With an adapter at the end of each sublayer, whose product a recomputed layer leaves out.
class RecomputeTest : public OptionTest {
 protected:
  std::vector<std::vector<float>> gradients(Decoder& decoder, const Batch& batch, const StepContext& with) {
    test::zero_gradients(decoder);
    test::mean_loss(decoder, batch, with);
    std::vector<std::vector<float>> result;
    decoder.visit([&](Parameter& parameter) {
      if (!parameter.trainable) return;
      const std::span<const float> values = std::as_const(parameter.gradient).span<const float>();
      result.emplace_back(values.begin(), values.end());
    });
    return result;
  }
};

TEST_P(RecomputeTest, GivesTheSameBits) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const std::filesystem::path golden = test::data_path("lora-golden");
  const Batch batch = make_batch(test::read_samples(golden / "input_ids.npy", golden / "labels.npy"), pool);
  Decoder decoder = load_decoder(model, rank);
  AdapterOptions all = options();
  all.target_modules = {.names = {}, .pattern = "all-linear"};
  attach_adapter(decoder, all, rank);
  decoder.visit([&](Parameter& parameter) {  // B is zero at the start
    if (parameter.trainable) ops::fill_normal(parameter.value, 0.02f, 5, std::hash<std::string>()(parameter.name));
  });
  step.training = true;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    step.compute_dtype = dtype;
    decoder.set_recompute(Recompute::none);
    const auto kept = gradients(decoder, batch, step);
    EXPECT_FALSE(kept.empty());
    decoder.set_recompute(Recompute::block);
    EXPECT_EQ(gradients(decoder, batch, step), kept) << dtype_name(dtype);
  }
}

std::vector<Option> kinds() {
  return {Option{"Lora", [](AdapterOptions&) {}},
          Option{"LoraDropout", [](AdapterOptions& o) { o.lora_dropout = 0.3; }},
          Option{"LoraBias", [](AdapterOptions& o) { o.lora_bias = true; }},
          Option{"Dora", [](AdapterOptions& o) { o.use_dora = true; }}, Option{"DoraDropout", [](AdapterOptions& o) {
                                                                                 o.use_dora = true;
                                                                                 o.lora_dropout = 0.3;
                                                                               }}};
}

std::string name_of(const ::testing::TestParamInfo<Option>& result) { return result.param.name; }

INSTANTIATE_TEST_SUITE_P(LoraConfig, OptionTest, ::testing::ValuesIn(all_options()), name_of);
INSTANTIATE_TEST_SUITE_P(LoraConfig, ExactOptionTest, ::testing::ValuesIn(options_with_exact_gradients()), name_of);
INSTANTIATE_TEST_SUITE_P(LoraConfig, RecomputeTest, ::testing::ValuesIn(kinds()), name_of);

TEST(Vocabulary, DoesNotGrowWhereTheHeadKnowsFewerTokens) {
  const std::string model = std::string(kSourceDir) + "/tests/data/goldens/model_types/apertus1p5_text/model";
  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool, 1, 11};
  Decoder decoder = load_decoder(model, rank);
  const int64_t rows = decoder.config().vocab_size;
  const auto refusal = test::error_of<UsageError>([&] { resize_vocabulary(decoder, rows + 1, rank); });
  EXPECT_THAT(refusal, ::testing::HasSubstr("the head has rows for 90 of the 96 tokens"));
  PeftAdapter adapter;
  adapter.options.trainable_token_indices = {{"", {rows}}};
  EXPECT_EQ(test::error_of<UsageError>([&] { rows_needed(adapter, decoder.config()); }), refusal);
}

TEST(TokenRows, OfTokensBehindTheVocabularyMakeTheModelGrow) {
  const std::filesystem::path model = test::data_path("stories-llama");
  set_threads(1);
  const test::TemporaryDirectory scratch;
  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool, 1, 11};
  Decoder decoder = load_decoder(model, rank);
  const int64_t rows = decoder.config().vocab_size;
  resize_vocabulary(decoder, rows + 2, rank);
  AdapterOptions options;
  options.r = 2;
  options.trainable_token_indices = {{"", {rows + 1, rows}}};
  const AttachedAdapter attached = attach_adapter(decoder, options, rank);
  const int32_t added = static_cast<int32_t>(rows) + 1;
  const std::vector<Sample> samples{{.ids = {1, added, 403, added}, .labels = {}, .index = 0}};
  const Batch batch = make_batch(samples, pool);
  const std::vector<float> logits = test::all_logits(decoder, batch, StepContext{rank});
  ASSERT_EQ(logits.size(), static_cast<size_t>(4 * (rows + 2)));
  save_adapter(decoder, attached, scratch.path() / "adapter");
  const PeftAdapter saved = read_peft_directory(scratch.path() / "adapter");
  Decoder again = load_decoder(model, rank);
  load_adapter(again, saved, false, rank);
  EXPECT_EQ(again.config().vocab_size, rows + 2);
  EXPECT_EQ(test::all_logits(again, batch, StepContext{rank}), logits);
  const CheckpointDir checkpoint(model);
  merge_adapter(plain_source(checkpoint), saved, scratch.path() / "merged", {.dtype = DType::f32}, pool);
  Decoder merged = load_decoder(scratch.path() / "merged", rank);
  EXPECT_EQ(merged.config().vocab_size, rows + 2);
  EXPECT_LT(test::largest_distance(test::all_logits(merged, batch, StepContext{rank}), logits), 1e-4);

  options.trainable_token_indices = {{"", {rows + 2}}};
  Decoder small = load_decoder(model, rank);
  EXPECT_THROW(attach_adapter(small, options, rank), UsageError);
}

}  // namespace
}  // namespace nibble
