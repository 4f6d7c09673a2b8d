#include "nibble/core/nn/mixers/short_conv.h"

#include "nibble/tests/core/nn/new_kind.h"

namespace nibble {
namespace {

using namespace nibble::test;

DecoderConfig short_conv_config() {
  return with_kind([](LayerConfig& layer) {
    layer.mixer = [](const DecoderConfig& config, int64_t l, const std::string& prefix, const Makers& makers) {
      const ShortConvConfig conv{.width = config.width, .taps = 2 + l, .bias = l == 1};
      return std::make_unique<ShortConv>(prefix + "conv.", conv, makers);
    };
  });
}

TEST(ShortConv, ItsGradientsAreFiniteDifferences) { expect_gradients_are_finite_differences(short_conv_config()); }
TEST(ShortConv, WhatItKeepsMayBeComputedAgainOrLieInAFile) { expect_same_bits_however_kept(short_conv_config()); }
TEST(ShortConv, ContinuesCachedSequences) { expect_cached_text(short_conv_config()); }
TEST(ShortConv, RunsOnEveryDevice) { expect_same_on_devices(short_conv_config()); }
TEST(ShortConv, DocumentsAreApart) { expect_documents_are_apart(short_conv_config()); }
TEST(ShortConv, TrainsShardsAndPipelines) { expect_trains_shards_and_pipelines(short_conv_config()); }

/// Layers of a mixer alone or a feed-forward alone (Nemotron-H).
DecoderConfig of_one_sublayer() {
  DecoderConfig result = short_conv_config();
  for (size_t l = 0; l < result.layer.size(); ++l) {
    result.layer[l].has_mixer = l != 2;
    result.layer[l].has_feed_forward = l == 2;
  }
  return result;
}

TEST(LayersOfOneSublayer, TheirGradientsAreFiniteDifferences) {
  expect_gradients_are_finite_differences(of_one_sublayer());
}
TEST(LayersOfOneSublayer, WhatTheyKeepMayBeComputedAgainOrLieInAFile) {
  expect_same_bits_however_kept(of_one_sublayer());
}
TEST(LayersOfOneSublayer, ContinueCachedSequences) { expect_cached_text(of_one_sublayer()); }
TEST(LayersOfOneSublayer, TrainShardAndPipeline) { expect_trains_shards_and_pipelines(of_one_sublayer()); }

}  // namespace
}  // namespace nibble
