// What is refused of an adapter before any weight is read.

#include "nibble/recipes/models/open_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/recipes/plan/dry_run.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/preferences/reference_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/models/mixtures.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

DecoderConfig config_with(bool biases) {
  const json config = {{"model_type", "llama"},         {"hidden_size", 32},       {"num_hidden_layers", 2},
                       {"num_attention_heads", 2},      {"intermediate_size", 64}, {"vocab_size", 100},
                       {"max_position_embeddings", 64}, {"rms_norm_eps", 1e-6},    {"attention_bias", biases}};
  return parse_decoder_config(config.dump(), "config.json");
}

Recipe recipe_with(const json& adapter) {
  return parse_recipe(json{{"model", {{"path", "none"}}},
                           {"data", {{"train", "none"}}},
                           {"adapter", adapter},
                           {"output", {{"dir", "o"}}}}
                          .dump(),
                      "recipe");
}

std::string refusal_of(const json& adapter, bool biases) {
  return test::error_of<UsageError>([&] { plan_adapter(recipe_with(adapter), config_with(biases), 100); });
}

std::string golden_model(const std::string& kind) {
  return test::data_path("goldens/model_types/" + kind + "/model").string();
}

TEST(PlannedAdapter, BiasOfBThatPeftRefusesIsRefused) {
  for (const char* init : {"gaussian", "pissa", "pissa_niter_4", "olora", "loftq"}) {
    const json adapter = {{"target_modules", {"q_proj"}}, {"lora_bias", true}, {"init_lora_weights", init}};
    EXPECT_NE(refusal_of(adapter, true).find("lora_bias goes with init_lora_weights true or false"), std::string::npos);
  }
  const json plain = {{"target_modules", {"q_proj"}}, {"lora_bias", true}, {"init_lora_weights", false}};
  EXPECT_EQ(plan_adapter(recipe_with(plain), config_with(true), 100)->modules.size(), 2u);
}

TEST(PlannedAdapter, BiasOfBThatNoMergeCouldKeepIsRefusedBeforeTraining) {
  const json adapter = {{"target_modules", {"q_proj", "down_proj"}}, {"lora_bias", true}};
  EXPECT_NE(refusal_of(adapter, false).find("model.layers.0.self_attn.q_proj, which has no bias"), std::string::npos);
  EXPECT_NE(refusal_of(adapter, true).find("model.layers.0.mlp.down_proj, which has no bias"), std::string::npos);
}

TEST(PlannedAdapter, AReferenceWithoutTheAdapterNeedsABaseThatStaysAsItIs) {
  const auto recipe = [](const json& adapter, const json& objective) {
    Recipe with = recipe_with(adapter);
    with.objective.type = ObjectiveType::dpo;
    with.objective.reference = objective;
    return with;
  };
  const json plain = {{"target_modules", {"q_proj"}}};
  for (const auto& [key, value] : {std::pair<const char*, json>{"modules_to_save", {"embed_tokens"}},
                                   {"bias", "lora_only"},
                                   {"init_lora_weights", "pissa"}}) {
    json adapter = plain;
    adapter[key] = value;
    const auto plan = [&](const char* reference) { plan_adapter(recipe(adapter, reference), config_with(true), 100); };
    EXPECT_NE(test::error_of<UsageError>([&] { plan("adapter_off"); }).find("objective.reference: the base is not"),
              std::string::npos);
    plan("initial");
  }
  EXPECT_TRUE(plan_adapter(recipe(plain, "adapter_off"), config_with(true), 100));
}

// Threads are the process's: what only looks at names must not take those that training has.
Recipe compared_with(const char* model, const json& objective, const json& changes = json::object()) {
  json recipe = {{"model", {{"path", golden_model(model)}, {"compute_dtype", "f32"}}},
                 {"adapter", {{"r", 2}}},
                 {"objective", objective},
                 {"data", {{"train", "none.jsonl"}, {"max_length", 32}}},
                 {"output", {{"dir", "none"}}}};
  recipe.merge_patch(changes);
  return parse_recipe(recipe.dump(), "test");
}

TEST(Reference, OfAnotherKindHasNoExpertsToBalance) {
  const Recipe recipe = compared_with("solar_open", {{"type", "dpo"}, {"reference", golden_model("exaone")}},
                                      {{"model", {{"router_aux_loss_coef", 0.1}}}});
  EXPECT_TRUE(recipe.model.router_aux_loss_coef);
  EXPECT_NO_THROW(model_config(reference_base(recipe)));
}

// Of 96 tokens the head of Apertus 1.5 knows 90 here.
TEST(Vocabularies, HeadsOfAReferenceOrATeacherKnowTheTokensOfThePolicys) {
  const auto refusal = [](const char* model, const char* type, const char* key, const char* other) {
    const Recipe asked = compared_with(model, {{"type", type}, {key, golden_model(other)}});
    return test::error_of<InputError>([&] { check_vocabularies(asked, 96); });
  };
  static constexpr const char *kTeacher = "teacher_model_name_or_path", *kPart = "apertus1p5_text", *kWhole = "exaone";
  EXPECT_THAT(refusal(kPart, "distillation", kTeacher, kWhole), HasSubstr("has a head of 96 rows, the student of 90;"));
  EXPECT_THAT(refusal(kWhole, "distillation", kTeacher, kPart), HasSubstr("has a head of 90 rows, the student of 96;"));
  EXPECT_THAT(refusal(kWhole, "dpo", "reference", kPart), HasSubstr("has a head of 90 rows, the policy of 96;"));
  const auto recipe = [](const char* type, const char* key, const char* other) {
    return compared_with(kPart, {{"type", type}, {key, golden_model(other)}});
  };
  EXPECT_NO_THROW(check_vocabularies(recipe("dpo", "reference", kWhole), 96));
  EXPECT_NO_THROW(check_vocabularies(recipe("distillation", kTeacher, kPart), 96));
}

TEST(Vocabularies, AreThoseOfAValueModelToo) {
  const auto check = [](const std::string& value) {
    const json ppo = {{"type", "ppo"}, {"reward_model", "none"}, {"value_model", value}};
    check_vocabularies(compared_with("exaone", ppo, {{"rollout", {{"max_new_tokens", 8}}}}), 96);
  };
  const std::string other = test::data_path("stories-llama").string();
  EXPECT_THAT(test::error_of<InputError>([&] { check(other); }), HasSubstr("value_model needs the policy's"));
  EXPECT_NO_THROW(check(golden_model("apertus1p5_text")));  // whose head is not the value's
}

TEST(Vocabularies, ArePlannedAsTheyAreTrained) {
  const Recipe recipe = compared_with(
      "exaone", {{"type", "distillation"}, {"teacher_model_name_or_path", test::data_path("stories-llama").string()}});
  EXPECT_THAT(test::error_of<InputError>([&] { plan_job(recipe); }), HasSubstr("a teacher needs the student's"));
}

TEST(FullRuns, OfWhatTheyCouldNotTrainOrWriteAreRefusedUpFront) {
  Recipe recipe = compared_with("exaone", {{"type", "sft"}});
  recipe.adapter.reset();
  DecoderConfig config = model_config(recipe.model);
  EXPECT_NO_THROW(plan_adapter(recipe, config, 96));
  config.towers = {"visual."};
  EXPECT_THAT(test::error_of<UsageError>([&] { plan_adapter(recipe, config, 96); }), HasSubstr("a vision tower"));

  const test::TemporaryDirectory directory;
  const std::string lines = (directory.path() / "d.jsonl").string();
  test::write_bytes(lines, "{\"input_ids\": [1, 2, 3]}\n");
  const json packed = {{"model", {{"path", test::data_path("stories-llama-nf4-dq").string()}}},
                       {"data", {{"train", lines}, {"format", "tokens"}, {"max_length", 32}}},
                       {"output", {{"dir", (directory.path() / "out").string()}}}};
  const Recipe asked = parse_recipe(packed.dump(), "test");
  EXPECT_THAT(test::error_of<UsageError>([&] { dry_run(asked, Observer()); }), HasSubstr("is packed"));
}

TEST(Layouts, AreThoseOfAReferenceAndAValueModelToo) {
  const auto refusal = [](const json& objective, const char* degree) {
    json changes = {{"parallel", {{degree, 2}}}};
    if (objective["type"] == "ppo") changes["rollout"]["max_new_tokens"] = 8;
    const Recipe recipe = compared_with("exaone", objective, changes);
    return test::error_of<UsageError>([&] { plan_adapter(recipe, model_config(recipe.model), 96); });
  };
  const json ppo = {{"type", "ppo"}, {"reward_model", "none"}, {"value_model", golden_model("gemma3n_text")}};
  EXPECT_THAT(refusal(ppo, "pipeline"), HasSubstr("layers of gemma3n_text"));
  json full = ppo;
  full["value_model"] = test::data_path("stories-llama-nf4-dq").string();
  Recipe packed = compared_with("exaone", full, {{"rollout", {{"max_new_tokens", 8}}}});
  packed.adapter.reset();
  EXPECT_THAT(test::error_of<UsageError>([&] { plan_adapter(packed, model_config(packed.model), 96); }),
              HasSubstr("4-bit weights cannot be trained"));

  const test::TemporaryDirectory scored;  // which a value model may be, of one label
  test::write_bytes(scored.path() / "config.json",
                    R"({"architectures": ["LlamaForSequenceClassification"], "model_type": "llama", "num_labels": 1,
                        "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64,
                        "vocab_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-6})");
  full["value_model"] = scored.path().string();
  const Recipe valued =
      compared_with("exaone", full, {{"rollout", {{"max_new_tokens", 8}}}, {"parallel", {{"pipeline", 2}}}});
  EXPECT_NO_THROW(plan_adapter(valued, model_config(valued.model), 96));
  for (const char* type : {"dpo", "kto"}) {
    EXPECT_THAT(refusal({{"type", type}, {"reference", golden_model("gemma3n_text")}}, "pipeline"),
                HasSubstr("layers of gemma3n_text"));
    EXPECT_THAT(refusal({{"type", type}, {"reference", golden_model("granite_swa")}}, "tensor"),
                HasSubstr("of granite_swa cannot be sharded"));
  }
}

TEST(PlannedAdapter, PlanningLeavesTheThreadsAsTheyAre) {
  const int before = threads();
  for (const bool lora_bias : {false, true}) {
    set_threads(3);
    plan_adapter(recipe_with({{"target_modules", {"q_proj"}}, {"lora_bias", lora_bias}}), config_with(true), 100);
    EXPECT_EQ(threads(), 3);
  }
  set_threads(before);
}

TEST(NewAdapter, LoftQMakesUpForTheBitsOfAHeadBesideConv1D) {
  const std::string config = R"({"model_type": "gpt2", "vocab_size": 48, "n_embd": 64, "n_layer": 1, "n_head": 2,
      "n_positions": 32, "initializer_range": 0.2, "tie_word_embeddings": false})";
  const test::TemporaryDirectory folder;
  LocalRank rank{1};
  MemoryPool& pool = rank.context().pool;
  Decoder written = random_decoder(parse_decoder_config(config, "test"), 3, rank.context());
  test::write_model(folder.path(), written, config);
  Recipe recipe = recipe_with(
      {{"target_modules", {"lm_head", "c_proj"}}, {"init_lora_weights", "loftq"}, {"r", 48}, {"lora_alpha", 48}});
  recipe.model.path = folder.path().string();
  recipe.model.quantize = QuantType::nf4;
  recipe.model.skip_modules = {"c_attn"};
  Decoder model = open_base(recipe.model, rank.context());
  open_adapter(model, recipe.model, *recipe.adapter, rank.context(), {});
  std::map<std::string, Tensor> factors;
  for (const auto& [name, value] : adapter_tensors(model)) factors[name] = value;
  model.visit_linears([&](Linear& linear) {
    if (linear.name() != "lm_head") return;
    Tensor sum = linear.weight().dequantize(0, 48, pool);
    ops::matmul_nn(factors.at("base_model.model.lm_head.lora_B.weight"),
                   factors.at("base_model.model.lm_head.lora_A.weight"), sum, true);
    written.visit_linears([&](Linear& original) {
      if (original.name() != "lm_head") return;
      EXPECT_THAT(sum.span<const float>(), ::testing::Pointwise(::testing::FloatNear(1e-4f),
                                                                original.weight().parameter()->value.span<float>()));
    });
  });
}

// Model and adapter with one tokenizer.
struct Continued {
  test::TemporaryDirectory folder;
  Recipe recipe = recipe_with({{"path", (folder.path() / "adapter").string()}});
  std::vector<std::string> notes;

  Continued() {
    recipe.model.path = (folder.path() / "model").string();
    for (const char* place : {"model", "adapter"}) write(place, "tokenizer.json", "{}");
  }
  void write(const std::string& place, const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(folder.path() / place);
    test::write_bytes(folder.path() / place / file, text);
  }
  std::string chosen() {
    Observer observer;
    observer.on_message = [this](const std::string& note) { notes.push_back(note); };
    notes.clear();
    const Recipe continued = with_adapters_template(recipe, observer);
    tokenizer_path_of(continued, observer);
    return continued.data.chat_template;
  }
};

TEST(ContinuedTemplate, IsTheAdaptersWhereTheRecipeNamesNone) {
  Continued run;
  const std::string file = (run.folder.path() / "adapter/chat_template.jinja").string();
  EXPECT_EQ(run.chosen(), "");
  run.write("adapter", "chat_template.jinja", "{{ 'a' }}");
  EXPECT_EQ(run.chosen(), file);
  EXPECT_TRUE(run.notes.empty()) << "the model has none";
  run.write("model", "chat_template.jinja", "{{ 'm' }}");
  EXPECT_EQ(run.chosen(), file);
  EXPECT_EQ(run.notes, std::vector<std::string>{"note: the adapter was trained with another chat template than the "
                                                "model's: the adapter's is used"});
  run.write("model", "chat_template.jinja", "{{ 'a' }}");
  EXPECT_EQ(run.chosen(), "") << "the model's is the same";
}

TEST(ContinuedTemplate, GivesWayToWhatTheRecipeNames) {
  Continued run;
  run.write("adapter", "chat_template.jinja", "{{ 'a' }}");
  run.recipe.data.chat_template = "chatml";
  EXPECT_EQ(run.chosen(), "chatml");
  run.recipe.data.chat_template.clear();
  run.recipe.model.tokenizer = run.recipe.model.path;
  EXPECT_EQ(run.chosen(), "");
  EXPECT_TRUE(run.notes.empty());
}

TEST(ContinuedTemplate, ComesWithTheAdaptersTokenizerWhereNoJinjaFileHasIt) {
  Continued run;
  EXPECT_EQ(tokenizer_path_of(run.recipe), run.recipe.model.path);
  run.write("adapter", "chat_template.json", R"({"chat_template": "{{ 'a' }}"})");
  run.write("model", "chat_template.json", R"({"chat_template": "{{ 'm' }}"})");
  EXPECT_EQ(run.chosen(), "");
  EXPECT_EQ(run.notes.size(), 1u);
  EXPECT_EQ(tokenizer_path_of(run.recipe), run.recipe.adapter->path);
}

}  // namespace
}  // namespace nibble
