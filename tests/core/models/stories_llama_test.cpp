// A trained (if small) Llama against Transformers in float64.

#include <algorithm>

#include "nibble/tests/core/models/golden.h"

namespace nibble {
namespace {

using namespace nibble::test;

// golden_ids: the start token and the 200 that follow it greedily; golden_logits: of the first 64.
void expect_golden(const std::filesystem::path& model) {
  Rank rank;
  Decoder decoder = load_decoder(model, rank.context());
  const std::vector<int32_t> ids = read_ids(model / "golden_ids.npy");
  ASSERT_EQ(ids.size(), 201u);
  const Sample start{.ids = {ids.begin(), ids.begin() + 64}, .labels = {}};
  const std::vector<float> logits = all_logits(decoder, make_batch({&start, 1}, rank.context().pool), rank.step());
  EXPECT_LE(largest_difference(logits, read_floats(model / "golden_logits_first64.npy")), 1e-4);

  const GenerateOptions options{.max_new_tokens = 200, .stop_ids = {}};
  EXPECT_EQ(generate(decoder, std::span(ids.data(), 1), options, rank.step()),
            std::vector<int32_t>(ids.begin() + 1, ids.end()));
}

TEST(StoriesLlama, LogitsAndGreedyTextAreTheGoldenOnes) {
  const std::filesystem::path model = test::data_path("stories-llama");
  expect_golden(model);
}

TEST(StoriesLlama, TheBf16CopyGivesItsOwnGoldenLogitsAndText) {
  const std::filesystem::path model = test::data_path("stories-llama-bf16");
  expect_golden(model);
}

TEST(StoriesLlama, WeightsAreMappedAndKeepTheDtypeOfTheFile) {
  const std::filesystem::path model = test::data_path("stories-llama-bf16");
  Rank rank;
  Decoder decoder = load_decoder(model, rank.context());
  decoder.visit_linears([](Linear& linear) {
    EXPECT_FALSE(linear.weight().parameter()->value.writable()) << linear.name();
    EXPECT_EQ(linear.weight().parameter()->value.dtype(), DType::bf16) << linear.name();
  });
  EXPECT_LT(rank.context().pool.in_use(), 16384u);  // the norms
}

TEST(StoriesLlama, LossOfLoraGoldenWithoutAdapter) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const std::filesystem::path golden = test::data_path("lora-golden");
  Rank rank;
  Decoder decoder = load_decoder(model, rank.context());
  const Tensor shape = read_npy(golden / "input_ids.npy");
  const std::vector<int32_t> ids = read_ids(golden / "input_ids.npy"), labels = read_ids(golden / "labels.npy");
  std::vector<Sample> samples;
  for (int64_t row = 0; row < shape.dim(0); ++row) {
    const auto part = [&](const std::vector<int32_t>& all) {
      return std::vector<int32_t>(all.begin() + row * shape.dim(1), all.begin() + (row + 1) * shape.dim(1));
    };
    samples.push_back({.ids = part(ids), .labels = part(labels), .index = static_cast<uint64_t>(row)});
  }
  const Batch batch = make_batch(samples, rank.context().pool);
  const double loss = decoder.loss_sum(batch, rank.step()) / static_cast<double>(batch.label_tokens);
  const nlohmann::json report = read_json(golden / "report.json");
  EXPECT_NEAR(loss, report["lora_fp32"]["loss_without_adapter"].get<double>(), 1e-4);
}

TEST(StoriesLlama, Bf16ProductsStayCloseToF32Ones) {
  const std::filesystem::path model = test::data_path("stories-llama");
  Rank rank;
  Decoder decoder = load_decoder(model, rank.context());
  make_trainable(decoder, rank.context());
  const std::vector<int32_t> ids = read_ids(model / "golden_ids.npy");
  const Sample sample{.ids = ids, .labels = ids};
  const Batch batch = make_batch({&sample, 1}, rank.context().pool);
  const double wide = decoder.loss_sum_and_gradients(batch, rank.step(), 1.0f / 200);
  const auto wide_gradients = gradients_of(decoder);
  decoder.visit([](Parameter& parameter) { parameter.gradient.zero(); });
  const double narrow = decoder.loss_sum_and_gradients(batch, rank.step(DType::bf16), 1.0f / 200);
  EXPECT_NEAR(narrow / 200, wide / 200, 0.01);
  double error = 0, size = 0;
  for (const auto& [name, gradient] : gradients_of(decoder)) {
    const double off = distance(gradient, wide_gradients.at(name)), whole = norm(wide_gradients.at(name));
    EXPECT_LE(off, 0.1 * whole) << name;
    error += off * off;
    size += whole * whole;
  }
  EXPECT_LE(std::sqrt(error / size),
            0.05);  // a bf16 number is off by up to 0.4%, and its own text leaves small gradients
}

}  // namespace
}  // namespace nibble
