// What a plan runs of answers that are drawn, beside what the run takes.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/parallel/plan/memory.h"
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
      block.judge(executor, nullptr, {});
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
  EXPECT_GE(many.books.draw_passes, 8 * few.books.draw_passes / 2);
  EXPECT_GT(many.books.draw_flops, few.books.draw_flops);
  EXPECT_EQ(few.books.judge_flops, 0) << "the policy is the one that wrote, and there is no reference";
  EXPECT_GT(planned({{"type", "rloo"}}, 8).books.judge_flops, 0);
  json ppo = {{"type", "ppo"}};
  const StageMemory plain = planned(ppo, 8);
  ppo["reward_model"] = (directory / "reward").string();
  const StageMemory judged = planned(ppo, 8);
  EXPECT_GT(judged.books.judge_flops, plain.books.judge_flops);
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(directory / "reward" / "model.safetensors"));
  EXPECT_GE(judged.needed() - plain.needed(), bytes / 2);
}

}  // namespace
}  // namespace nibble
