// Adapters of a model whose vocabulary was resized, as PEFT saves them, on a base whose head has a bias; PEFT's own
// numbers are compared by tests/oracles/resized_tables.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/adapters/attach.h"
#include "nibble/adapters/merging/merge.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/core/models/load.h"
#include "nibble/tests/adapters/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr int64_t kOld = 20, kNew = 23, kWidth = 16;
const std::string kEmbed = "model.embed_tokens", kRowsEnd = ".token_adapter.trainable_tokens_delta";

class ResizedTables : public ::testing::TestWithParam<bool> {
 protected:
  ResizedTables() {
    set_threads(1);
    const std::string config =
        R"({"model_type": "phi", "vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.3, "tie_word_embeddings": )" +
        std::string(tied() ? "true}" : "false}");
    Decoder decoder = random_decoder(parse_decoder_config(config, "test"), 5, rank);
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const NamedTensor& tensor : state_dict(decoder)) {
      tensors.emplace_back(tensor.name, tensor.name == "lm_head.bias" ? normal({kOld}, 9) : tensor.value);
    }
    write_safetensors(scratch / "model.safetensors", tensors);
    test::write_bytes(scratch / "config.json", config);
    adapter.options.r = 2;
    adapter.options.target_modules.names = {"q_proj"};
    adapter.tensors = {{"model.layers.0.self_attn.q_proj.lora_A.weight", normal({2, kWidth}, 1)},
                       {"model.layers.0.self_attn.q_proj.lora_B.weight", normal({kWidth, 2}, 2)}};
  }

  bool tied() const { return GetParam(); }
  Tensor normal(Shape shape, uint64_t seed) {
    Tensor result = Tensor::empty(pool, std::move(shape), DType::f32);
    ops::fill_normal(result, 0.3f, seed, 1);
    return result;
  }

  Decoder with_adapter() {
    Decoder decoder = load_decoder(scratch.path(), rank);
    attached = load_adapter(decoder, adapter, false, rank);
    return decoder;
  }
  std::vector<float> logits(Decoder decoder) {
    const std::vector<Sample> samples{{.ids = {1, 22, 7, 20, 21, 3}, .labels = {}, .index = 0}};
    return test::all_logits(decoder, make_batch(samples, pool), StepContext{rank});
  }
  /// The merged model has the logits of the adapter beside its base, and so has what is saved again.
  MergeReport expect_merged_is_beside() {
    const std::vector<float> beside = logits(with_adapter());
    EXPECT_EQ(beside.size(), size_t{6 * kNew});
    const MergeReport report = merge_adapter(plain_source(CheckpointDir(scratch.path())), adapter, scratch / "merged",
                                             {.dtype = DType::f32, .replace = Replace::own}, pool);
    EXPECT_THAT(logits(load_decoder(scratch / "merged", rank)), Pointwise(FloatNear(1e-4f), beside));
    Decoder decoder = with_adapter();
    save_adapter(decoder, attached, scratch / "saved", Replace::own);
    adapter = read_peft_directory(scratch / "saved");
    EXPECT_EQ(logits(with_adapter()), beside);
    return report;
  }
  std::vector<float> merged(const std::string& name) {
    const CheckpointDir directory(scratch / "merged");
    const std::span<const float> values = directory.at(name).span<const float>();
    return {values.begin(), values.end()};
  }
  std::string refusal() {
    return test::error_of<InputError>([&] { with_adapter(); });
  }

  test::TemporaryDirectory scratch;
  MemoryPool pool;
  SelfComm comm;
  RankContext rank{comm, pool};
  PeftAdapter adapter;
  AttachedAdapter attached;
};

INSTANTIATE_TEST_SUITE_P(Head, ResizedTables, ::testing::Bool(),
                         [](const auto& result) { return std::string(result.param ? "Tied" : "Untied"); });

// Transformers 5: a bias that is made longer has the mean of its values, or zeros where the head is tied.
TEST_P(ResizedTables, WhatTheFileLacksStartsAsTransformersResizesIt) {
  adapter.tensors[kEmbed + ".base_layer.weight"] = normal({kNew, kWidth}, 3);
  adapter.tensors[kEmbed + ".lora_embedding_A"] = normal({2, kNew}, 4);
  adapter.tensors[kEmbed + ".lora_embedding_B"] = normal({kWidth, 2}, 5);
  expect_merged_is_beside();
  const std::vector<float> bias = merged("lm_head.bias"), head = merged("lm_head.weight");
  float mean = 0;
  for (int64_t i = 0; i < kOld; ++i) mean += bias[static_cast<size_t>(i)] / float{kOld};
  EXPECT_NEAR(bias[kNew - 1], tied() ? 0 : mean, 1e-6);
  float column = 0;  // of the head
  for (int64_t i = 0; i < kOld; ++i) column += head[static_cast<size_t>(i * kWidth)] / float{kOld};
  const float below = normal({kNew, kWidth}, 3).span<float>()[(kNew - 1) * kWidth];
  EXPECT_NEAR(head[(kNew - 1) * kWidth], tied() ? below : column, 1e-6);
}

TEST_P(ResizedTables, ALoraOnTheHeadBringsRowsForBothTables) {
  adapter.tensors["lm_head.base_layer.weight"] = normal({kNew, kWidth}, 3);
  adapter.tensors["lm_head.base_layer.bias"] = normal({kNew}, 4);
  adapter.tensors["lm_head.lora_A.weight"] = normal({2, kWidth}, 5);
  adapter.tensors["lm_head.lora_B.weight"] = normal({kNew, 2}, 6);
  EXPECT_EQ(expect_merged_is_beside().untied, tied());
}

TEST_P(ResizedTables, FrozenTablesAndABias) {
  adapter.tensors[kEmbed + ".weight"] = adapter.tensors["lm_head.weight"] = normal({kNew, kWidth}, 3);
  adapter.tensors["lm_head.bias"] = normal({kNew}, 4);
  EXPECT_FALSE(expect_merged_is_beside().untied);
  EXPECT_THAT(attached.notes, ::testing::ElementsAre("the adapter brings its own model.embed_tokens",
                                                     "the adapter brings its own lm_head"));
}

TEST_P(ResizedTables, TablesThatAreTrainedBringTheirRows) {
  adapter.options.modules_to_save = {"embed_tokens", "lm_head"};
  adapter.tensors[kEmbed + ".weight"] = normal({kNew, kWidth}, 3);
  adapter.tensors["lm_head.weight"] = normal({kNew, kWidth}, 4);
  EXPECT_THAT(refusal(), HasSubstr("has no lm_head.bias, which modules_to_save in adapter_config.json names"));
  adapter.tensors["lm_head.bias"] = normal({kNew}, 5);
  EXPECT_EQ(expect_merged_is_beside().untied, tied());
}

TEST_P(ResizedTables, RowsOfTokensStandOnTheTableOfTheFile) {
  adapter.options.trainable_token_indices = {{"", {5, 22, 20, 21}}};
  adapter.tensors[kEmbed + ".token_adapter.base_layer.weight"] = normal({kNew, kWidth}, 3);
  adapter.tensors[kEmbed + kRowsEnd] = normal({4, kWidth}, 4);
  const std::string below = tied() ? "lm_head.token_adapter.base_layer" : "lm_head";
  adapter.tensors[below + ".weight"] = normal({kNew, kWidth}, tied() ? 3 : 6);
  adapter.tensors[below + ".bias"] = normal({kNew}, 7);
  if (tied()) adapter.tensors["lm_head" + kRowsEnd] = adapter.tensors[kEmbed + kRowsEnd];  // PEFT saves the one twice
  EXPECT_FALSE(expect_merged_is_beside().untied);
}

TEST_P(ResizedTables, RowsOfTheHeadAloneUntieIt) {
  adapter.options.trainable_token_indices = {{"lm_head", {5, 21, 22}}};
  adapter.tensors["lm_head" + kRowsEnd] = normal({3, kWidth}, 3);
  EXPECT_EQ(expect_merged_is_beside().untied, tied());
}

// PEFT's load_state_dict comes to the head's last.
TEST_P(ResizedTables, OfATiedTableStoredTwiceTheHeadsCounts) {
  const Tensor embedding = normal({kNew, kWidth}, 3), head = Tensor::empty(pool, {kNew, kWidth}, DType::bf16);
  Tensor rounded = head;
  ops::cast(normal({kNew, kWidth}, 4), rounded);
  adapter.tensors[kEmbed + ".weight"] = embedding;
  adapter.tensors["lm_head.weight"] = head;
  expect_merged_is_beside();
  const float of_head = static_cast<float>(head.data<const bf16>()[17]), own = embedding.data<const float>()[17];
  EXPECT_EQ(merged(kEmbed + ".weight")[17], tied() ? of_head : own);
}

}  // namespace
}  // namespace nibble
