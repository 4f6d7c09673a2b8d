// Answers that a run draws, through the recipe: stopped among them it goes on to the same bits in every layout.

#include <gmock/gmock.h>

#include <atomic>

#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;

class RolloutRuns : public OwnModel {
 protected:
  /// Twelve answers of up to 24 letters; some end soon, at one of the first half of the alphabet.
  json rollout_recipe() const {
    std::string prompts;
    for (int i = 0; i < 6; ++i) prompts += json{{"prompt_ids", {65 + i, 66 + 3 * i, 67}}}.dump() + "\n";
    write_bytes(directory_ / "prompts.jsonl", prompts);
    json recipe = own_recipe(base_, 1);
    recipe["adapter"] = {{"r", 4}, {"lora_alpha", 8}, {"init_lora_weights", false}};
    recipe["objective"] = {{"type", "grpo"}, {"beta", 0.05}};
    json ends = json::array();
    for (char letter = 'a'; letter < 'n'; ++letter) ends.push_back(std::string(1, letter));
    recipe["rollout"] = {{"completions", 4}, {"max_new_tokens", 24}, {"stop", ends}};
    recipe["rewards"] = {{{"type", "length"}, {"max_completion_len", 24}, {"soft_punish_cache", 23}}};
    recipe["data"] = {{"train", (directory_ / "prompts.jsonl").string()}, {"max_length", 40}};
    recipe["train"]["microbatch_size"] = 3;
    recipe["train"]["steps"] = 2;
    return recipe;
  }

  std::string answers(const std::string& run, int64_t step) const {
    return read_bytes(directory_ / run / "rollouts" / ("step-" + std::to_string(step) + ".jsonl"));
  }
};

TEST_F(RolloutRuns, StoppedAmongTheAnswersOfAStepGoOnToTheSameBits) {
  json wanted = rollout_recipe();
  trains_ = finetune;
  const Outcome whole = run(wanted, 1, "whole");
  ASSERT_EQ(whole.losses.size(), 2u);
  for (const auto& [parallel, ranks] : std::vector<std::pair<json, int>>{
           {nullptr, 1}, {{{"replicate", 2}}, 2}, {{{"shard", 2}}, 2}, {{{"pipeline", 2}}, 2}}) {
    wanted["parallel"] = parallel;
    const std::string name = "stopped" + parallel.dump();
    std::vector<WorkProgress> drawn;  // on the last rank, for step 2
    std::atomic<bool> stops = true, stop = false;
    trains_ = [&](const Recipe& recipe, RankContext& rank, Observer observer) {
      const bool last = rank.comm.rank() == rank.comm.size() - 1;
      observer.on_work = [&, last](const WorkProgress& work) {
        if (!last || work.what != "drawing" || work.step != 2) return;
        drawn.push_back(work);
        stop = stop || (stops && work.done > 0);
      };
      observer.stop_requested = [&, last] { return last && stop; };
      finetune(recipe, rank, observer);
    };
    EXPECT_EQ(run(wanted, ranks, name).losses.size(), 1u) << name;
    const int64_t all = drawn.front().of, kept = drawn.back().done;
    EXPECT_GT(kept, 0) << name;
    EXPECT_LT(kept, all) << name;
    stops = stop = false;
    drawn.clear();
    const Outcome resumed = run(wanted, ranks, name);
    EXPECT_EQ(drawn.front().of, all - kept) << name << ": no answer is drawn twice";
    EXPECT_EQ(resumed.losses, whole.losses) << name;
    EXPECT_TRUE(resumed.weights == whole.weights) << name;
    for (const int64_t step : {1, 2}) EXPECT_EQ(answers(name, step), answers("whole", step)) << name;
  }
}

// Apertus 1.5 reads more tokens than it says.
TEST_F(RolloutRuns, StagesDrawFromAHeadOfSomeTokens) {
  json wanted = rollout_recipe();
  wanted["model"]["path"] = data_path("goldens/model_types/apertus1p5_text/model").string();
  wanted["rollout"] = {{"completions", 4}, {"max_new_tokens", 8}};
  trains_ = finetune;
  run(wanted, 1, "whole");
  wanted["parallel"] = {{"pipeline", 2}};
  run(wanted, 2, "staged");
  for (const int64_t step : {1, 2}) EXPECT_EQ(answers("staged", step), answers("whole", step));
}

// A model of its own beside the policy, which the plan before the run has too.
TEST_F(RolloutRuns, AReferenceHasTheShardsOfThePolicy) {
  json wanted = rollout_recipe();
  wanted["objective"] = {{"type", "rloo"}, {"reference", "initial"}};
  trains_ = finetune;
  const Outcome whole = run(wanted, 1, "whole");
  wanted["parallel"] = {{"tensor", 2}};
  const Outcome sharded = run(wanted, 2, "sharded");
  ASSERT_EQ(sharded.losses.size(), 2u);
  EXPECT_NEAR(sharded.losses[0], whole.losses[0], 1e-5);
}

}  // namespace
}  // namespace nibble
