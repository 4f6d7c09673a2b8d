// Configurations of other tools that train on more than the next token.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/recipes/config/conversion/convert_recipe.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;
using test::error_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

struct ConvertedObjective {
  explicit ConvertedObjective(const std::string& text, const std::string& objective = "", const char* reward = nullptr)
      : notes(convert_recipe(text, "theirs.yml", objective).notes),
        root(json::parse(convert_recipe(text, "theirs.yml", objective).text)) {
    if (reward != nullptr) root["rewards"] = json::parse(reward);
    parse_recipe(root.dump(), "ours.json", {});  // accepts it
  }
  std::vector<std::string> notes;
  json root;
};

const std::string kTrl = "model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\n";
const std::string kFactory = "model_name_or_path: m\ndataset: pairs\noutput_dir: o\n";
const std::string kAxolotlPairs = "base_model: m\ndatasets: d.jsonl\noutput_dir: o\n";
constexpr const char* kExact = R"([{"type": "exact", "column": "answer"}])";

TEST(ConvertObjective, TrlsDpoIsRecognizedByItsKeys) {
  const ConvertedObjective dpo(kTrl + R"(
beta: 0.2
loss_type: [sigmoid, sft]
loss_weights: [1.0, 0.5]
max_length: 256
use_peft: true
)");
  EXPECT_EQ(dpo.root["objective"], json::parse(R"({"type": "dpo", "beta": 0.2, "loss_type": ["sigmoid", "sft"],
                                                   "loss_weights": [1.0, 0.5]})"));
  EXPECT_EQ(dpo.root["optimizer"]["lr"], 1e-6);
  EXPECT_FALSE(dpo.root["adapter"].contains("lora_dropout")) << "the trainer turns it off";
  EXPECT_FALSE(dpo.root["data"].contains("pack"));
  EXPECT_THAT(dpo.notes, Each(Not(HasSubstr("counterpart"))));
}

TEST(ConvertObjective, NoiseOnEmbeddingsIsNamedWhereTheObjectiveHasNone) {
  const ConvertedObjective dpo(kAxolotlPairs + "rl: dpo\nneftune_noise_alpha: 5\n");
  EXPECT_FALSE(dpo.root["train"].contains("neftune_noise_alpha"));
  EXPECT_THAT(dpo.notes, Contains(HasSubstr("neftune_noise_alpha: has no meaning for the objective dpo")));
}

TEST(ConvertObjective, TrlsWeightsOfLossesStayBesideRpoAlpha) {
  const ConvertedObjective dpo(kTrl + R"(
beta: 0.2
loss_type: [sigmoid, sft]
loss_weights: [0.8, 1.0]
rpo_alpha: 0.5
router_aux_loss_coef: 0.01
)");
  EXPECT_EQ(dpo.root["objective"], json::parse(R"({"type": "dpo", "beta": 0.2, "loss_type": ["sigmoid", "sft", "sft"],
                                                   "loss_weights": [0.8, 1.0, 0.5]})"));
  EXPECT_EQ(dpo.root["model"]["router_aux_loss_coef"], 0.01);
  EXPECT_THAT(dpo.notes, Each(Not(HasSubstr("counterpart"))));
}

TEST(ConvertObjective, TrlsGrpoWritesRolloutsAndAsksForRewards) {
  const std::string theirs = kTrl + R"(
num_generations: 8
beta: 0.01
epsilon_high: 0.28
loss_type: dr_grpo
scale_rewards: false
temperature: 0.9
use_vllm: true
per_device_train_batch_size: 8
eval_strategy: "no"
)";
  const ConvertedObjective grpo(theirs, "", kExact);
  EXPECT_EQ(grpo.root["objective"], json::parse(R"({"type": "grpo", "beta": 0.01, "epsilon_high": 0.28,
                                                    "loss_type": "dr_grpo", "scale_rewards": "none"})"));
  EXPECT_EQ(grpo.root["rollout"], json::parse(R"({"completions": 8, "temperature": 0.9, "max_new_tokens": 512})"));
  EXPECT_EQ(grpo.root["data"], json::parse(R"({"train": "d.jsonl", "truncate": "drop", "max_length": 1536})"));
  EXPECT_THAT(grpo.notes, AllOf(Contains(HasSubstr("rewards: is missing")), Contains(HasSubstr("use_vllm: has no"))));
  const ConvertedObjective scored(theirs + "max_prompt_length: 88\nreward_model_name_or_path: r\n");
  EXPECT_EQ(scored.root["rewards"], json::parse(R"([{"type": "model", "path": "r"}])"));
  EXPECT_EQ(scored.root["data"]["max_length"], 600);
}

TEST(ConvertObjective, EachOfTrlsTrainersHasKeysOfItsOwn) {
  const auto type = [](const std::string& keys, const char* reward = nullptr) {
    return ConvertedObjective(kTrl + keys, "", reward).root["objective"]["type"];
  };
  EXPECT_EQ(type("desirable_weight: 1.2\nbeta: 0.3\n"), "kto");
  EXPECT_EQ(type("cpo_alpha: 0.5\nloss_type: sigmoid\n"), "cpo");
  EXPECT_EQ(type("cpo_alpha: 0.0\nloss_type: simpo\n"), "simpo");
  EXPECT_EQ(type("center_rewards_coefficient: 0.01\n"), "reward");
  EXPECT_EQ(type("num_generations: 4\nnormalize_advantages: true\n", kExact), "rloo");
  const ConvertedObjective next(kTrl + "packing: true\nloss_type: nll\n");
  EXPECT_FALSE(next.root.contains("objective"));
  EXPECT_EQ(next.root["optimizer"]["lr"], 2e-5);
}

TEST(ConvertObjective, KeysOfSeveralTrainersAreRefusedUntilOneIsNamed) {
  const auto refusal = [](const std::string& text, const std::string& objective = "") {
    return error_of<UsageError>([&] { convert_recipe(text, "t.yml", objective); });
  };
  const std::string unclear = kTrl + "beta: 0.1\nmax_prompt_length: 512\n";
  EXPECT_THAT(refusal(unclear),
              HasSubstr("t.yml: may be for the trainers dpo, kto, cpo, orpo, grpo, rloo of TRL, which all have beta, "
                        "max_prompt_length; say for which, as in --objective dpo"));
  EXPECT_EQ(ConvertedObjective(unclear, "orpo").root["objective"], json::parse(R"({"type": "orpo", "beta": 0.1})"));
  EXPECT_THAT(refusal(kTrl + "packing: true\nbeta: 0.1\n"),
              HasSubstr("t.yml: has keys that no trainer of TRL has together: packing, beta"));
  EXPECT_THAT(refusal(kTrl + "num_ppo_epochs: 2\n"), HasSubstr("\"ppo\" is not converted"));
  EXPECT_THAT(refusal(kTrl, "dpp"), HasSubstr("nibble recipes cp dpo"));
  EXPECT_THAT(refusal(kAxolotlPairs + "rl: gdpo\n"), HasSubstr("\"gdpo\" is not converted"));
  EXPECT_THAT(refusal(kFactory + "stage: ppo\n"), HasSubstr("nibble recipes cp ppo"));
  EXPECT_THAT(refusal(kFactory + "stage: dpo\n", "kto"), HasSubstr("--objective: is for a configuration of TRL"));
}

TEST(ConvertObjective, LlamaFactorysStageAndPrefLoss) {
  const ConvertedObjective dpo(kFactory +
                               "stage: dpo\npref_beta: 0.2\npref_loss: ipo\npref_ftx: 0.5\nlora_dropout: 0.1\n");
  EXPECT_EQ(dpo.root["objective"], json::parse(R"({"type": "dpo", "beta": 0.2, "loss_type": ["ipo", "sft"],
                                                   "loss_weights": [1, 0.5]})"));
  EXPECT_THAT(dpo.notes, AllOf(Contains(HasSubstr("lora_dropout: LLaMA-Factory turns dropout off")),
                               Contains(HasSubstr("pref_ftx: the loss of chosen answers is a mean over tokens"))));
  EXPECT_EQ(ConvertedObjective(kFactory + "stage: dpo\npref_loss: simpo\nsimpo_gamma: 1.0\n").root["objective"],
            json::parse(R"({"type": "simpo", "simpo_gamma": 1.0, "cpo_alpha": 0})"));
  EXPECT_EQ(
      ConvertedObjective(kFactory + "stage: kto\nkto_chosen_weight: 1.1\nkto_rejected_weight: 0.9\n").root["objective"],
      json::parse(R"({"type": "kto", "desirable_weight": 1.1, "undesirable_weight": 0.9})"));
  EXPECT_EQ(ConvertedObjective(kFactory + "stage: rm\n").root["objective"], json::parse(R"({"type": "reward"})"));
}

TEST(ConvertObjective, AxolotlsRl) {
  const ConvertedObjective dpo(R"(
base_model: m
rl: dpo
rl_beta: 0.3
train_on_inputs: true
datasets:
  - {path: d.jsonl, type: chat_template.default, field_messages: ask, field_chosen: good}
output_dir: o
)");
  EXPECT_EQ(dpo.root["objective"], json::parse(R"({"type": "dpo", "beta": 0.3})"));
  EXPECT_EQ(dpo.root["data"]["fields"], json::parse(R"({"prompt": "ask", "chosen": "good"})"));
  EXPECT_THAT(dpo.notes, AllOf(Contains(HasSubstr("train_on_inputs: has no meaning for the objective dpo")),
                               Contains(HasSubstr("datasets.type: \"chat_template.default\" is left out"))));
  EXPECT_EQ(ConvertedObjective(kAxolotlPairs + "rl: ipo\n").root["objective"],
            json::parse(R"({"type": "dpo", "loss_type": "ipo"})"));
  const ConvertedObjective grpo(kAxolotlPairs + R"(
rl: grpo
trl: {beta: 0.001, num_generations: 4, max_completion_length: 64, reward_funcs: [mine.judge]}
micro_batch_size: 4
val_set_size: 0.1
sequence_len: 300
)",
                                "", kExact);
  EXPECT_EQ(grpo.root["objective"], json::parse(R"({"type": "grpo", "beta": 0.001})"));
  EXPECT_EQ(grpo.root["rollout"], json::parse(R"({"completions": 4, "max_new_tokens": 64})"));
  EXPECT_EQ(grpo.root["data"], json::parse(R"({"train": "d.jsonl", "truncate": "drop", "max_length": 300})"));
  EXPECT_THAT(grpo.notes, AllOf(Contains(HasSubstr("trl.reward_funcs: has no counterpart")),
                                Contains(HasSubstr("val_set_size: is left out"))));
}

}  // namespace
}  // namespace nibble
