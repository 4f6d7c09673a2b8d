// Tensor parallelism through whole runs (threads of this process): alone and together with stages and shards it gives
// what one rank gives, up to the order of sums.

#include <algorithm>
#include <set>
#include <tuple>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/models/load.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/tests/parallel/layouts.h"

namespace nibble {
namespace {

using namespace nibble::test;

/// A model whose heads, MLP and vocabulary do not divide by the ranks: three key/value heads, seven blocks of 32 MLP
/// columns, 515 tokens. Norms of heads, biases, a tied head: what is full on all ranks, sharded, or the first rank's.
class TensorLayouts : public Layouts {
 protected:
  void SetUp() override {
    Layouts::SetUp();
    if (IsSkipped()) return;
    const json config = {{"architectures", {"Qwen3ForCausalLM"}},
                         {"model_type", "qwen3"},
                         {"hidden_size", 64},
                         {"num_hidden_layers", 3},
                         {"num_attention_heads", 6},
                         {"num_key_value_heads", 3},
                         {"head_dim", 32},
                         {"intermediate_size", 224},
                         {"vocab_size", 515},
                         {"max_position_embeddings", 128},
                         {"attention_bias", true},
                         {"tie_word_embeddings", true},
                         {"initializer_range", 0.1},
                         {"rms_norm_eps", 1e-6},
                         {"dtype", "float32"}};
    config_ = directory_ / "config.json";
    write_bytes(config_, config.dump());
    model_ = directory_ / "model";
    init_model({.config = config_.string(), .out = model_.string(), .seed = 3, .dtype = "f32"});
    const auto options = fs::copy_options::skip_existing;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"}) {
      if (fs::exists(base_ / name)) fs::copy_file(base_ / name, model_ / name, options);
    }
  }

  json uneven(const std::string& mode) const {
    json result = recipe(mode);
    if (mode == "pretrain") {
      result["model"]["init"] = config_.string();
    } else {
      result["model"]["path"] = model_.string();
    }
    if (mode == "qlora") result["model"]["double_quant"] = true;
    return result;
  }

  fs::path config_, model_;
};

void expect_close(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 2e-5) << "step " << i + 1;
    EXPECT_NEAR(got.norms[i], want.norms[i], 2e-4 * want.norms[i]) << "step " << i + 1;
  }
  expect_same_evaluations(got, want, 2e-5);
}

std::vector<float> floats_of(const std::string& safetensors, const TemporaryDirectory& directory) {
  const fs::path path = directory / "weights.safetensors";
  write_bytes(path, safetensors);
  const SafetensorsFile file(path.string());
  std::vector<float> all;
  for (const std::string& name : file.names()) {
    const std::span<const float> values = file.at(name).span<const float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

const std::vector<NamedLayout>& tensor_layouts() {
  static const std::vector<NamedLayout> all = {
      {"Tensor2", 2, {{"tensor", 2}}},
      {"Tensor3", 3, {{"tensor", 3}}},
      {"Pipeline2Tensor2", 4, {{"pipeline", 2}, {"tensor", 2}, {"schedule", "gpipe"}}},
      {"Shard2Tensor2", 4, {{"shard", 2}, {"tensor", 2}, {"shard_adapters", true}}},
      {"Copies2Tensor2", 4, {{"replicate", 2}, {"tensor", 2}}},
  };
  return all;
}

class Tensor2D : public TensorLayouts, public testing::WithParamInterface<std::tuple<const char*, size_t>> {};

TEST_P(Tensor2D, GivesWhatOneRankGives) {
  const auto& [mode, which] = GetParam();
  const NamedLayout& layout = tensor_layouts()[which];
  json wanted = uneven(mode);
  const Outcome one = run(wanted, 1, "one");
  wanted["parallel"] = layout.parallel;
  const Outcome several = run(wanted, layout.ranks, "several");
  expect_close(several, one);
  const std::vector<float> got = floats_of(several.weights, directory_), want = floats_of(one.weights, directory_);
  ASSERT_EQ(got.size(), want.size());
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(double(got[i]) - double(want[i])));
  EXPECT_LT(worst, 2e-3);  // Adam makes a whole step of a gradient's sign, however small the gradient
}

INSTANTIATE_TEST_SUITE_P(
    All, Tensor2D, testing::Combine(testing::Values("full", "lora", "qlora", "pretrain"), testing::Range<size_t>(0, 5)),
    [](const auto& which) {
      return std::string(std::get<0>(which.param)) + tensor_layouts()[std::get<1>(which.param)].name;
    });

TEST_F(TensorLayouts, ARunGoesOnUnderOtherLayouts) {
  for (const char* mode : {"full", "lora"}) {
    json wanted = uneven(mode);
    wanted["train"]["steps"] = 6;
    const Outcome one = run(wanted, 1, std::string("straight-") + mode);
    const std::string name = std::string("resumed-") + mode;
    wanted["parallel"] = {{"tensor", 2}, {"shard", 2}};
    run(wanted, 4, name, 1);
    wanted["parallel"] = {{"tensor", 2}};
    run(wanted, 2, name, 2);
    wanted["parallel"] = json::object();
    run(wanted, 1, name, 4);
    wanted["parallel"] = {{"tensor", 2}, {"pipeline", 2}};
    expect_close(run(wanted, 4, name), one);
  }
}

// The table has 32960 values: its shards meet at 32768, and what is left is smaller than what has 8-bit state by
// itself.
TEST_F(TensorLayouts, EightBitStateIsCutBetweenItsBlocks) {
  json wanted = uneven("full");
  wanted["optimizer"]["type"] = "adamw8bit";
  wanted["train"]["steps"] = 4;
  const Outcome one = run(wanted, 1, "one");
  for (const json& layout : {json{{"shard", 2}}, json{{"shard", 2}, {"zero", 1}}, json{{"shard", 4}}}) {
    wanted["parallel"] = layout;
    const Outcome several = run(wanted, layout["shard"], "several" + layout.dump());
    EXPECT_EQ(several.losses, one.losses) << layout;
    EXPECT_TRUE(several.weights == one.weights) << layout;
  }
  wanted["parallel"] = {{"shard", 4}};
  run(wanted, 4, "resumed", 2);
  wanted["parallel"] = {{"replicate", 2}};
  EXPECT_TRUE(run(wanted, 2, "resumed").weights == one.weights);
}

TEST_F(TensorLayouts, OptionsThatNeedWholeWeightsAreRefusedByName) {
  const auto refused = [&](const json& patch) {
    json wanted = uneven("lora");
    wanted.merge_patch(patch);
    wanted["parallel"] = {{"tensor", 2}};
    return error_of<UsageError>([&] { run(wanted, 2, "refused"); });
  };
  EXPECT_NE(refused({{"adapter", {{"use_dora", true}}}}).find("use_dora needs full weights"), std::string::npos);
  EXPECT_NE(refused({{"adapter", {{"init_lora_weights", "pissa"}}}}).find("init_lora_weights"), std::string::npos);
  EXPECT_NE(refused({{"optimizer", {{"type", "adamw8bit"}}}}).find("adamw8bit"), std::string::npos);
}

}  // namespace
}  // namespace nibble
