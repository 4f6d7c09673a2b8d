// Mixtures of experts on several ranks, stopped and resumed: adapters on experts, dense and in 4 bits, and training of
// everything.

#include <gmock/gmock.h>

#include <fstream>

#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;

struct ExpertKind {
  const char *name, *model_type;
  bool four_bit;
  json adapter;  ///< null: everything is trained
  bool pretrains = false;
};

const std::vector<ExpertKind>& expert_kinds() {
  static const json both = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"};
  static const json fused = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
  static const std::vector<ExpertKind> all = {
      {"OneTensorEach", "qwen3_moe", false, {{"target_parameters", both}}},
      {"OneTensorEachIn4Bits", "qwen3_moe", true, {{"target_parameters", both}, {"target_modules", {"q_proj"}}}},
      {"AllInOne", "gpt_oss", false, {{"target_parameters", fused}}},
      {"AllInOneIn4Bits", "gpt_oss", true, {{"target_parameters", fused}, {"target_modules", {"q_proj"}}}},
      {"OneTensorEachTrained", "qwen3_moe", false, {}},
      {"AllInOneTrained", "gpt_oss", false, {}},
      {"OneTensorEachSaved", "qwen3_moe", false, {{"target_modules", {"q_proj"}}, {"modules_to_save", {"experts"}}}},
      {"OneTensorEachSavedUnderAdapters", "qwen3_moe", false, {{"modules_to_save", {"experts"}}}},
      {"AllInOneSaved", "gpt_oss", false, {{"target_modules", {"q_proj"}}, {"modules_to_save", {"experts"}}}},
      {"OneTensorEachPretrained", "qwen3_moe", false, {}, true},
      {"AllInOnePretrained", "gpt_oss", false, {}, true},
      {"InALatentWidth",
       "nemotron_h",
       true,
       {{"target_parameters", {"mixer.experts.up_proj", "mixer.experts.down_proj"}},
        {"target_modules", {"fc1_latent_proj", "fc2_latent_proj"}}}},
      {"InALatentWidthTrained", "nemotron_h", false, {}},
  };
  return all;
}

class ExpertRuns : public OwnModel, public testing::WithParamInterface<size_t> {
 protected:
  void SetUp() override {
    const ExpertKind& kind = expert_kinds()[GetParam()];
    json config = {{"model_type", kind.model_type},
                   {"hidden_size", 32},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"head_dim", 8},
                   {"intermediate_size", 24},
                   {"moe_intermediate_size", 24},
                   {"num_local_experts", 6},
                   {"num_experts_per_tok", 2},
                   {"vocab_size", 257},
                   {"max_position_embeddings", 64},
                   {"tie_word_embeddings", false},
                   {"eos_token_id", 256},
                   {"initializer_range", 0.2},
                   {"dtype", "float32"}};
    if (latent()) {
      config.merge_patch({{"hybrid_override_pattern", "*E"},
                          {"n_routed_experts", 6},
                          {"moe_latent_size", 16},
                          {"moe_shared_expert_intermediate_size", 20}});
    }
    base_ = directory_ / "model";
    write_bytes(directory_ / "model.json", config.dump());
    init_model({.config = (directory_ / "model.json").string(), .out = base_.string(), .seed = 3, .dtype = "f32"});
    write_bytes(base_ / "tokenizer.json", byte_tokenizer());
    write_bytes(base_ / "tokenizer_config.json", json{{"eos_token", "<|end|>"}}.dump());
    wanted_ = own_recipe(base_, 12);
    if (!kind.adapter.is_null()) {
      wanted_["adapter"] = {{"r", 2}, {"lora_alpha", 4}};
      wanted_["adapter"].merge_patch(kind.adapter);
    }
    if (kind.pretrains) {
      wanted_["model"] = {{"init", (directory_ / "model.json").string()}, {"tokenizer", base_.string()}};
      wanted_["model"]["compute_dtype"] = "f32";
      wanted_["data"].erase("pack");
    }
    if (!latent()) wanted_["model"]["router_aux_loss_coef"] = 0.1;
    if (kind.four_bit) wanted_["model"]["quantize"] = "nf4";
  }

  static bool latent() { return std::string_view(expert_kinds()[GetParam()].model_type) == "nemotron_h"; }
  /// How many values run.json says there are, and how many of them are trained.
  json counts(const std::string& name) const {
    return json::parse(read_bytes(directory_ / name / "run.json"))["model"];
  }

  /// The load-balancing losses of the steps; Nemotron's router has none.
  std::vector<double> balances(const std::string& name) const {
    std::ifstream lines(directory_ / name / "metrics.jsonl");
    std::vector<double> found;
    for (std::string line; !latent() && std::getline(lines, line);) {
      found.push_back(json::parse(line).at("aux_loss").get<double>());
    }
    return found;
  }

  static void expect_same_bits(const Outcome& got, const Outcome& want) {
    ASSERT_EQ(want.losses.size(), 3u);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.norms, want.norms);
    EXPECT_FALSE(want.weights.empty());
    EXPECT_TRUE(got.weights == want.weights) << "what was trained differs";
  }

  json wanted_;
};

TEST_P(ExpertRuns, TwoRanksGiveTheBitsOfOne) {
  const Outcome one = run(wanted_, 1, "one");
  expect_same_bits(run(wanted_, 2, "two"), one);
  EXPECT_THAT(balances("one"), testing::AllOf(testing::SizeIs(latent() ? 0 : 3), testing::Each(testing::Ge(1))));
  EXPECT_EQ(balances("two"), balances("one"));
  json sharded = wanted_;
  sharded["parallel"] = {{"shard", 2}};
  expect_same_bits(run(sharded, 2, "sharded"), one);
  sharded["parallel"] = {{"shard", 2}, {"shard_adapters", true}};
  expect_same_bits(run(sharded, 2, "everything-sharded"), one);
}

TEST_P(ExpertRuns, SpreadOverRanksTheyGiveTheBitsOfOne) {
  const Outcome one = run(wanted_, 1, "one");
  const auto spread = [&](const std::string& name, int ranks, const json& parallel) {
    SCOPED_TRACE(name);
    wanted_["parallel"] = parallel;
    expect_same_bits(run(wanted_, ranks, name), one);
    EXPECT_EQ(counts(name), counts("one"));
  };
  spread("two", 2, {{"experts", 2}, {"replicate", 2}});
  spread("four", 4, {{"experts", 4}, {"replicate", 4}});
  spread("two-copies-of-two", 4, {{"experts", 2}, {"replicate", 4}});
  spread("base-sharded", 4, {{"experts", 2}, {"shard", 2}, {"replicate", 2}});
  spread("everything-sharded", 2, {{"experts", 2}, {"shard", 2}, {"shard_adapters", true}});
  spread("states-sharded", 4, {{"experts", 4}, {"shard", 4}, {"shard_adapters", true}, {"zero", 1}});
  wanted_["parallel"] = {{"pipeline", 2}};
  const Outcome stages = run(wanted_, 2, "stages");
  wanted_["parallel"] = {{"experts", 2}, {"replicate", 2}, {"pipeline", 2}};
  expect_same_bits(run(wanted_, 4, "spread-stages"), stages);
}

// The norm is added up stage by stage: without clipping it changes nothing else. The balance is that of all stages.
TEST_P(ExpertRuns, StagesGiveTheLossesOfOneRank) {
  wanted_["train"]["max_grad_norm"] = 0;
  const Outcome one = run(wanted_, 1, "one");
  wanted_["parallel"] = {{"pipeline", 2}};
  const Outcome stages = run(wanted_, 2, "stages");
  ASSERT_EQ(one.losses.size(), 3u);
  EXPECT_EQ(stages.losses, one.losses);
  EXPECT_EQ(balances("stages"), balances("one"));
  for (size_t i = 0; i < one.norms.size(); ++i) EXPECT_NEAR(stages.norms[i], one.norms[i], 1e-9 * one.norms[i]);
}

TEST_P(ExpertRuns, PackedTheyGiveTheBitsOfOneRank) {
  wanted_["data"]["pack"] = true;
  wanted_["data"]["train"] = make_texts(40).string();
  const Outcome one = run(wanted_, 1, "one");
  wanted_["parallel"] = {{"experts", 2}, {"replicate", 2}};
  expect_same_bits(run(wanted_, 2, "two"), one);
  wanted_["parallel"] = {{"experts", 2}, {"shard", 4}, {"zero", 2}};
  expect_same_bits(run(wanted_, 4, "four"), one);
}

TEST_P(ExpertRuns, SummedAsTheyComeTheyGiveTheNumbersOfOneRank) {
  wanted_["train"]["gradient_sum"] = "running";
  const Outcome one = run(wanted_, 1, "one");
  for (const json& parallel : {json{{"experts", 2}, {"replicate", 2}}, json{{"experts", 2}, {"shard", 2}}}) {
    wanted_["parallel"] = parallel;
    const Outcome two = run(wanted_, 2, "two-" + parallel.dump());
    ASSERT_EQ(two.losses.size(), 3u);
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(two.losses[i], one.losses[i], 1e-5) << parallel;
      EXPECT_NEAR(two.norms[i], one.norms[i], 1e-4 * one.norms[i]) << parallel;
    }
  }
}

// Of three microbatches two ranks have two and one, four ranks one, one, one and none.
TEST_P(ExpertRuns, RanksWithoutAMicrobatchServeTheOthers) {
  wanted_["train"]["accumulate"] = 3;
  wanted_["train"]["eval_every"] = 1;
  wanted_["train"]["samples"] = 1;
  wanted_["data"]["eval_fraction"] = 0.2;
  const auto compare = [&](const Outcome& want, const std::string& name, int ranks, const json& parallel) {
    SCOPED_TRACE(name);
    wanted_["parallel"] = parallel;
    const Outcome got = run(wanted_, ranks, name);
    expect_same_bits(got, want);
    expect_same_evaluations(got, want, 1e-12);
  };
  const Outcome one = run(wanted_, 1, "one");
  compare(one, "two", 2, {{"experts", 2}, {"replicate", 2}});
  compare(one, "four", 4, {{"experts", 2}, {"shard", 2}, {"replicate", 2}});
  wanted_["parallel"] = {{"pipeline", 2}};
  compare(run(wanted_, 2, "stages"), "spread-stages", 4, {{"experts", 2}, {"replicate", 2}, {"pipeline", 2}});
}

// Answers of a file: their log-probabilities are computed in step, and nothing is drawn.
TEST_P(ExpertRuns, OfGivenAnswersTheyGiveTheBitsOfOneRank) {
  const ExpertKind& kind = expert_kinds()[GetParam()];
  if (kind.pretrains) return;
  std::string answers;
  for (int i = 0; i < 24; ++i) {
    std::vector<int> answer(static_cast<size_t>(2 + i * 5 % 7));
    for (size_t t = 0; t < answer.size(); ++t) answer[t] = 97 + (i * 3 + static_cast<int>(t * t)) % 26;
    const int prompt = i / 4;
    answers +=
        json{{"prompt_ids", {65 + prompt, 66 + 3 * prompt, 67}}, {"completion_ids", answer}, {"reward", i % 3}}.dump() +
        "\n";
  }
  write_bytes(directory_ / "answers.jsonl", answers);
  wanted_["data"] = {{"max_length", 32}};
  wanted_["rollout"] = {{"completions", 4}, {"file", (directory_ / "answers.jsonl").string()}};
  if (!kind.adapter.is_null()) wanted_["adapter"]["init_lora_weights"] = false;  // unlike the base from the start
  const bool keeps_base = !kind.adapter.is_null() && !kind.adapter.contains("modules_to_save");
  json objectives = {{{"type", "grpo"}, {"num_iterations", 2}}, {{"type", "rloo"}, {"num_iterations", 2}}};
  for (json& objective : objectives) objective["beta"] = keeps_base ? 0.05 : 0;
  if (keeps_base) objectives.push_back({{"type", "distillation"}, {"teacher_model_name_or_path", base_.string()}});
  for (const json& objective : objectives) {
    const std::string name = objective["type"];
    SCOPED_TRACE(name);
    wanted_["objective"] = objective;
    if (objective.value("beta", 0.0) > 0) wanted_["objective"]["reference"] = "adapter_off";
    wanted_["parallel"] = nullptr;
    const Outcome one = run(wanted_, 1, name);
    EXPECT_GT(one.norms.at(0), 0);
    wanted_["parallel"] = {{"experts", 2}, {"replicate", 2}};
    expect_same_bits(run(wanted_, 2, name + "-two"), one);
    wanted_["parallel"] = {{"experts", 2}, {"shard", 4}, {"shard_adapters", true}};
    expect_same_bits(run(wanted_, 4, name + "-four"), one);
  }
}

// Tensors of all experts have 9216 and 4608 values, in blocks that lie in one expert; other states stay in f32.
TEST_P(ExpertRuns, SpreadTheyHaveThe8BitStatesOfOneRank) {
  wanted_["optimizer"]["type"] = "adamw8bit";
  const Outcome one = run(wanted_, 1, "one");
  wanted_["parallel"] = {{"experts", 2}, {"replicate", 2}};
  expect_same_bits(run(wanted_, 2, "two"), one);
  wanted_["parallel"] = {{"experts", 2}, {"shard", 4}, {"shard_adapters", true}};
  expect_same_bits(run(wanted_, 4, "sharded"), one);
  wanted_["parallel"] = {{"experts", 2}, {"replicate", 2}};
  run(wanted_, 2, "stopped", 1);
  wanted_["parallel"] = {{"experts", 4}, {"replicate", 4}};
  run(wanted_, 4, "stopped", 2);
  wanted_["parallel"] = {};
  expect_same_bits(run(wanted_, 1, "stopped"), one);
}

TEST_P(ExpertRuns, SpreadTheyRecomputeAndResumeOnOtherRanks) {
  const Outcome one = run(wanted_, 1, "one");
  wanted_["train"]["gradient_checkpointing"] = "block";
  wanted_["parallel"] = {{"experts", 2}, {"replicate", 2}};
  expect_same_bits(run(wanted_, 2, "recomputed"), one);
  run(wanted_, 2, "stopped", 1);
  wanted_["parallel"] = {{"experts", 4}, {"replicate", 4}};
  run(wanted_, 4, "stopped", 2);
  wanted_["parallel"] = {};
  expect_same_bits(run(wanted_, 1, "stopped"), one);
}

TEST_P(ExpertRuns, ResumeToTheSameBits) {
  const Outcome whole = run(wanted_, 1, "whole");
  run(wanted_, 1, "stopped", 1);
  expect_same_bits(run(wanted_, 1, "stopped"), whole);
}

TEST_P(ExpertRuns, RecomputingGivesTheSameBits) {
  const Outcome kept = run(wanted_, 1, "kept");
  wanted_["train"]["gradient_checkpointing"] = "block";
  expect_same_bits(run(wanted_, 1, "recomputed"), kept);
}

// The reason of a run that ends before it begins.
std::string refusal(const std::function<void()>& begin) {
  try {
    begin();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST_P(ExpertRuns, WhatCannotBeSpreadIsRefusedUpFront) {
  const auto refused = [&](const json& parallel, const std::string& reason, int ranks = 2) {
    wanted_["parallel"] = parallel;
    EXPECT_THAT(refusal([&] { run(wanted_, ranks, "refused"); }), testing::HasSubstr(reason)) << parallel;
  };
  refused({{"experts", 2}, {"pipeline", 2}}, "2 does not divide replicate x shard = 1");
  refused({{"experts", 2}, {"tensor", 2}}, "experts are spread over ranks that have full layers");
  refused({{"experts", 8}, {"replicate", 8}}, "the model has 6 experts, fewer than the 8 ranks", 8);
  const json two = {{"experts", 2}, {"replicate", 2}};
  const bool saves = wanted_.contains("adapter") && wanted_["adapter"].contains("modules_to_save");
  if (!saves || wanted_["model"].contains("quantize") ||
      expert_kinds()[GetParam()].model_type != std::string("qwen3_moe"))
    return;
  wanted_["adapter"]["modules_to_save"] = {"experts.1.up_proj", "experts.4.up_proj"};
  refused(two, "the adapter trains the weights of 2 of the 6 experts in model.layers.0.mlp.experts.gate_up_proj");
}

INSTANTIATE_TEST_SUITE_P(Kinds, ExpertRuns, testing::Range<size_t>(0, expert_kinds().size()),
                         [](const auto& which) { return std::string(expert_kinds()[which.param].name); });

}  // namespace
}  // namespace nibble
