#include "nibble/core/nn/mixers/linear_attention/gated_delta.h"

#include "nibble/tests/core/nn/new_kind.h"

namespace nibble {
namespace {

using namespace nibble::test;

DecoderConfig gated_delta_config(bool fused) {
  return with_kind([=](LayerConfig& layer) {
    layer.mixer = [=](const DecoderConfig& config, int64_t l, const std::string& prefix, const Makers& makers) {
      const GatedDeltaConfig delta{.width = config.width,
                                   .key_heads = 2,
                                   .heads = 4,
                                   .key_size = 5,
                                   .value_size = 6 + l,
                                   .taps = 3,
                                   .fused = fused};
      return std::make_unique<GatedDelta>(prefix + "linear_attn.", GatedDeltaNames(), delta, makers);
    };
  });
}

std::vector<std::string> names_of(const DecoderConfig& config) {
  Rank rank;
  Decoder decoder = random_decoder(config, 1, rank.context());
  std::vector<std::string> names;
  decoder.visit([&](Parameter& parameter) {
    const size_t at = parameter.name.find("layers.1.linear_attn.");
    if (at != std::string::npos) names.push_back(parameter.name.substr(at + 21) + to_string(parameter.value.shape()));
  });
  return names;
}

TEST(GatedDelta, HasTheTensorsOfTheFile) {
  EXPECT_EQ(names_of(gated_delta_config(false)),
            (std::vector<std::string>{"in_proj_qkv.weight[48, 16]", "in_proj_z.weight[28, 16]",
                                      "in_proj_b.weight[4, 16]", "in_proj_a.weight[4, 16]", "conv1d.weight[48, 1, 3]",
                                      "dt_bias[4]", "A_log[4]", "norm.weight[7]", "out_proj.weight[16, 28]"}));
  EXPECT_EQ(
      names_of(gated_delta_config(true)),
      (std::vector<std::string>{"in_proj_qkvz.weight[76, 16]", "in_proj_ba.weight[8, 16]", "conv1d.weight[48, 1, 3]",
                                "dt_bias[4]", "A_log[4]", "norm.weight[7]", "out_proj.weight[16, 28]"}));
}

TEST(GatedDelta, ItsGradientsAreFiniteDifferences) {
  expect_gradients_are_finite_differences(gated_delta_config(false));
  expect_gradients_are_finite_differences(gated_delta_config(true));
}
TEST(GatedDelta, WhatItKeepsMayBeComputedAgainOrLieInAFile) { expect_same_bits_however_kept(gated_delta_config(true)); }
TEST(GatedDelta, ContinuesCachedSequences) { expect_cached_text(gated_delta_config(false)); }
TEST(GatedDelta, RunsOnEveryDevice) { expect_same_on_devices(gated_delta_config(true)); }
TEST(GatedDelta, TrainsShardsAndPipelines) { expect_trains_shards_and_pipelines(gated_delta_config(false)); }
TEST(GatedDelta, DocumentsAreApart) { expect_documents_are_apart(gated_delta_config(false)); }

// Kimi delta attention: a decay for every channel, projections and convolutions apart.
DecoderConfig kimi() {
  return with_kind([](LayerConfig& layer) {
    layer.mixer = [](const DecoderConfig& config, int64_t, const std::string& prefix, const Makers& makers) {
      const GatedDeltaConfig delta{.width = config.width,
                                   .key_heads = 2,
                                   .heads = 2,
                                   .key_size = 5,
                                   .value_size = 5,
                                   .taps = 3,
                                   .apart = true,
                                   .decay_shape = {1, 1, 2, 1},
                                   .channel_decay = true,
                                   .sigmoid_gate = true};
      const GatedDeltaNames names = {
          .gate = "g_b_proj",
          .decay = "f_b_proj",
          .first_gate = "g_a_proj",
          .first_decay = "f_a_proj",
          .output = "o_proj",
          .attention = {.conv_parts = {"q_conv1d", "k_conv1d", "v_conv1d"}, .norm = "o_norm"}};
      return std::make_unique<GatedDelta>(prefix + "self_attn.", names, delta, makers);
    };
  });
}

TEST(KimiDelta, ItsGradientsAreFiniteDifferences) { expect_gradients_are_finite_differences(kimi()); }
TEST(KimiDelta, WhatItKeepsMayBeComputedAgainOrLieInAFile) { expect_same_bits_however_kept(kimi()); }
TEST(KimiDelta, ContinuesCachedSequences) { expect_cached_text(kimi()); }
TEST(KimiDelta, DocumentsAreApart) { expect_documents_are_apart(kimi()); }

}  // namespace
}  // namespace nibble
