// Layers of one model with sizes of their own.

#include "nibble/parallel/tensor/tensor_shard.h"
#include "nibble/tests/core/nn/new_kind.h"

namespace nibble {
namespace {

using namespace nibble::test;

DecoderConfig config() {
  return with_kind([](LayerConfig& layer) {
    layer.heads = 6;
    layer.kv_heads = 3;
    layer.head_size = 12;
    layer.mlp_width = 40;
  });
}

TEST(LayerSizes, AreThoseOfTheLayerList) {
  Rank rank;
  Decoder decoder = random_decoder(config(), 1, rank.context());
  std::map<std::string, Shape> shapes;
  decoder.visit([&](Parameter& parameter) { shapes[parameter.name] = parameter.value.shape(); });
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.q_proj.weight"), (Shape{16, 16}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.q_proj.weight"), (Shape{72, 16}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.k_proj.weight"), (Shape{36, 16}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.o_proj.weight"), (Shape{16, 72}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.up_proj.weight"), (Shape{24, 16}));
  EXPECT_EQ(shapes.at("model.layers.1.mlp.up_proj.weight"), (Shape{40, 16}));
}

TEST(LayerSizes, GradientsAreFiniteDifferences) { expect_gradients_are_finite_differences(config()); }
TEST(LayerSizes, CachedSequencesContinue) { expect_cached_text(config()); }
TEST(LayerSizes, TrainShardAndPipeline) { expect_trains_shards_and_pipelines(config()); }

TEST(LayerSizes, ArePartOfNoTensorParallelLayout) {
  EXPECT_THROW(tensor_shard(config(), 0, 2), UsageError);
  EXPECT_NO_THROW(tensor_shard(with_kind([](LayerConfig&) {}), 0, 2));
}

}  // namespace
}  // namespace nibble
