// Which layout the plan takes, and that it needs nothing but a config.

#include "nibble/parallel/plan/ladder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/recipes/plan/auto_layout.h"
#include "nibble/recipes/plan/plan.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;

constexpr const char* kLlama70B =
    R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16"})";

class PlannedRun : public testing::Test {
 protected:
  Recipe recipe(const json& changes = json::object()) {
    std::filesystem::create_directories(directory_ / "model");
    test::write_bytes(directory_ / "model" / "config.json", kLlama70B);
    json result = {{"model", {{"path", (directory_ / "model").string()}, {"compute_dtype", "bf16"}}},
                   {"data", {{"train", "none.jsonl"}, {"max_length", 2048}}},
                   {"train", {{"steps", 10}, {"accumulate", 64}}},
                   {"output", {{"dir", (directory_ / "out").string()}}}};
    result.merge_patch(changes);
    return parse_recipe(result.dump(), "test");
  }
  // 64 ranks with 80 GB, 8 to a node.
  PlanRequest cluster(double memory = 80e9) const {
    PlanRequest request;
    request.ranks = 64;
    request.cluster =
        parse_cluster(R"({"name": "64 ranks", "flops": 3e14, "link_bandwidth": 2e11, "node_bandwidth": 2e11})", "test");
    request.budget = static_cast<int64_t>(memory);
    return request;
  }

  test::TemporaryDirectory directory_;
};

TEST_F(PlannedRun, SeventyBillionWeightsArePlannedFromTheirConfigAlone) {
  const RecipePlan plan = plan_recipe(recipe(), cluster());
  EXPECT_NEAR(static_cast<double>(plan.job.model.weights()), 68.98e9, 0.01e9);
  ASSERT_TRUE(plan.first_fit());
  EXPECT_EQ(plan.first_fit()->rung, "zero 3");  // 16 bytes a weight over 64 ranks, and a layer whole
  EXPECT_GT(plan.first_fit()->memory.needed_bytes(), 16 * plan.job.model.weights() / 64);
  EXPECT_NE(plan.why.find("data parallel: needs"), std::string::npos) << plan.why;
}

TEST_F(PlannedRun, NoDocumentIsLongerThanItsLearnedPositions) {
  const Recipe asked = recipe();
  test::write_bytes(directory_ / "model" / "config.json", R"({"architectures": ["GPT2LMHeadModel"],
      "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 100})");
  const RecipePlan plan = plan_recipe(asked, cluster());
  EXPECT_EQ(plan.job.document_length, 128);
  EXPECT_EQ(plan.job.tokens, 2048);
  EXPECT_TRUE(plan.first_fit());
}

// What no block fills between blocks grows in no straight line with the layers.
TEST_F(PlannedRun, TheMarginIsThatOfAllLayers) {
  const Recipe asked = recipe({{"parallel", {{"shard", 16}}}, {"train", {{"gradient_checkpointing", "block"}}}});
  test::write_bytes(directory_ / "model" / "config.json", R"({"architectures": ["GPTNeoXForCausalLM"],
      "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
      "num_attention_heads": 64, "vocab_size": 50432, "use_parallel_residual": true, "hidden_act": "gelu"})");
  PlanRequest request = cluster();
  request.ranks = 16;
  const RecipePlan plan = plan_recipe(asked, request);
  const MemoryPlan few = plan_memory(plan.job, plan.asked.layout, plan.asked.stages, 1, 0, false);
  const auto margin = [](const MemoryPlan& of) { return of.largest().split[MemoryUse::margin]; };
  EXPECT_GT(margin(plan.asked.memory), 2 * margin(few));
}

TEST_F(PlannedRun, ManyThreadsHaveMoreLogitsAtOnce) {
  const Recipe asked = recipe({{"adapter", {{"r", 16}}}});
  test::write_bytes(directory_ / "model" / "config.json", R"({"architectures": ["LlamaForCausalLM"],
      "model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
      "num_attention_heads": 4, "vocab_size": 32000})");
  PlanRequest one = cluster();
  one.ranks = 1;
  const RecipePlan plan = plan_recipe(asked, one);
  const auto logits = [&](int threads) {
    return plan_memory(plan.job, plan.asked.layout, plan.asked.stages, threads).largest().split[MemoryUse::logits];
  };
  const auto more = static_cast<double>(logits(64) - logits(2));
  EXPECT_NEAR(more, 256 * 32000 * (4 + 2), 1e6);  // 512 rows, not 256, and their gradient
}

TEST_F(PlannedRun, EveryRungNeedsLessThanTheOneBefore) {
  const RecipePlan plan = plan_recipe(recipe(), cluster());
  const auto bytes = [&](size_t rung) { return plan.ladder[rung].memory.needed_bytes(); };
  ASSERT_EQ(plan.ladder.size(), 6u);
  for (size_t rung = 1; rung < 4; ++rung) EXPECT_LT(bytes(rung), bytes(rung - 1)) << plan.ladder[rung].rung;
  EXPECT_EQ(plan.ladder.back().rung, "offload");
  for (size_t rung = 0; rung < 4; ++rung) EXPECT_LT(bytes(5), bytes(rung)) << plan.ladder[rung].rung;
}

TEST_F(PlannedRun, ActivationsInAFileAreCountedThere) {
  const json adapter = {{"adapter", {{"r", 16}}}, {"train", {{"gradient_checkpointing", "block"}}}};
  json spilled = adapter;
  spilled["parallel"]["offload_activations"] = true;
  PlanRequest one = cluster(0);
  one.ranks = 1;
  one.cluster->memory = 0;
  one.cluster->disk_bandwidth = 1e10;
  const PlannedLayout kept = plan_recipe(recipe(adapter), one).asked,
                      offloaded = plan_recipe(recipe(spilled), one).asked;
  // Inputs of 80 blocks, 8192 values of 2048 tokens in f32, of which the highest stays in memory and one is on its way.
  const int64_t input = 4 * 8192 * 2048;
  EXPECT_EQ(offloaded.file_bytes, 79 * input);
  EXPECT_EQ(offloaded.spilled_bytes, 64 * 79 * input);
  EXPECT_NEAR(static_cast<double>(kept.memory.needed_bytes() - offloaded.memory.needed_bytes()),
              static_cast<double>(78 * input), static_cast<double>(2 * input));
  EXPECT_EQ(offloaded.time.spilling, 0);  // hidden behind computing
  one.cluster->disk_bandwidth = 1e6;
  const PlannedLayout slow = plan_recipe(recipe(spilled), one).asked;
  EXPECT_NEAR(slow.time.seconds, 2 * static_cast<double>(slow.spilled_bytes) / 1e6, 0.01 * slow.time.seconds);
}

TEST_F(PlannedRun, OnlyAsManyBlocksAreRecomputedAsHaveTo) {
  const json adapter = {{"adapter", {{"r", 16}}}, {"model", {{"quantize", "nf4"}}}};
  const auto planned = [&](const json& checkpointing, double budget) {
    json changes = adapter;
    changes["train"]["gradient_checkpointing"] = checkpointing;
    PlanRequest one = cluster(budget);
    one.ranks = 1;
    return plan_recipe(recipe(changes), one).asked;
  };
  const PlannedLayout none = planned("none", 500e9), block = planned("block", 500e9);
  const double all = static_cast<double>(none.memory.needed_bytes());
  const double least = static_cast<double>(block.memory.needed_bytes());
  ASSERT_LT(least, all);
  const PlannedLayout some = planned("auto", least + (all - least) / 3);
  EXPECT_TRUE(some.fits);
  const auto again = std::ranges::count(some.layout.recomputed, true);
  EXPECT_NEAR(static_cast<double>(again), 80 * 2 / 3.0, 4);
  EXPECT_TRUE(some.layout.recomputes(0));
  EXPECT_FALSE(some.layout.recomputes(79));
  EXPECT_GT(some.time.seconds, none.time.seconds);
  EXPECT_LT(some.time.seconds, block.time.seconds);
  EXPECT_EQ(std::ranges::count(planned("auto", all).layout.recomputed, true), 0);
}

TEST_F(PlannedRun, AFourBitBaseFitsWhereASixteenBitOneDoesNot) {
  const json adapter = {{"adapter", {{"r", 16}}}, {"train", {{"gradient_checkpointing", "block"}}}};
  PlanRequest one = cluster(60e9);
  one.ranks = 1;
  EXPECT_FALSE(plan_recipe(recipe(adapter), one).asked.fits);
  json packed = adapter;
  packed["model"]["quantize"] = "nf4";
  const RecipePlan plan = plan_recipe(recipe(packed), one);
  EXPECT_TRUE(plan.asked.fits) << plan.asked.why_not;
  // Embedding and head are resident during their passes, else in the page cache.
  const StageMemory& memory = plan.asked.memory.largest();
  const auto base = static_cast<double>(memory.split[MemoryUse::base] + memory.cached);
  EXPECT_NEAR(base / (0.516 * 68.4e9 + 2 * 2 * 32000 * 8192), 1, 0.02);
}

// As the run is, instead of a plan of other degrees.
TEST_F(PlannedRun, DegreesOfAnotherNumberOfRanksAreRefused) {
  const Recipe asked = recipe({{"parallel", {{"shard", 16}}}});
  EXPECT_EQ(test::error_of<UsageError>([&] { plan_recipe(asked, cluster()); }),
            "parallel: pipeline x replicate x shard x tensor is 16 (shard 16, zero 3), the plan is for 64 ranks; plan "
            "with -n 16, change the degrees, or set some to \"auto\"");
}

TEST_F(PlannedRun, BytesOnTheWireAreTheFormulas) {
  const auto values = static_cast<double>(plan_recipe(recipe(), cluster()).job.model.weights());
  const auto sent = [&](const json& parallel) {
    const RecipePlan plan = plan_recipe(
        recipe({{"parallel", parallel}, {"train", {{"accumulate", 4}, {"gradient_checkpointing", "block"}}}}), [&] {
          PlanRequest request = cluster();
          request.ranks = 4;
          return request;
        }());
    double sum = 0;
    for (const auto& [operation, bytes] : plan.asked.traffic) sum += bytes;
    return sum / 4 * 4 / 3;  // elements, of all but the rank's own quarter
  };
  EXPECT_NEAR(sent({{"replicate", 4}}) / (2 * values), 1, 0.001);
  EXPECT_NEAR(sent({{"shard", 4}}) / (3 * values), 1, 0.01);  // embedding and head are gathered once
}

TEST_F(PlannedRun, TheFastestThatFitsIsChosen) {
  LayoutCosts costs;
  const RecipePlan plan = plan_recipe(recipe(), cluster());
  costs.cluster = *cluster().cluster;
  costs.budget = plan.budget;
  PlanLayout base;
  base.recompute = Recompute::block;
  const PlannedLayout chosen = choose_layout(plan.job, base, 64, {.tensor = 1}, costs);
  EXPECT_TRUE(chosen.fits);
  for (const auto& [pipeline, shard] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 64}, {2, 32}, {4, 16}, {8, 8}, {64, 1}}) {
    PlanLayout other = base;
    other.mesh = {.pipeline = pipeline, .replicate = 64 / pipeline / shard, .shard = shard};
    const PlannedLayout planned = plan_layout_costs(plan.job, other, costs);
    EXPECT_TRUE(!planned.fits || chosen.time.seconds <= planned.time.seconds * 1.03) << planned.rung;
  }
  EXPECT_THROW(choose_layout(plan.job, base, 64, {.pipeline = 7, .tensor = 1}, costs), UsageError);
}

TEST_F(PlannedRun, LayersArePlacedSoThatEveryStageFits) {
  const Recipe asked =
      recipe({{"adapter", {{"r", 16}}}, {"model", {{"quantize", "nf4"}}}, {"parallel", {{"pipeline", 4}}}});
  const RecipePlan plan = plan_recipe(asked, [&] {
    PlanRequest request = cluster();
    request.ranks = 4;
    return request;
  }());
  const std::vector<int64_t> free = place_stages(plan.job, plan.asked.layout, 1);
  int64_t most = 0;
  const MemoryPlan freely = plan_memory(plan.job, plan.asked.layout, free, 1);
  for (const StageMemory& stage : freely.stages) most = std::max(most, stage.needed());
  EXPECT_EQ(place_stages(plan.job, plan.asked.layout, 1, most), free);
  const std::vector<int64_t> tight = place_stages(plan.job, plan.asked.layout, 1, most - most / 100);
  EXPECT_LE(plan_memory(plan.job, plan.asked.layout, tight, 1).needed_bytes(), most);
}

TEST_F(PlannedRun, AutoDegreesAreDecidedOnceForAllRanks) {
  json small = json::parse(kLlama70B);
  small.update({{"hidden_size", 64},
                {"intermediate_size", 128},
                {"num_hidden_layers", 4},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 2},
                {"vocab_size", 512}});
  const Recipe asked = recipe(
      {{"data", {{"max_length", 64}}}, {"parallel", {{"pipeline", "auto"}, {"shard", "auto"}, {"replicate", "auto"}}}});
  test::write_bytes(directory_ / "model" / "config.json", small.dump());
  EXPECT_EQ(asked.parallel.shard, 0);
  EXPECT_EQ(to_json(parse_recipe(to_json(asked), "again")), to_json(asked));
  std::vector<std::string> chosen(4);
  run_on_threads(4, [&](Communicator& comm) {
    MemoryPool pool;
    RankContext rank{comm, pool, 1, 0};
    const Recipe result = with_layout(asked, rank, {});
    EXPECT_EQ(result.parallel.mesh().ranks(), 4);
    chosen[static_cast<size_t>(comm.rank())] = to_json(result);
    MemoryPool tight(1 << 20);
    RankContext poor{comm, tight, 1, 0};
    EXPECT_THROW(with_layout(asked, poor, {}), UsageError);
  });
  for (const std::string& one : chosen) EXPECT_EQ(one, chosen.front());
}

// Of models of which the last have no stages, the middle ones no shards of a layer, or an objective has none.
TEST_F(PlannedRun, AutoDegreesAreThoseThatARunTakes) {
  PlanRequest two = cluster();
  two.ranks = 2;
  const auto plan = [&](const std::string& model, const json& changes = json::object()) {
    json all = {{"model", {{"path", test::data_path("goldens/" + model + "/model").string()}}},
                {"data", {{"max_length", 32}}},
                {"parallel", {{"pipeline", "auto"}, {"shard", "auto"}, {"replicate", "auto"}, {"tensor", "auto"}}}};
    all.merge_patch(changes);
    return plan_recipe(recipe(all), two);
  };
  const auto pipeline_of = [](const RecipePlan& planned) {
    return *std::ranges::find(planned.ladder, "pipeline", &PlannedLayout::rung);
  };
  EXPECT_TRUE(pipeline_of(plan("families/llama-0")).fits);
  for (const char* model : {"model_types/gemma3n_text", "families/gemma4-1", "families/zamba2-4"}) {
    for (const json& degrees : {json::object(), {{"pipeline", 1}, {"replicate", 2}, {"shard", 1}, {"tensor", 1}}}) {
      const RecipePlan planned = plan(model, {{"parallel", degrees}});
      EXPECT_EQ(pipeline_of(planned).why_not, "not possible for this model") << model;
      EXPECT_EQ(planned.asked.layout.mesh.pipeline, 1) << model;
    }
  }
  EXPECT_EQ(plan("model_types/granite_swa").asked.layout.mesh.tensor, 1);
  EXPECT_EQ(plan("families/mistral-0", {{"adapter", {{"use_dora", true}}}}).asked.layout.mesh.tensor, 1);
  const json only_tensor = {{"parallel", {{"pipeline", 1}, {"replicate", 1}, {"shard", 1}, {"tensor", "auto"}}}};
  EXPECT_EQ(plan("families/mistral-0", only_tensor).asked.layout.mesh.tensor, 2);
  json reward = only_tensor;
  reward["objective"]["type"] = "reward";
  EXPECT_THROW(plan("families/mistral-0", reward), UsageError);
}

TEST_F(PlannedRun, AsJsonItHasWhatScriptsNeed) {
  const json plan = json::parse(plan_json(plan_recipe(recipe(), cluster())));
  for (const char* key : {"peak_memory_bytes", "memory", "step_seconds", "tokens_per_second", "bytes_sent", "ladder",
                          "first_fit", "why", "ranks", "fits"}) {
    EXPECT_TRUE(plan.contains(key)) << key;
  }
  int64_t sum = 0;
  for (const auto& [use, bytes] : plan["memory"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(sum, plan["peak_memory_bytes"].get<int64_t>());
  EXPECT_EQ(plan["ranks"].size(), 64u);
}

TEST_F(PlannedRun, ThisMachineIsMeasured) {
  json small = json::parse(kLlama70B);
  small.update({{"hidden_size", 64},
                {"intermediate_size", 128},
                {"num_hidden_layers", 2},
                {"num_attention_heads", 4},
                {"num_key_value_heads", 2},
                {"vocab_size", 512}});
  Recipe asked = recipe({{"adapter", {{"r", 4}}}, {"data", {{"max_length", 64}}}});
  test::write_bytes(directory_ / "model" / "config.json", small.dump());
  const RecipePlan plan = plan_recipe(asked);
  EXPECT_GT(plan.asked.time.seconds, 0);
  EXPECT_EQ(plan.machine, "this machine");
}

}  // namespace
}  // namespace nibble
