// The plan's memory against real steps: what the pools of all ranks held at most, for every way to train and every
// layout.

#include "nibble/parallel/plan/memory.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/plan/ladder.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Case {
  const char* name;
  const char* family;
  const char* mode;
  const char* checkpointing;
  int ranks;
  json parallel;
  int64_t save_every = 0;
};

const std::vector<Case>& planned_cases() {
  static const std::vector<Case> all = {
      {"Lora", "llama", "lora", "none", 1, {}},
      {"LoraRecomputed", "llama", "lora", "block", 1, {}},
      {"LoraSaving", "llama", "lora", "none", 1, {}, 1},
      {"FullSaving", "llama", "full", "none", 1, {}, 1},
      {"FullSavingByAll", "llama", "full", "none", 2, {{"shard", 2}}, 1},
      {"Qlora", "llama", "qlora", "none", 1, {}},
      {"Dora", "llama", "dora", "none", 1, {}},
      {"Full", "llama", "full", "none", 1, {}},
      {"FullRecomputed", "llama", "full", "block", 1, {}},
      {"Pretrain", "llama", "pretrain", "none", 1, {}},
      {"NeoxLora", "gpt_neox", "lora", "none", 1, {}},
      {"NeoxFull", "gpt_neox", "full", "none", 1, {}},
      {"Qwen3Lora", "qwen3", "lora", "none", 1, {}},
      {"Gemma2Lora", "gemma2", "lora", "none", 1, {}},
      {"Copies2Lora", "llama", "lora", "none", 2, {{"replicate", 2}}},
      {"Copies2Full", "llama", "full", "none", 2, {{"replicate", 2}}},
      {"Zero1Full", "llama", "full", "none", 2, {{"shard", 2}, {"zero", 1}}},
      {"Zero2Full", "llama", "full", "none", 2, {{"shard", 2}, {"zero", 2}}},
      {"Zero3Full", "llama", "full", "none", 4, {{"shard", 4}}},
      {"Zero3FullRecomputed", "llama", "full", "block", 4, {{"shard", 4}}},
      {"Zero3Qlora", "llama", "qlora", "none", 2, {{"shard", 2}}},
      {"HybridFull", "llama", "full", "none", 4, {{"shard", 2}, {"replicate", 2}}},
      {"PipelineNaiveQlora", "llama", "qlora", "none", 2, {{"pipeline", 2}, {"schedule", "naive"}}},
      {"PipelineGpipeFull", "llama", "full", "none", 2, {{"pipeline", 2}, {"schedule", "gpipe"}}},
      {"Pipeline1f1bFull", "llama", "full", "none", 4, {{"pipeline", 4}}},
      {"PipelineAndShardQlora", "llama", "qlora", "none", 4, {{"pipeline", 2}, {"shard", 2}}},
      {"TensorLora", "llama", "lora", "none", 2, {{"tensor", 2}}},
      {"TensorQlora", "llama", "qlora", "none", 2, {{"tensor", 2}}},
      {"TensorFull", "gpt_neox", "full", "none", 2, {{"tensor", 2}}},
      {"TensorAndShardFull", "gpt_neox", "full", "none", 4, {{"tensor", 2}, {"shard", 2}}},
      {"PipelineAndTensorQlora", "llama", "qlora", "none", 4, {{"pipeline", 2}, {"tensor", 2}}},
      {"Experts2Lora", "qwen3_moe", "lora", "none", 2, {{"replicate", 2}, {"experts", 2}}},
      {"Experts2LoraRecomputed", "qwen3_moe", "lora", "block", 2, {{"replicate", 2}, {"experts", 2}}},
      {"Experts2AndShardQlora", "qwen3_moe", "qlora", "none", 4, {{"shard", 2}, {"replicate", 2}, {"experts", 2}}},
      {"Experts2Full", "qwen3_moe", "full", "none", 2, {{"replicate", 2}, {"experts", 2}}},
      {"Experts2AndShardFull", "qwen3_moe", "full", "none", 4, {{"shard", 2}, {"replicate", 2}, {"experts", 2}}},
      {"Experts2AndPipelineFull", "qwen3_moe", "full", "none", 4, {{"pipeline", 2}, {"replicate", 2}, {"experts", 2}}},
      {"Experts2Pretrain", "qwen3_moe", "pretrain", "none", 4, {{"replicate", 4}, {"experts", 2}}},
      {"LoraInAFile", "llama", "lora", "none", 1, {{"offload_activations", true}}},
      {"LoraRecomputedInAFile", "llama", "lora", "block", 1, {{"offload_activations", true}}},
      {"Zero3FullInAFile", "llama", "full", "none", 2, {{"shard", 2}, {"offload_activations", true}}},
      {"PipelineGpipeLoraInAFile",
       "llama",
       "lora",
       "none",
       2,
       {{"pipeline", 2}, {"schedule", "gpipe"}, {"offload_activations", true}}},
      {"Pipeline1f1bFullInAFile", "llama", "full", "none", 2, {{"pipeline", 2}, {"offload_activations", true}}},
  };
  return all;
}

json config_of(const std::string& family) {
  json config = {{"model_type", family},
                 {"hidden_size", 64},
                 {"intermediate_size", 192},
                 {"num_hidden_layers", 4},
                 {"num_attention_heads", 4},
                 {"vocab_size", 1024},
                 {"max_position_embeddings", 512},
                 {"hidden_act", "silu"},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2},
                 {"initializer_range", 0.02},
                 {"tie_word_embeddings", false}};
  if (family == "gpt_neox") {
    config.update({{"architectures", {"GPTNeoXForCausalLM"}},
                   {"rotary_pct", 0.25},
                   {"rotary_emb_base", 10000},
                   {"layer_norm_eps", 1e-5},
                   {"use_parallel_residual", true},
                   {"hidden_act", "gelu"}});
    return config;
  }
  config.update({{"num_key_value_heads", 2}, {"rms_norm_eps", 1e-5}, {"rope_theta", 10000.0}, {"head_dim", 16}});
  if (family == "qwen3_moe") {  // all experts are chosen: every rank gets as many rows
    config.update({{"architectures", {"Qwen3MoeForCausalLM"}},
                   {"num_experts", 4},
                   {"num_experts_per_tok", 4},
                   {"moe_intermediate_size", 48}});
    return config;
  }
  config["architectures"] = {family == "llama"   ? "LlamaForCausalLM"
                             : family == "qwen3" ? "Qwen3ForCausalLM"
                                                 : "Gemma2ForCausalLM"};
  if (family == "gemma2") {
    config.update({{"query_pre_attn_scalar", 16},
                   {"attn_logit_softcapping", 50.0},
                   {"final_logit_softcapping", 30.0},
                   {"sliding_window", 256},
                   {"hidden_activation", "gelu_pytorch_tanh"},
                   {"tie_word_embeddings", true}});
  }
  return config;
}

class PlannedMemory : public testing::TestWithParam<size_t> {
 protected:
  Recipe recipe(const Case& of) {
    const fs::path config = directory_ / "config.json", base = directory_ / "base";
    test::write_bytes(config, config_of(of.family).dump());
    std::string lines;
    for (int i = 0; i < 16; ++i) {
      json ids = json::array();
      for (int t = 0; t < 128; ++t) ids.push_back(3 + (31 * i + t * t) % 1000);
      lines += json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
    }
    test::write_bytes(directory_ / "data.jsonl", lines);
    const std::string mode = of.mode;
    json result = {
        {"data",
         {{"train", (directory_ / "data.jsonl").string()}, {"format", "tokens"}, {"pack", false}, {"max_length", 128}}},
        {"train", {{"steps", 2}, {"accumulate", 4}, {"gradient_checkpointing", of.checkpointing}}},
        {"output", {{"dir", (directory_ / "out").string()}}}};
    result["model"]["compute_dtype"] = "f32";
    if (mode == "pretrain") {
      result["model"]["init"] = config.string();
      result["model"]["tokenizer"] = tokenizer_.string();
    } else {
      init_model({.config = config.string(), .out = base.string(), .dtype = mode == "qlora" ? "nf4" : "bf16"});
      result["model"]["path"] = base.string();
    }
    if (mode == "lora" || mode == "qlora") result["adapter"] = {{"r", 8}, {"lora_dropout", 0.1}};
    if (std::string(of.family) == "qwen3_moe" && result.contains("adapter")) {
      result["adapter"]["lora_dropout"] = 0;  // experts have none
    }
    if (mode == "dora") result["adapter"] = {{"r", 8}, {"use_dora", true}};
    if (!of.parallel.is_null()) result["parallel"] = of.parallel;
    result["train"]["save_every"] = of.save_every;  // 0: never, as the run that is measured
    return parse_recipe(result.dump(), "test");
  }

  void SetUp() override { tokenizer_ = test::data_path("stories-llama"); }

  test::TemporaryDirectory directory_;
  fs::path tokenizer_;
};

TEST_P(PlannedMemory, IsThatOfTheStep) {
  const Case& of = planned_cases()[GetParam()];
  const Recipe asked = recipe(of);
  std::vector<int64_t> peaks(static_cast<size_t>(of.ranks));
  std::vector<std::map<std::string, CommTraffic, std::less<>>> sent(peaks.size());
  run_on_threads(of.ranks, [&](Communicator& comm) {
    MemoryPool pool;
    RankContext rank{comm, pool, 1, 0};
    set_threads(1);
    train(asked, rank, {});
    peaks[static_cast<size_t>(comm.rank())] = static_cast<int64_t>(pool.peak());
    sent[static_cast<size_t>(comm.rank())] = comm.settings().traffic;
  });
  const PlanJob job = plan_job(asked);
  const PlanLayout layout = plan_layout(asked);
  const MemoryPlan plan = plan_memory(job, layout, place_stages(job, layout, 1), 1);
  ASSERT_EQ(static_cast<int64_t>(plan.stages.size()), layout.mesh.pipeline);
  const size_t each = peaks.size() / plan.stages.size();
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const int64_t measured = *std::max_element(peaks.begin() + static_cast<int64_t>(s * each),
                                               peaks.begin() + static_cast<int64_t>((s + 1) * each));
    EXPECT_NEAR(static_cast<double>(plan.stages[s].pool_peak) / static_cast<double>(measured), 1, 0.10)
        << "stage " << s << ": " << plan.stages[s].pool_peak << " planned, " << measured << " measured";
  }
  // Of what only steps exchange; the run has two.
  const Traffic traffic = traffic_of(job, layout, plan);
  for (const char* operation :
       {"reduce gradients", "sum gradients", "sum layer outputs", "sum layer gradients", "sum embeddings",
        "activations", "gradients", "rows of experts", "rows to experts", "weights to experts", "results of experts",
        "gradients to experts", "gradients of weights", "gradients of experts"}) {
    const auto planned = traffic.find(operation);
    double mean = 0, most = 0;  // of the ranks of a stage, which are sharded unevenly
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      double sum = 0;
      for (size_t r = s * each; r < (s + 1) * each; ++r) {
        const auto own = static_cast<double>(sent[r][operation].sent);
        sum += own;
        most = std::max(most, own);
      }
      mean = std::max(mean, sum / static_cast<double>(each));
    }
    const double step = planned == traffic.end() ? 0 : planned->second;
    EXPECT_GE(2 * step, 0.99 * mean) << operation;
    EXPECT_LE(2 * step, 1.01 * most) << operation;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlannedMemory, testing::Range<size_t>(0, planned_cases().size()),
                         [](const auto& which) { return planned_cases()[which.param].name; });

}  // namespace
}  // namespace nibble
