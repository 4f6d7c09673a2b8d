#include "nibble/adapters/tuners/expert_lora.h"

#include <gmock/gmock.h>

#include "nibble/adapters/adapter_plan.h"
#include "nibble/adapters/attach.h"
#include "nibble/adapters/peft/peft_config.h"
#include "nibble/core/base/error.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

DecoderConfig mixture(const char* type = "qwen3_moe", const std::string& more = "") {
  return parse_decoder_config(R"({"model_type": ")" + std::string(type) + R"(", "hidden_size": 16,
      "intermediate_size": 24, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 8, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 40, "num_experts": 4,
      "num_experts_per_tok": 2, "initializer_range": 0.3, "tie_word_embeddings": false)" +
                                  more + "}",
                              "test");
}

AdapterOptions on_experts() {
  AdapterOptions options;
  options.r = 3;
  options.lora_alpha = 6;
  options.init_lora_weights = LoraInit::random;
  options.target_modules.names = {"q_proj"};
  options.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
  return options;
}

std::map<std::string, Tensor> tensors_of(Decoder& decoder) {
  std::map<std::string, Tensor> result;
  for (auto& [name, tensor] : adapter_tensors(decoder)) result[name] = tensor;
  return result;
}

TEST(ExpertLora, LiesAsInPeft) {
  Rank rank;
  Decoder decoder = random_decoder(mixture(), 1, rank.context());
  attach_adapter(decoder, on_experts(), rank.context());
  const auto tensors = tensors_of(decoder);
  const std::string experts = "base_model.model.model.layers.1.mlp.experts.";
  EXPECT_EQ(tensors.at(experts + "base_layer.lora_A.weight").shape(), (Shape{4 * 3, 16}));
  EXPECT_EQ(tensors.at(experts + "base_layer.lora_B.weight").shape(), (Shape{12, 3 * 4}));
  EXPECT_EQ(tensors.at(experts + "lora_A.weight").shape(), (Shape{4 * 3, 6}));
  EXPECT_EQ(tensors.at(experts + "lora_B.weight").shape(), (Shape{16, 3 * 4}));
  EXPECT_EQ(tensors.size(), 2u * 6);
}

// W_e + s B[:, e::E] A[e R:(e + 1) R]; gate has the first rows of B, up the others.
TEST(ExpertLora, ChangesEveryExpertByItsOwnPart) {
  Rank rank;
  Decoder decoder = random_decoder(mixture(), 1, rank.context());
  attach_adapter(decoder, on_experts(), rank.context());
  const auto tensors = tensors_of(decoder);
  const std::string stem = "base_model.model.model.layers.0.mlp.experts.base_layer.";
  const Tensor &a = tensors.at(stem + "lora_A.weight"), &b = tensors.at(stem + "lora_B.weight");
  int seen = 0;
  decoder.visit_linears([&](Linear& linear) {
    if (linear.name() != "model.layers.0.mlp.experts.2.up_proj") return;
    ++seen;
    Tensor rows = Tensor::zeros(rank.context().pool, {6, 16}, DType::f32);
    linear.adapter()->merge_rows(0, rows);
    for (int64_t out = 0; out < 6; ++out) {
      for (int64_t in = 0; in < 16; ++in) {
        double wanted = 0;
        for (int64_t i = 0; i < 3; ++i) {
          wanted += double{b.data<const float>()[(6 + out) * 12 + i * 4 + 2]} *
                    double{a.data<const float>()[(2 * 3 + i) * 16 + in]};
        }
        EXPECT_NEAR(rows.data<const float>()[out * 16 + in], 2 * wanted, 1e-6);
      }
    }
  });
  EXPECT_EQ(seen, 1);
}

// Along random directions, as finite differences have them.
void expect_gradients(Decoder& decoder, const Batch& batch, Rank& rank) {
  MemoryPool& pool = rank.context().pool;
  decoder.loss_sum_and_gradients(batch, rank.step(), 1);
  uint64_t number = 0;
  decoder.visit([&](Parameter& parameter) {
    if (!parameter.trainable) return;
    Tensor direction = Tensor::empty(pool, parameter.value.shape(), DType::f32);
    ops::fill_normal(direction, 1, 5, number++);
    const Tensor start = parameter.value.clone(pool);
    const auto at = [&](float steps) {
      ops::add(direction, parameter.value, steps * 1e-3f);
      const double loss = decoder.loss_sum(batch, rank.step());
      ops::cast(start, parameter.value);
      return loss;
    };
    double along = 0, size = 0;
    for (int64_t i = 0; i < direction.numel(); ++i) {
      const double gradient = double{parameter.gradient.data<const float>()[i]};
      along += gradient * double{direction.data<const float>()[i]};
      size += gradient * gradient;
    }
    EXPECT_NEAR(along, (at(1) - at(-1)) / 2e-3, 1e-2 * std::sqrt(size) + 2e-2) << parameter.name;
    EXPECT_GT(size, 0) << parameter.name;
  });
}

TEST(ExpertLora, GradientsAreFiniteDifferences) {
  Rank rank;
  Decoder decoder = random_decoder(mixture(), 1, rank.context());
  attach_adapter(decoder, on_experts(), rank.context());
  const Sample sample{.ids = {1, 5, 9, 20, 33, 2, 7}, .labels = {1, 5, 9, 20, 33, 2, 7}};
  expect_gradients(decoder, make_batch({&sample, 1}, rank.context().pool), rank);
}

// PEFT takes [experts, in, out] of Llama 4 for [experts, out, in].
class Llama4ExpertLora : public testing::TestWithParam<std::string> {};

TEST_P(Llama4ExpertLora, HasInputsAndOutputsSwapped) {
  Rank rank;
  const std::string text = R"({"model_type": "llama4_text", "hidden_size": 16,
      "intermediate_size": 6, "intermediate_size_mlp": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 40, "num_local_experts": 4, "num_experts_per_tok": 1,
      "initializer_range": 0.3, "tie_word_embeddings": false, "max_position_embeddings": 64})";
  const std::string beside_a_tower = R"({"model_type": "llama4", "text_config": )" + text + "}";
  const DecoderConfig config = parse_decoder_config(GetParam() == "llama4" ? beside_a_tower : text, "test");
  Decoder decoder = random_decoder(config, 1, rank.context());
  AdapterOptions options = on_experts();
  options.target_parameters = {"feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"};
  attach_adapter(decoder, options, rank.context());
  const auto tensors = tensors_of(decoder);
  const std::string experts = "base_model.model." + config.names.layers + "0.feed_forward.experts.";
  EXPECT_EQ(tensors.at(experts + "base_layer.lora_A.weight").shape(), (Shape{4 * 3, 12}));
  EXPECT_EQ(tensors.at(experts + "base_layer.lora_B.weight").shape(), (Shape{16, 3 * 4}));
  EXPECT_EQ(tensors.at(experts + "lora_A.weight").shape(), (Shape{4 * 3, 16}));
  EXPECT_EQ(tensors.at(experts + "lora_B.weight").shape(), (Shape{6, 3 * 4}));
  const Sample sample{.ids = {1, 5, 9, 20, 33, 2, 7}, .labels = {1, 5, 9, 20, 33, 2, 7}};
  expect_gradients(decoder, make_batch({&sample, 1}, rank.context().pool), rank);
}

INSTANTIATE_TEST_SUITE_P(Alone, Llama4ExpertLora, testing::Values("llama4_text", "llama4"),
                         [](const auto& which) { return which.param; });

TEST(ExpertLora, IsReadAsItWasWritten) {
  Rank rank;
  TemporaryDirectory directory;
  for (const bool both : {true, false}) {
    Decoder decoder = random_decoder(mixture(), 1, rank.context()),
            other = random_decoder(mixture(), 1, rank.context());
    AdapterOptions options = on_experts();
    if (!both) options.target_parameters = {"down_proj"};
    const AttachedAdapter attached = attach_adapter(decoder, options, rank.context());
    save_adapter(decoder, attached, directory / "adapter", Replace::anything);
    load_adapter(other, read_peft_directory(directory / "adapter"), true, rank.context());
    const auto wanted = tensors_of(decoder), found = tensors_of(other);
    ASSERT_EQ(found.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) {
      EXPECT_EQ(std::memcmp(found.at(name).raw(), tensor.raw(), tensor.bytes()), 0) << name;
    }
  }
}

TEST(ExpertLora, AllLinearIsWhatPeftMakesOfIt) {
  AdapterOptions options;
  options.r = 4;
  options.lora_alpha = 8;
  options.target_modules.pattern = "all-linear";
  const AdapterOptions translated = translate_for_experts(options, mixture("qwen3_next"));
  EXPECT_THAT(translated.target_parameters, ElementsAre("gate_up_proj", "gate.weight", "down_proj"));
  ASSERT_EQ(translated.rank_pattern.size(), 1u);
  EXPECT_EQ(translated.rank_pattern[0], (std::pair<std::string, int64_t>(R"(.*\.gate_up_proj)", 8)));
  const AdapterPlan plan = plan_adapter(mixture("qwen3_next"), options);
  EXPECT_THAT(plan.modules, testing::Contains("model.layers.0.mlp.shared_expert_gate"));
  EXPECT_THAT(plan.modules, testing::Contains("model.layers.1.mlp.gate"));
  EXPECT_THAT(plan.modules, testing::Not(testing::Contains(HasSubstr("shared_expert.up_proj"))));
  EXPECT_THAT(plan.modules, testing::Not(testing::Contains(HasSubstr("experts.0"))));
  EXPECT_EQ(plan.parameters.size(), 4u);
  EXPECT_THAT(plan.notes, testing::Contains(HasSubstr("gate_up_proj (rank 8) of 4 experts a layer")));
  EXPECT_THAT(plan.notes, testing::Each(testing::Not(HasSubstr("fit no module")))) << "which nobody named";
}

TEST(ExpertLora, NotesTellWhatOfAMixtureIsAdapted) {
  AdapterOptions options;
  options.r = 4;
  const auto notes = [&](const DecoderConfig& config) { return plan_adapter(config, options).notes; };
  options.target_modules.pattern = "all-linear";
  EXPECT_THAT(
      notes(mixture()),
      ElementsAre("every expert gets an adapter of its own: down_proj (rank 4), gate_up_proj (rank 8) of 4 "
                  "experts a layer, 2,496 parameters in all; routers get an adapter: gate (rank 4) of 2 layers, "
                  "160 parameters in all"));
  options.target_modules = {};
  options.target_parameters = {"mlp.gate.weight"};
  EXPECT_THAT(
      notes(mixture()),
      ElementsAre("routers get an adapter: gate (rank 4) of 2 layers, 160 parameters in all; experts get none"));
  options.target_parameters = {"down_proj"};
  options.rank_pattern = {{"layers.1.*down_proj", 2}};
  EXPECT_THAT(notes(mixture()), ElementsAre("every expert gets an adapter of its own: down_proj (rank 2 or 4) of 4 "
                                            "experts a layer, 528 parameters in all"));
  options.target_parameters = {};
  options.rank_pattern = {};
  options.target_modules.names = {"q_proj"};
  EXPECT_THAT(notes(mixture()), testing::IsEmpty());
}

TEST(ExpertLora, NotesTellHowToAdaptExpertsThatPeftLeavesAlone) {
  AdapterOptions options;
  const auto notes = [&](const DecoderConfig& config) { return plan_adapter(config, options).notes; };
  options.target_modules.pattern = "all-linear";
  for (const auto& [type, experts] : {std::pair<std::string, std::string>{"gpt_oss", "mlp.experts"},
                                      {"granitemoe", "block_sparse_moe.experts"},
                                      {"qwen2_moe", "mlp.experts"}}) {
    EXPECT_THAT(notes(mixture(type.c_str())),
                ElementsAre("all-linear leaves the experts of " + type + " alone, as in PEFT; to adapt them, name " +
                            experts + ".gate_up_proj and " + experts + ".down_proj in adapter.target_parameters"));
  }
  options.target_modules = {{"q_proj", "up_proj"}, ""};
  EXPECT_THAT(notes(mixture("qwen2_moe")),
              ElementsAre(testing::StartsWith("target_modules leave the experts of qwen2_moe alone, as in PEFT")));
  options.target_modules.names = {"q_proj"};
  EXPECT_THAT(notes(mixture("gpt_oss")), testing::IsEmpty());
}

// PEFT 0.21 translates for Mixtral and what it converts like Qwen2 MoE, of which that is none.
TEST(ExpertLora, NamesStayWhatTheyAreWherePeftDoesNotTranslate) {
  AdapterOptions options;
  options.target_modules.pattern = "all-linear";
  for (const char* type : {"qwen2_moe", "qwen3_5_moe_text", "laguna"}) {
    const std::string rope = R"(, "rope_parameters": {"full_attention": {"rope_theta": 1e4}})";
    const DecoderConfig config = mixture(type, type == std::string("laguna") ? rope : "");
    EXPECT_TRUE(translate_for_experts(options, config).target_parameters.empty()) << type;
    const AdapterPlan plan = plan_adapter(config, options);
    EXPECT_TRUE(plan.parameters.empty()) << type;
    EXPECT_THAT(plan.modules, testing::Contains(HasSubstr("mlp.shared_expert.up_proj"))) << type;
    EXPECT_THAT(plan.modules, testing::Not(testing::Contains(testing::EndsWith("mlp.gate")))) << type;
  }
  EXPECT_EQ(translate_for_experts(options, mixture("afmoe")).target_parameters.size(), 3u);
  options.target_modules = {{"q_proj", "up_proj"}, ""};  // of a fused tensor only where they are translated
  EXPECT_THAT(plan_adapter(mixture("qwen2_moe"), options).modules, testing::Contains(HasSubstr("up_proj")));
}

// In Mixtral these are w1, w3 and w2; the names of other families fit nothing there.
TEST(ExpertLora, TranslatedNamesAreThoseOfTheFamily) {
  AdapterOptions options;
  options.target_modules.names = {"q_proj", "gate_proj", "up_proj", "down_proj"};
  EXPECT_TRUE(translate_for_experts(options, mixture("mixtral")).target_parameters.empty());
  EXPECT_THAT(translate_for_experts(options, mixture()).target_parameters, ElementsAre("gate_up_proj", "down_proj"));
  options.target_modules.names = {"q_proj", "w1", "w2", "w3"};
  EXPECT_THAT(translate_for_experts(options, mixture("mixtral")).target_parameters,
              ElementsAre("gate_up_proj", "down_proj"));
}

// As PEFT: they join what target_parameters say, and no Linear of a shared MLP gets an adapter by their names.
TEST(ExpertLora, TranslatedNamesJoinTargetParameters) {
  const DecoderConfig config = mixture("qwen3_next");
  AdapterOptions options = on_experts();
  options.target_modules.names = {"o_proj", "gate_proj", "up_proj", "down_proj"};
  options.target_parameters = {"mlp.experts.down_proj", "down_proj"};
  const AdapterOptions translated = translate_for_experts(options, config);
  EXPECT_THAT(translated.target_modules.names, ElementsAre("o_proj"));
  EXPECT_THAT(translated.target_parameters, ElementsAre("mlp.experts.down_proj", "down_proj", "gate_up_proj"));
  EXPECT_THAT(translated.rank_pattern, ElementsAre(testing::Pair(".*\\.gate_up_proj", 6)));
  EXPECT_EQ(peft_config_text(translate_for_experts(translated, config)), peft_config_text(translated));

  Rank rank;
  const TemporaryDirectory directory;
  Decoder trained = random_decoder(config, 1, rank.context()), loaded = random_decoder(config, 1, rank.context());
  const AttachedAdapter attached = attach_adapter(trained, options, rank.context());
  EXPECT_THAT(attached.modules, testing::Each(testing::EndsWith("o_proj")));
  EXPECT_EQ(attached.parameters.size(), 4u);
  save_adapter(trained, attached, directory / "adapter");
  const AttachedAdapter again = load_adapter(loaded, read_peft_directory(directory / "adapter"), true, rank.context());
  EXPECT_EQ(again.modules, attached.modules);
  EXPECT_EQ(again.parameters, attached.parameters);
  EXPECT_EQ(peft_config_text(again.options), peft_config_text(attached.options));
}

TEST(ExpertLora, AnExpressionStandsForTheNamesThatItFits) {
  AdapterOptions options;
  options.target_modules.pattern = ".*(q_proj|gate_proj|up_proj)";
  const AdapterOptions translated = translate_for_experts(options, mixture());
  EXPECT_THAT(translated.target_modules.names, ElementsAre("q_proj"));
  EXPECT_EQ(translated.target_modules.pattern, "");
  EXPECT_THAT(translated.target_parameters, ElementsAre("gate_up_proj"));
  options.target_modules.pattern = ".*nothing";
  EXPECT_EQ(translate_for_experts(options, mixture()).target_modules.pattern, ".*nothing");
}

// As PEFT saves what was named twice.
TEST(ExpertLora, OneTensorMayHaveSeveralNames) {
  AdapterOptions options = on_experts();
  options.target_parameters.push_back("down_proj");
  EXPECT_EQ(plan_adapter(mixture(), options).parameters.size(), 4u);
  options.target_modules.names = {"fits_nothing"};
  EXPECT_EQ(plan_adapter(mixture(), options).parameters.size(), 4u);
}

TEST(ExpertLora, TensorsAreTrainedAloneWhereNoLinearIsLeft) {
  for (const bool named : {true, false}) {
    Rank rank;
    Decoder decoder = random_decoder(mixture(), 1, rank.context());
    AdapterOptions options = on_experts();
    options.target_modules = named ? ModuleSelector{} : ModuleSelector{{}, "all-linear"};
    if (!named) options.exclude_modules.pattern = ".*";
    const AttachedAdapter attached = attach_adapter(decoder, options, rank.context());
    EXPECT_EQ(attached.modules.size(), named ? 0u : 2u);  // "all-linear" means the routers' weights too
    EXPECT_TRUE(attached.options.target_modules.empty());
    EXPECT_EQ(tensors_of(decoder).size(), named ? 2u * 4 : 2u * 6);
  }
}

TEST(ExpertLora, WhatPeftRefusesIsRefused) {
  const auto refusal = [](auto change) -> std::string {
    AdapterOptions options = on_experts();
    change(options);
    try {
      plan_adapter(mixture(), options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(refusal([](AdapterOptions& o) { o.lora_dropout = 0.1; }),
              testing::AllOf(testing::StartsWith("adapter.lora_dropout: "), HasSubstr("set adapter.lora_dropout=0")));
  EXPECT_THAT(refusal([](AdapterOptions& o) { o.use_dora = true; }), HasSubstr("plain LoRA"));
  EXPECT_THAT(refusal([](AdapterOptions& o) { o.target_parameters = {"experts.w1"}; }), HasSubstr("names no tensor"));
  EXPECT_THAT(refusal([](AdapterOptions& o) {
                o.target_parameters.clear();
                o.target_modules.names = {"gate_proj"};
              }),
              HasSubstr("only one of them is named"));
}

}  // namespace
}  // namespace nibble
