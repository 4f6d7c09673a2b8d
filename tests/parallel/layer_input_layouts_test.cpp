// Models whose layers have inputs of their own, on several ranks: the tables and Linears before the first layer are
// gathered when they are computed with.

#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;

class LayerInputRuns : public OwnModel, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    const json config = {
        {"model_type", GetParam()},
        {"hidden_size", 32},
        {"num_hidden_layers", 4},
        {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
        {"num_attention_heads", 4},
        {"num_key_value_heads", 2},
        {"num_kv_shared_layers", 2},
        {"head_dim", 8},
        {"global_head_dim", 8},
        {"sliding_window", 8},
        {"intermediate_size", 24},
        {"hidden_size_per_layer_input", 8},
        {"vocab_size", 257},
        {"vocab_size_per_layer_input", 257},
        {"max_position_embeddings", 64},
        {"eos_token_id", 256},
        {"initializer_range", 0.2},
        {"dtype", "float32"}};
    base_ = directory_ / "model";
    write_bytes(directory_ / "model.json", config.dump());
    init_model({.config = (directory_ / "model.json").string(), .out = base_.string(), .seed = 3, .dtype = "f32"});
    write_bytes(base_ / "tokenizer.json", byte_tokenizer());
    write_bytes(base_ / "tokenizer_config.json", json{{"eos_token", "<|end|>"}}.dump());
    wanted_ = own_recipe(base_, 12);
    wanted_["adapter"] = {{"r", 2}, {"lora_alpha", 4}, {"target_modules", "all-linear"}};
  }

  json wanted_;
};

TEST_P(LayerInputRuns, ShardedBasesGiveTheBitsOfOneRank) {
  const Outcome one = run(wanted_, 1, "one");
  ASSERT_EQ(one.losses.size(), 3u);
  wanted_["parallel"] = {{"shard", 2}};
  const Outcome two = run(wanted_, 2, "sharded");
  EXPECT_EQ(two.losses, one.losses);
  EXPECT_EQ(two.norms, one.norms);
  EXPECT_TRUE(two.weights == one.weights) << "the adapters differ";
}

INSTANTIATE_TEST_SUITE_P(Types, LayerInputRuns, testing::Values("gemma4_text"),
                         [](const auto& type) { return std::string(type.param); });

}  // namespace
}  // namespace nibble
