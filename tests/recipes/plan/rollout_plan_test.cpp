// What a plan runs of answers that are drawn, beside what the run takes.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/parallel/plan/machine_time.h"
#include "nibble/parallel/plan/memory.h"
#include "nibble/parallel/plan/sampled_drawing.h"
#include "nibble/recipes/plan/plan.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/reinforcement/block.h"
#include "nibble/tests/core/models/mixtures.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;
using test::TemporaryDirectory;

constexpr const char* kModel = R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 97, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": false, "max_position_embeddings": 128})";

json rollout_recipe(const std::filesystem::path& model, const json& objective, int64_t max_new_tokens) {
  json recipe = {{"model", {{"path", model.string()}, {"compute_dtype", "f32"}}},
                 {"adapter", {{"r", 4}}},
                 {"objective", objective},
                 {"rollout", {{"completions", 4}, {"max_new_tokens", max_new_tokens}}},
                 {"data", {{"train", "prompts.jsonl"}, {"max_length", 96}}},
                 {"train", {{"microbatch_size", 4}, {"accumulate", 3}}},
                 {"output", {{"dir", "run"}}}};
  if (objective["type"] != "distillation") recipe["rewards"] = {{{"type", "number"}, {"column", "answer"}}};
  return recipe;
}

struct Drawn {
  size_t peak = 0;
  int64_t passes = 0;
};

TEST(RolloutPlan, ABlockWithoutBytesTakesTheMemoryOfTheRealOne) {
  TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "model");
  const DecoderConfig config = parse_decoder_config(kModel, "test");
  for (const json& objective : {json{{"type", "grpo"}, {"beta", 0.1}}, json{{"type", "rloo"}}}) {
    const Recipe recipe = parse_recipe(rollout_recipe(directory / "model", objective, 40).dump(), "test");
    const PlannedBlock block = planned_block(recipe, config);
    const auto draw = [&](const Device& device) {
      MemoryPool pool(0, device);
      LocalRank local(1);
      RankContext rank{local.context().comm, pool, 1, 3};
      Decoder model = random_decoder(config, 1, rank);
      LocalExecutor executor(model, rank);
      Drawn drawn;
      block.draw(model, executor, [&] { return ++drawn.passes > 0; });
      block.judge(executor, nullptr, nullptr, {});
      drawn.peak = pool.peak();
      return drawn;
    };
    const MetaDevice device;
    const Drawn here = draw(cpu_device()), there = draw(device);
    EXPECT_EQ(there.peak, here.peak) << objective;
    EXPECT_EQ(there.passes, here.passes) << objective;
    EXPECT_GE(there.passes, 40) << objective;
  }
}

// Counts what is given to an executor that runs all passes, and to one that runs some.
TEST(RolloutPlan, APlanOfSomePassesHasTheMemoryAndTheCostsOfAll) {
  TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "model");
  json shape = json::parse(kModel);
  shape["max_position_embeddings"] = 1024;
  const DecoderConfig config = parse_decoder_config(shape.dump(), "test");
  for (const int64_t prompts : {3, 1}) {
    json asked = rollout_recipe(directory / "model", {{"type", "grpo"}}, 900);
    asked["data"]["max_length"] = 1000;
    asked["train"]["accumulate"] = prompts;
    const PlannedBlock block = planned_block(parse_recipe(asked.dump(), "test"), config);
    struct Drawing {
      double flops = 0;
      size_t peak = 0;
      int64_t passes = 0, layers = 0;
    };
    const auto draw = [&](bool some) {
      const MetaDevice device;
      MemoryPool pool(0, device);
      LocalRank local(1);
      RankContext rank{local.context().comm, pool, 1, 3};
      Decoder model = random_decoder(config, 1, rank);
      LocalExecutor executor(model, rank);
      double before = device.total().flops;
      const auto take = [&] {
        StepCost cost;
        cost.flops = device.total().flops - std::exchange(before, device.total().flops);
        return cost;
      };
      Drawing drawn;
      const auto count = [&](const Batch&) { --drawn.layers; };
      detail::SampledDrawing sampled(executor, block.longest, take, count);
      block.draw(model, some ? static_cast<StepExecutor&>(sampled) : executor, [&] {
        ++drawn.layers;
        return ++drawn.passes > 0;
      });
      drawn.flops = some ? sampled.cost().flops : take().flops;
      drawn.peak = pool.peak();
      return drawn;
    };
    const Drawing all = draw(false), some = draw(true);
    EXPECT_EQ(some.flops, all.flops);
    EXPECT_EQ(some.peak, all.peak);
    EXPECT_EQ(some.passes, all.passes);
    EXPECT_LT(some.layers, 120);  // that were run
    EXPECT_GT(all.layers, 900);
  }
}

// Of tokens that were added to the tokenizer the value model has rows too, and no head that could.
TEST(RolloutPlan, ValueModelsHaveRowsOfAddedTokens) {
  TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "model");
  std::ofstream(directory / "model" / "config.json") << kModel;
  json vocabulary;
  for (int i = 0; i < 99; ++i) vocabulary["w" + std::to_string(i)] = i;
  std::ofstream(directory / "tokenizer.json")
      << json{{"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", "w0"}}}};
  json asked = rollout_recipe(directory / "model", {{"type", "ppo"}, {"reference", "initial"}}, 40);
  asked["model"]["tokenizer"] = (directory / "tokenizer.json").string();
  asked["rollout"]["completions"] = 1;
  const PlanJob job = plan_job(parse_recipe(asked.dump(), "test"));
  ASSERT_EQ(job.model.config.vocab_size, 99);
  const MetaDevice device;
  MemoryPool pool(0, device);
  LocalRank local(1);
  RankContext rank{local.context().comm, pool, 1, 3};
  Decoder value = job.make_value(job.model.config, {}, nullptr, nullptr, rank);
  int64_t rows = 0;
  value.visit([&](const Parameter& parameter) {
    if (parameter.trainable && parameter.value.shape() == Shape{2, 32}) rows += 2;
  });
  EXPECT_EQ(rows, 2);
}

// Beyond which a run would refuse to write.
TEST(RolloutPlan, AnswersEndWithThePositionsOfTheModel) {
  TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "model");
  const DecoderConfig config = parse_decoder_config(
      R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, "vocab_size": 97})",
      "test");
  const json objective = {{"type", "grpo"}, {"beta", 0.1}};
  const Recipe recipe = parse_recipe(rollout_recipe(directory / "model", objective, 64).dump(), "test");
  const PlannedBlock block = planned_block(recipe, config);
  const MetaDevice device;
  MemoryPool pool(0, device);
  LocalRank local(1);
  RankContext rank{local.context().comm, pool, 1, 3};
  Decoder model = random_decoder(config, 1, rank);
  LocalExecutor executor(model, rank);
  int64_t passes = 0;
  block.draw(model, executor, [&] { return ++passes > 0; });
  EXPECT_LE(passes, 48);
  EXPECT_GE(passes, 40);
  block.judge(executor, nullptr, nullptr, {});
}

TEST(RolloutPlan, HasTheCacheAndTheModelsThatJudge) {
  TemporaryDirectory directory;
  json scored = json::parse(kModel);
  for (const char* name : {"model", "reward"}) {
    LocalRank rank;
    Decoder model = random_decoder(parse_decoder_config(scored.dump(), "test"), 1, rank.context());
    test::write_model(directory / name, model, scored.dump());
    scored["architectures"] = {"Qwen3ForSequenceClassification"};
    scored["num_labels"] = 1;
  }
  const auto planned = [&](const json& objective, int64_t max_new_tokens) {
    const Recipe recipe = parse_recipe(rollout_recipe(directory / "model", objective, max_new_tokens).dump(), "test");
    return plan_memory(plan_job(recipe), plan_layout(recipe), {0, 2}, 1).stages.front();
  };
  const StageMemory few = planned({{"type", "grpo"}}, 8), many = planned({{"type", "grpo"}}, 64);
  EXPECT_GE(many.costs.draw_passes, 8 * few.costs.draw_passes / 2);
  EXPECT_GT(many.costs.draw_flops, few.costs.draw_flops);
  EXPECT_EQ(few.costs.judge_flops, 0) << "the policy is the one that wrote, and there is no reference";
  EXPECT_GT(planned({{"type", "rloo"}}, 8).costs.judge_flops, 0);
  json ppo = {{"type", "ppo"}};
  const StageMemory plain = planned(ppo, 8);
  ppo["reward_model"] = (directory / "reward").string();
  const StageMemory judged = planned(ppo, 8);
  EXPECT_GT(judged.costs.judge_flops, plain.costs.judge_flops);
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(directory / "reward" / "model.safetensors"));
  EXPECT_GE(judged.needed() - plain.needed(), bytes / 2);
}

// Both have parameters and AdamW's two states.
TEST(RolloutPlan, ACheckpointOfPpoHasTheValueModelToo) {
  TemporaryDirectory directory;
  LocalRank rank;
  json wide = json::parse(kModel);
  wide["intermediate_size"] = 4096;  // more than what a step keeps
  Decoder model = random_decoder(parse_decoder_config(wide.dump(), "test"), 1, rank.context());
  test::write_model(directory / "model", model, wide.dump());
  const auto needed = [&](const char* type, bool saves) {
    json recipe = rollout_recipe(directory / "model", {{"type", type}}, 8);
    recipe.erase("adapter");
    const Recipe read = parse_recipe(recipe.dump(), "test");
    PlanJob job = plan_job(read);
    job.saves_midway = saves;
    return plan_memory(job, plan_layout(read), {0, 2}, 1).stages.front().needed();
  };
  const int64_t rloo = needed("rloo", true) - needed("rloo", false), ppo = needed("ppo", true) - needed("ppo", false);
  EXPECT_GT(rloo, 0);
  EXPECT_GE(ppo, 19 * rloo / 10);
}

TEST(RolloutPlan, AClusterDrawsToo) {
  TemporaryDirectory directory;
  for (const char* name : {"model", "teacher"}) {
    LocalRank rank;
    Decoder model = random_decoder(parse_decoder_config(kModel, "test"), 1, rank.context());
    test::write_model(directory / name, model, kModel);
  }
  const auto seconds = [&](json objective, int64_t max_new_tokens, double bandwidth = 0) {
    if (objective["type"] == "distillation") {
      objective["teacher_model_name_or_path"] = (directory / "teacher").string();
    }
    json recipe = rollout_recipe(directory / "model", objective, max_new_tokens);
    recipe["train"]["gradient_checkpointing"] = "none";
    PlanRequest request;
    request.cluster = Cluster{.name = "a cluster", .flops = 1e9, .memory_bandwidth = bandwidth};
    return plan_recipe(parse_recipe(recipe.dump(), "test"), request).asked.time.seconds;
  };
  const json grpo = {{"type", "grpo"}};
  EXPECT_GT(seconds(grpo, 64), seconds(grpo, 8) * 1.05);
  EXPECT_GT(seconds({{"type", "grpo"}, {"beta", 0.1}}, 8), seconds(grpo, 8)) << "passes of the reference";
  EXPECT_GT(seconds(grpo, 64, 1e4), 63) << "each of 63 passes reads all weights, above 10 kB";
  const json always = {{"type", "distillation"}};
  const double own = seconds(always, 40),
               half = seconds({{"type", "distillation"}, {"lmbda", 0.5}, {"seq_kd", true}}, 40);
  EXPECT_NEAR(half, own, 0.05 * own) << "the teacher, as large as the student, draws the other half";
  EXPECT_GT(own, seconds(grpo, 40)) << "passes of the teacher";
}

// Where layers are shards, a pass over all answers under way gathers each of them once.
TEST(RolloutPlan, ShardsAreGatheredOnceForTheTokensOfAPass) {
  TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "model");
  std::ofstream(directory / "model" / "config.json") << kModel;
  json recipe = rollout_recipe(directory / "model", {{"type", "grpo"}}, 40);
  recipe["parallel"] = {{"shard", 2}};
  const Recipe read = parse_recipe(recipe.dump(), "test");
  const PlanJob job = plan_job(read, parse_decoder_config(kModel, "test"));
  const StepCosts costs = plan_memory(job, plan_layout(read), {0, 2}, 1).stages.front().costs;
  double gathers = 0, tokens = 12 * 40;
  for (const auto& [exchange, amount] : costs.block.exchanges) {
    if (exchange.axis == MeshAxis::shard && exchange.kind == CommKind::gather) gathers += amount.messages;
  }
  EXPECT_GT(costs.draw_passes, 40);
  EXPECT_LE(costs.draw_passes, 50) << "all 12 answers together";
  const double layers = 2, ends = 2;  // embedding and head
  EXPECT_GE(gathers, layers * costs.draw_passes);
  EXPECT_LE(gathers, (layers + ends) * costs.draw_passes);
  EXPECT_LT(gathers, tokens);
}

TEST(RolloutPlan, StagesDrawOneAfterAnother) {
  TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "model");
  std::ofstream(directory / "model" / "config.json") << kModel;
  MachineSpeed speed;
  speed.cores = 2;
  speed.threads = 1;
  PartSeconds& parts = speed.parts[1];
  for (auto of : {&PartSeconds::forward, &PartSeconds::backward, &PartSeconds::forward_recompute,
                  &PartSeconds::backward_recompute}) {
    parts.*of = {0, 0};
  }
  parts.draw = {1, 1};  // a layer in a pass
  const auto planned = [&](int stages) {
    json recipe = rollout_recipe(directory / "model", {{"type", "grpo"}}, 40);
    recipe["parallel"] = {{"pipeline", stages}};
    const Recipe read = parse_recipe(recipe.dump(), "test");
    const PlanJob job = plan_job(read, parse_decoder_config(kModel, "test"));
    const PlanLayout layout = plan_layout(read);
    const std::vector<int64_t> begins = stages == 1 ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{0, 1, 2};
    return step_time_here(job, layout, plan_memory(job, layout, begins, 1), speed).seconds;
  };
  EXPECT_GT(planned(1), 2 * 40);
  EXPECT_NEAR(planned(2), planned(1), 1e-6 * planned(1));
}

// Of very many answers or tokens a plan runs some.
TEST(RolloutPlan, AMillionAnswersArePlannedAsAMultipleOfSome) {
  TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "model");
  std::ofstream(directory / "model" / "config.json") << kModel;
  const auto planned = [&](int64_t microbatch_size, int64_t completions) {
    json recipe = rollout_recipe(directory / "model", {{"type", "grpo"}, {"beta", 0.1}}, 8);
    recipe["rollout"]["completions"] = completions;
    recipe["train"] = {{"microbatch_size", microbatch_size}};
    const Recipe read = parse_recipe(recipe.dump(), "test");
    const PlanJob job = plan_job(read, parse_decoder_config(kModel, "test"));
    return plan_memory(job, plan_layout(read), {0, 2}, 1).stages.front();
  };
  const StageMemory small = planned(1024, 4), twice = planned(2048, 4), large = planned(16384, 4);
  const auto more = static_cast<double>(twice.pool_peak - small.pool_peak);
  EXPECT_NEAR(static_cast<double>(large.pool_peak), static_cast<double>(twice.pool_peak) + 14 * more,
              0.01 * static_cast<double>(large.pool_peak));
  EXPECT_NEAR(large.costs.draw_passes, 8 * twice.costs.draw_passes, 1e-6 * large.costs.draw_passes);
  EXPECT_NEAR(large.costs.judge_flops, 8 * twice.costs.judge_flops, 1e-6 * large.costs.judge_flops);
  EXPECT_GT(planned(1000000, 1000000).pool_peak, large.pool_peak);
}

TEST(RolloutPlan, PairsTakeTheMemoryOfTexts) {
  TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "model");
  std::ofstream(directory / "model" / "config.json") << kModel;
  const auto needed = [&](const json& objective, int64_t microbatch_size) {
    json recipe = {{"model", {{"path", (directory / "model").string()}, {"compute_dtype", "f32"}}},
                   {"adapter", {{"r", 4}}},
                   {"data", {{"train", "data.jsonl"}, {"max_length", 96}, {"pack", false}}},
                   {"train", {{"microbatch_size", microbatch_size}}},
                   {"output", {{"dir", "run"}}}};
    if (!objective.is_null()) recipe["objective"] = objective;
    const Recipe read = parse_recipe(recipe.dump(), "test");
    const DecoderConfig config = parse_decoder_config(kModel, "test");
    const PlanJob job = plan_job(read, config);
    EXPECT_EQ(job.tokens, 8 * 96);
    return static_cast<double>(plan_memory(job, plan_layout(read), {0, 2}, 1).stages.front().needed());
  };
  const double texts = needed(nullptr, 8);
  for (const char* type : {"dpo", "cpo", "orpo"}) EXPECT_LE(needed({{"type", type}}, 4), 1.1 * texts) << type;
}

}  // namespace
}  // namespace nibble
