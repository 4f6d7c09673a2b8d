#include "nibble/core/nn/mixers/recurrent/mamba.h"

#include "nibble/tests/core/nn/new_kind.h"

namespace nibble {
namespace {

using namespace nibble::test;

DecoderConfig config(bool norms) {
  return with_kind([=](LayerConfig& layer) {
    layer.mixer = [=](const DecoderConfig& config, int64_t, const std::string& prefix, const Makers& makers) {
      MambaConfig mamba{.width = config.width, .channels = 20, .state_size = 3, .step_rank = 2, .taps = 3};
      if (norms) mamba.norm = config.norm;
      return std::make_unique<Mamba>(prefix + "mamba.", mamba, makers);
    };
  });
}

TEST(Mamba, ItsGradientsAreFiniteDifferences) { expect_gradients_are_finite_differences(config(false)); }
TEST(Mamba, WhatItKeepsMayBeComputedAgainOrLieInAFile) { expect_same_bits_however_kept(config(false)); }
TEST(Mamba, ContinuesCachedSequences) { expect_cached_text(config(true)); }
TEST(Mamba, RunsOnEveryDevice) { expect_same_on_devices(config(true)); }
TEST(Mamba, TrainsShardsAndPipelines) { expect_trains_shards_and_pipelines(config(false)); }
TEST(Mamba, DocumentsAreApart) {
  expect_documents_are_apart(config(false));
  expect_documents_are_apart(config(true));
}

}  // namespace
}  // namespace nibble
