#include "nibble/core/nn/mixers/mamba2.h"

#include "nibble/core/nn/mixers/side_by_side.h"
#include "nibble/tests/core/nn/new_kind.h"

namespace nibble {
namespace {

using namespace nibble::test;

Mamba2Config small(int64_t width) {
  return {.width = width, .heads = 6, .head_size = 4, .groups = 2, .state_size = 5, .taps = 3};
}

DecoderConfig alone(bool norm) {
  return with_kind([=](LayerConfig& layer) {
    layer.mixer = [=](const DecoderConfig& config, int64_t, const std::string& prefix, const Makers& makers) {
      Mamba2Config mamba = small(config.width);
      mamba.norm = norm;
      mamba.limits = {.low = 0.1f, .high = 3};
      return std::make_unique<Mamba2>(prefix + "mamba.", mamba, makers);
    };
  });
}

/// As in Falcon-H1.
DecoderConfig beside_attention() {
  return with_kind([](LayerConfig& layer) {
    layer.mixer = [](const DecoderConfig& config, int64_t l, const std::string& prefix, const Makers& makers) {
      Mamba2Config mamba = small(config.width);
      mamba.gate_first = false;
      mamba.multipliers = {0.9f, 0.8f, 1.2f, 1.1f, 0.5f};
      std::vector<SideBySide::Part> parts;
      parts.push_back({std::make_unique<Mamba2>(prefix + "mamba.", mamba, makers), 1.25f, 0.8f});
      parts.push_back({std::make_unique<Attention>(prefix, AttentionNames(), config.attention(l), makers), 1.1f, 0.9f});
      return std::make_unique<SideBySide>(std::move(parts));
    };
  });
}

TEST(Mamba2, HasTheTensorsOfTheFile) {
  Rank rank;
  Decoder decoder = random_decoder(alone(true), 1, rank.context());
  std::vector<std::string> names;
  decoder.visit([&](Parameter& parameter) {
    const size_t at = parameter.name.find("layers.1.mamba.");
    if (at != std::string::npos) names.push_back(parameter.name.substr(at + 15) + to_string(parameter.value.shape()));
  });
  EXPECT_EQ(names,
            (std::vector<std::string>{"in_proj.weight[74, 16]", "conv1d.weight[44, 1, 3]", "conv1d.bias[44]",
                                      "dt_bias[6]", "A_log[6]", "D[6]", "norm.weight[24]", "out_proj.weight[16, 24]"}));
}

TEST(Mamba2, ItsGradientsAreFiniteDifferences) {
  expect_gradients_are_finite_differences(alone(true));
  expect_gradients_are_finite_differences(alone(false));
  expect_gradients_are_finite_differences(beside_attention());
}
TEST(Mamba2, WhatItKeepsMayBeComputedAgainOrLieInAFile) {
  expect_same_bits_however_kept(alone(true));
  expect_same_bits_however_kept(beside_attention());
}
TEST(Mamba2, ContinuesCachedSequences) {
  expect_cached_text(alone(true));
  expect_cached_text(beside_attention());
}
TEST(Mamba2, RunsOnEveryDevice) { expect_same_on_devices(beside_attention()); }
TEST(Mamba2, DocumentsAreApart) { expect_documents_are_apart(beside_attention()); }
TEST(Mamba2, TrainsShardsAndPipelines) { expect_trains_shards_and_pipelines(beside_attention()); }

}  // namespace
}  // namespace nibble
