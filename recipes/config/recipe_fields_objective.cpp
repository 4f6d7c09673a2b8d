// The rows of the section objective. Their names, meanings and defaults are TRL's.

#include <algorithm>

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

using enum ObjectiveType;

constexpr double kMost = 1e6;

const std::vector<ObjectiveType> kReferenced = {dpo, kto};

RecipeField weights_field() {
  const auto read = [](const Json& value, const std::string& place, const std::string& values) {
    if (!value.is_array()) refuse_value(place, values, value);
    std::vector<double> weights;
    for (const Json& weight : value) weights.push_back(read_number(weight, place, values, 0, kMost));
    return weights;
  };
  return value_field("objective.loss_weights", "a list of numbers from 0",
                     {{"type", "array"}, {"items", {{"type", "number"}, {"minimum", 0}}}},
                     &ObjectiveOptions::loss_weights, read, "of the losses in loss_type (1 each)", kNullIfEmpty);
}

using Range = std::optional<std::pair<double, double>>;

// Two numbers, the lower first.
RecipeField range_field(std::string name, Range ObjectiveOptions::*at, std::string meaning) {
  const Json schema = {{"type", "array"}, {"items", {{"type", "number"}}}, {"minItems", 2}, {"maxItems", 2}};
  const auto read = [](const Json& value, const std::string& place, const std::string& values) {
    if (!value.is_array() || value.size() != 2) refuse_value(place, values, value);
    const auto number = [&](size_t i) { return read_number(value[i], place, values, -kMost, kMost); };
    const std::pair range = {number(0), number(1)};
    if (range.first > range.second) refuse_value(place, values, value);
    return range;
  };
  return value_field(std::move(name), "a list of two numbers, the lower first", schema, at, read, std::move(meaning));
}

// Those of objectives whose answers are the model's own.
std::vector<RecipeField> policy_gradient_fields() {
  return {
      only_for({grpo, rloo}, number_field("objective.epsilon", 0, 1, &ObjectiveOptions::epsilon,
                                          "ratios of probabilities are clipped below 1 - this, and above 1 + this")),
      only_for({grpo, rloo}, number_field("objective.epsilon_high", 0, kInfinity, &ObjectiveOptions::epsilon_high,
                                          "and above 1 + this instead (cispo: above this)")),
      only_for({grpo}, number_field("objective.delta", 0, kInfinity, &ObjectiveOptions::delta,
                                    "largest ratio of what is not clipped (two-sided clipping)")),
      only_for({grpo},
               choice_field(
                   "objective.scale_rewards",
                   {{"group", ScaleRewards::group}, {"batch", ScaleRewards::batch}, {"none", ScaleRewards::none}},
                   &ObjectiveOptions::scale_rewards, "whose standard deviation of rewards advantages are divided by")),
      only_for({grpo}, choice_field("objective.importance_sampling_level",
                                    {{"token", ImportanceSampling::token}, {"sequence", ImportanceSampling::sequence}},
                                    &ObjectiveOptions::importance_sampling_level,
                                    "what has a ratio of its own: a token, or an answer (GSPO)")),
      only_for({grpo}, flag_field("objective.use_bias_correction_kl", &ObjectiveOptions::use_bias_correction_kl,
                                  "weigh the KL term by the ratio")),
      only_for({grpo, rloo},
               flag_field("objective.mask_truncated_completions", &ObjectiveOptions::mask_truncated_completions,
                          "answers without an end carry no loss")),
      only_for({grpo, rloo}, integer_field("objective.num_iterations", 1, kLargestCount,
                                           &ObjectiveOptions::num_iterations, "steps that use the same answers")),
      only_for({rloo}, flag_field("objective.normalize_advantages", &ObjectiveOptions::normalize_advantages,
                                  "divide advantages by the standard deviation of the step's")),
      only_for({rloo}, range_field("objective.reward_clip_range", &ObjectiveOptions::reward_clip_range,
                                   "rewards are clipped to this")),
  };
}

// Those of PPO alone.
std::vector<RecipeField> ppo_fields() {
  const auto number = [](const char* name, double ObjectiveOptions::*at, const char* meaning) {
    return number_field(std::string("objective.") + name, 0, kMost, at, meaning);
  };
  const auto directory = [](const char* name, const char* values, std::string ObjectiveOptions::*at,
                            const char* meaning) {
    return free_to_change(text_field(std::string("objective.") + name, values, at, meaning));
  };
  std::vector<RecipeField> fields = {
      number("gamma", &ObjectiveOptions::gamma, "how much a reward counts a token earlier"),
      number("lam", &ObjectiveOptions::lam,
             "lambda of generalized advantage estimation: 0 trusts the value model, 1 the rewards"),
      number("cliprange", &ObjectiveOptions::cliprange, "ratios of probabilities are clipped to 1 - this and 1 + this"),
      number("cliprange_value", &ObjectiveOptions::cliprange_value,
             "values are clipped to the old ones - this and + this"),
      number("vf_coef", &ObjectiveOptions::vf_coef, "weight of the value model's loss"),
      number("kl_coef", &ObjectiveOptions::kl_coef,
             "how much the divergence from the reference takes off the reward of a token"),
      choice_field("objective.kl_estimator", {{"k1", KlEstimator::k1}, {"k3", KlEstimator::k3}},
                   &ObjectiveOptions::kl_estimator, "of that divergence: the log-ratio, or one that is never below 0"),
      flag_field("objective.whiten_rewards", &ObjectiveOptions::whiten_rewards,
                 "divide the rewards of tokens by their standard deviation in the block"),
      number_field("objective.missing_eos_penalty", 0, kInfinity, &ObjectiveOptions::missing_eos_penalty,
                   "taken off the score of an answer without an end"),
      integer_field("objective.num_ppo_epochs", 1, kLargestCount, &ObjectiveOptions::num_ppo_epochs,
                    "how often a block of answers is gone through"),
      integer_field("objective.num_mini_batches", 1, kLargestCount, &ObjectiveOptions::num_mini_batches,
                    "optimizer steps in one of these, each on its share of the answers"),
      directory("value_model", "a model's directory", &ObjectiveOptions::value_model,
                "base of the value model, causal or with a score head of one label (the policy's)"),
      directory(
          "value_adapter", "a directory", &ObjectiveOptions::value_adapter,
          "PEFT adapter with a score head that the value model starts from, such as a reward model's (a new one)"),
      directory("reward_model", "a directory", &ObjectiveOptions::reward_model,
                "adds its score to rewards, like an entry of type model"),
  };
  for (RecipeField& field : fields) field = only_for({ppo}, std::move(field));
  return fields;
}

}  // namespace

std::vector<RecipeField> objective_fields() {
  std::vector<std::pair<std::string, ObjectiveType>> types;
  for (const ObjectiveType type : objective_types()) types.emplace_back(objective_type_name(type), type);
  constexpr double kSmallest = 1e-6;
  constexpr int64_t kMostLabels = 1 << 20;
  std::vector<RecipeField> fields = {
      choice_field(
          "objective.type", types, &ObjectiveOptions::type,
          "what is optimized: the next token, preferences, rewards, scores of texts, or a teacher's probabilities"),
      only_for({dpo, kto, cpo, simpo, grpo},
               texts_field(
                   "objective.loss_type", &ObjectiveOptions::loss_type,
                   "variant of the loss, or for dpo a list of them (dpo, cpo: sigmoid; kto: kto; simpo: simpo; grpo: "
                   "dapo)")),
      only_for({dpo}, weights_field()),
      only_for(
          {dpo, kto, cpo, simpo, orpo, distillation, grpo, rloo},
          number_field(
              "objective.beta", 0, kMost, &ObjectiveOptions::beta,
              "how much a log-ratio (without reference: a log-probability) counts; grpo, rloo: the KL divergence from "
              "the reference (grpo: 0, rloo: 0.05); distillation, 1 unless given: 0 is KL(teacher || student), 1 is "
              "KL(student || teacher), between them both from their mixture")),
      only_for({dpo, cpo, simpo},
               number_field("objective.label_smoothing", 0, 1, &ObjectiveOptions::label_smoothing,
                            "share of pairs that are taken to be the wrong way round (where loss_type knows it)")),
      only_for({dpo},
               choice_field("objective.f_divergence_type",
                            {{"reverse_kl", FDivergence::reverse_kl},
                             {"forward_kl", FDivergence::forward_kl},
                             {"js_divergence", FDivergence::js_divergence},
                             {"alpha_divergence", FDivergence::alpha_divergence}},
                            &ObjectiveOptions::f_divergence_type, "divergence from the reference that is kept small")),
      only_for({dpo}, number_field("objective.f_alpha_divergence_coef", -kMost, kMost,
                                   &ObjectiveOptions::f_alpha_divergence_coef, "alpha of alpha_divergence")),
      only_for({dpo}, share_field("objective.ld_alpha", &ObjectiveOptions::ld_alpha,
                                  "how much the tokens count that the longer answer has more (LD-DPO)")),
      only_for({dpo}, flag_field("objective.use_weighting", &ObjectiveOptions::use_weighting,
                                 "weigh pairs by how likely the policy would write them (WPO)")),
      only_for({dpo}, number_field("objective.discopop_tau", kSmallest, kMost, &ObjectiveOptions::discopop_tau,
                                   "temperature of discopop")),
      only_for({kto}, number_field("objective.desirable_weight", 0, kMost, &ObjectiveOptions::desirable_weight,
                                   "of good answers")),
      only_for({kto}, number_field("objective.undesirable_weight", 0, kMost, &ObjectiveOptions::undesirable_weight,
                                   "of bad answers")),
      only_for({cpo, simpo}, number_field("objective.cpo_alpha", 0, kMost, &ObjectiveOptions::cpo_alpha,
                                          "of the mean -log p of chosen answers; 0: SimPO as published")),
      only_for({cpo, simpo}, number_field("objective.simpo_gamma", 0, kMost, &ObjectiveOptions::simpo_gamma,
                                          "margin that chosen answers are to have (simpo)")),
      free_to_change(text_field(
          "objective.reference", "adapter_off | initial | none | a model's directory", &ObjectiveOptions::reference,
          "what the policy is compared with (the base with the adapter off; without an adapter the model as it "
          "began)")),
      only_for(kReferenced, free_to_change(flag_field(
                                "objective.precompute_ref_log_probs", &ObjectiveOptions::precompute_ref_log_probs,
                                "compute what adapter_off says once before training, kept in data.cache"))),
      only_for(
          {reward},
          number_field("objective.center_rewards_coefficient", 0, kMost, &ObjectiveOptions::center_rewards_coefficient,
                       "of the mean square of a pair's summed scores, which holds them around 0 (0.01 is usual)")),
      only_for({classification}, integer_field("objective.num_labels", 0, kMostLabels, &ObjectiveOptions::num_labels,
                                               "rows of a new score head; 0: as the files of model or adapter say")),
      only_for({classification},
               choice_field("objective.problem_type",
                            {{"auto", ProblemType::automatic},
                             {"regression", ProblemType::regression},
                             {"single_label_classification", ProblemType::single_label},
                             {"multi_label_classification", ProblemType::multi_label}},
                            &ObjectiveOptions::problem_type,
                            "what the labels are; auto: as config.json says, or else one label is regression, a "
                            "number of several is a class, a list is several labels")),
      only_for({reward, classification},
               choice_field(
                   "objective.score_at", {{"last_token", ScoreAt::last_token}, {"last_non_pad", ScoreAt::last_non_pad}},
                   &ObjectiveOptions::score_at,
                   "token that is scored; last_non_pad: as Transformers finds it, the last that is not pad_token_id")),
      only_for(
          {distillation},
          free_to_change(text_field(
              "objective.teacher_model_name_or_path", "a model's directory",
              &ObjectiveOptions::teacher_model_name_or_path,
              "teacher, with the same vocabulary; stays frozen, mapped from its files, in 4 bits where they are"))),
      only_for({distillation}, number_field("objective.temperature", kSmallest, kMost, &ObjectiveOptions::temperature,
                                            "divides the logits of both")),
      only_for(
          {distillation},
          share_field(
              "objective.lmbda", &ObjectiveOptions::lmbda,
              "with a section rollout: the share of steps on the student's own answers; the others are on those of "
              "the data (GKD)")),
      only_for({distillation},
               flag_field("objective.seq_kd", &ObjectiveOptions::seq_kd,
                          "these others are on answers that the teacher draws, and the data are prompts")),
  };
  for (RecipeField& field : policy_gradient_fields()) fields.push_back(std::move(field));
  for (RecipeField& field : ppo_fields()) fields.push_back(std::move(field));
  return fields;
}

}  // namespace nibble::detail
