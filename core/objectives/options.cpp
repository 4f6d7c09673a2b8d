#include "nibble/core/objectives/options.h"

#include <algorithm>
#include <map>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/objectives/classification.h"
#include "nibble/core/objectives/cpo.h"
#include "nibble/core/objectives/distillation.h"
#include "nibble/core/objectives/dpo.h"
#include "nibble/core/objectives/kto.h"
#include "nibble/core/objectives/policy_gradient.h"
#include "nibble/core/objectives/ppo.h"
#include "nibble/core/objectives/reward.h"
#include "nibble/core/text/matching/nearest.h"

namespace nibble {

std::vector<ObjectiveType> objective_types() {
  using enum ObjectiveType;
  return {sft, dpo, kto, cpo, simpo, orpo, reward, classification, distillation, grpo, rloo, ppo};
}

std::string_view objective_type_name(ObjectiveType type) {
  static constexpr std::string_view kNames[] = {
      "sft", "dpo", "kto", "cpo", "simpo", "orpo", "reward", "classification", "distillation", "grpo", "rloo", "ppo"};
  return kNames[static_cast<size_t>(type)];
}

std::vector<std::string> loss_types_of(ObjectiveType type) {
  switch (type) {
    case ObjectiveType::sft:
    case ObjectiveType::orpo:
    case ObjectiveType::reward:
    case ObjectiveType::classification:
    case ObjectiveType::distillation:
    case ObjectiveType::rloo:
    case ObjectiveType::ppo:
      return {};
    case ObjectiveType::dpo:
      return {"sigmoid", "hinge",        "ipo",      "exo_pair", "nca_pair", "robust", "bco_pair",    "sppo_hard",
              "aot",     "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft",    "sigmoid_norm"};
    case ObjectiveType::kto:
      return {"kto", "apo_zero_unpaired"};
    case ObjectiveType::cpo:
      return {"sigmoid", "hinge", "ipo", "simpo"};
    case ObjectiveType::simpo:
      return {"simpo"};
    case ObjectiveType::grpo:
      return {"dapo", "grpo", "bnpo", "dr_grpo", "cispo"};
  }
  return {};
}

bool has_rewards(ObjectiveType type) {
  return type == ObjectiveType::grpo || type == ObjectiveType::rloo || type == ObjectiveType::ppo;
}

bool has_rollouts(const ObjectiveOptions& options) { return has_rewards(options.type) || options.on_policy; }

bool has_given_answers(const ObjectiveOptions& options) {
  return options.on_policy && options.lmbda < 1 && !options.seq_kd;
}

int64_t steps_per_block(const ObjectiveOptions& options) {
  const bool ppo = options.type == ObjectiveType::ppo;
  return ppo ? options.num_ppo_epochs * options.num_mini_batches : options.num_iterations;
}

double default_beta(ObjectiveType type) {
  if (type == ObjectiveType::grpo) return 0;
  if (type == ObjectiveType::distillation) return 1;
  return type == ObjectiveType::rloo ? 0.05 : 0.1;
}

bool has_reference(const ObjectiveOptions& options) {
  if (options.type == ObjectiveType::ppo) return options.kl_coef != 0;
  if (has_rewards(options.type)) return options.beta != 0;
  return options.type == ObjectiveType::dpo || options.type == ObjectiveType::kto;
}

bool is_pairwise(ObjectiveType type) {
  using enum ObjectiveType;
  return type == dpo || type == cpo || type == simpo || type == orpo || type == reward;
}

bool has_scores(ObjectiveType type) { return type == ObjectiveType::reward || type == ObjectiveType::classification; }

ObjectiveOptions with_score_head(ObjectiveOptions options, const DecoderConfig& config) {
  static constexpr std::pair<const char*, ProblemType> kTypes[] = {
      {"regression", ProblemType::regression},
      {"single_label_classification", ProblemType::single_label},
      {"multi_label_classification", ProblemType::multi_label}};
  for (const auto& [name, type] : kTypes) {
    if (options.problem_type == ProblemType::automatic && config.problem_type == name) options.problem_type = type;
  }
  options.pad_id = options.score_at == ScoreAt::last_non_pad ? config.pad_id : -1;
  if (options.score_at == ScoreAt::last_non_pad && config.pad_id < 0) {
    throw UsageError("config.json has no pad_token_id to pass over", "leave it out", "objective.score_at");
  }
  return options;
}

bool names_reference_directory(const ObjectiveOptions& options) {
  const std::string& name = options.reference;
  return !name.empty() && name != "adapter_off" && name != "initial" && name != "none";
}

namespace {

void check_loss_types(const ObjectiveOptions& options) {
  const std::vector<std::string> known = loss_types_of(options.type);
  for (const std::string& name : options.loss_type) {
    if (std::ranges::count(known, name)) continue;
    const std::string near = nearest(name, known);
    throw UsageError(
        known.empty() ? "has no place: the objective has one loss" : "\"" + name + "\" is not one of " + joined(known),
        near.empty() ? "leave it out" : "did you mean " + near + "?", "objective.loss_type");
  }
  if (options.loss_type.size() > 1 && options.type != ObjectiveType::dpo) {
    throw UsageError("several losses are for dpo", "name one", "objective.loss_type");
  }
  if (!options.loss_weights.empty() && options.loss_weights.size() != std::max<size_t>(options.loss_type.size(), 1)) {
    throw UsageError("must have one number for each of loss_type", "give as many, or leave it out",
                     "objective.loss_weights");
  }
  const auto trains = [](double weight) { return weight > 0; };
  if (std::ranges::any_of(options.loss_weights, [](double weight) { return weight < 0; }) ||
      (!options.loss_weights.empty() && std::ranges::none_of(options.loss_weights, trains))) {
    throw UsageError("a loss below 0 is trained away from, and with all at 0 nothing is trained",
                     "give numbers from 0, one of them above 0", "objective.loss_weights");
  }
}

}  // namespace

namespace {

void check_rollouts(const ObjectiveOptions& options) {
  if (options.rollout.completions < 2 && options.type != ObjectiveType::ppo && !options.on_policy &&
      (options.type == ObjectiveType::rloo || options.scale_rewards != ScaleRewards::batch)) {
    throw UsageError("an answer is compared with the others to its prompt", "set it to 2 or more",
                     "rollout.completions");
  }
  if (options.rollout.temperature <= 0) {
    throw UsageError("with 0 all answers to a prompt are the same", "set it above 0", "rollout.temperature");
  }
  if (options.rollout.top_p <= 0) throw UsageError("leaves no token with 0", "set it above 0", "rollout.top_p");
}

}  // namespace

void check_objective_options(const ObjectiveOptions& options) {
  check_loss_types(options);
  if (has_rollouts(options)) {
    check_rollouts(options);
  } else if (options.type != ObjectiveType::distillation && options.beta <= 0) {
    throw UsageError("must be above 0", "leave it out", "objective.beta");
  }
  if (options.desirable_weight == 0 && options.undesirable_weight == 0) {
    throw UsageError("with undesirable_weight 0 as well nothing is trained", "set one of them above 0",
                     "objective.desirable_weight");
  }
  const auto has = [&](const char* name) { return std::ranges::count(options.loss_type, name) > 0; };
  if (has("exo_pair") && options.label_smoothing <= 0) {
    throw UsageError("must be above 0 for exo_pair", "set it to 1e-3", "objective.label_smoothing");
  }
  if (has("robust") && options.label_smoothing >= 0.5) {
    throw UsageError("must be below 0.5 for robust", "it is the share of pairs that are the wrong way round",
                     "objective.label_smoothing");
  }
  if (options.use_weighting && (has("aot") || has("aot_unpaired"))) {
    throw UsageError("aot compares sorted values, which belong to no pair", "leave it out", "objective.use_weighting");
  }
  static constexpr const char* kBendable[] = {"sigmoid",  "sigmoid_norm", "hinge",    "ipo",
                                              "exo_pair", "robust",       "discopop", "sft"};
  for (const std::string& name : options.loss_type) {
    if (options.f_divergence_type == FDivergence::reverse_kl || std::ranges::count(kBendable, name)) continue;
    throw UsageError(name + " has no other divergence than reverse_kl", "leave it out", "objective.f_divergence_type");
  }
  const bool distills = options.type == ObjectiveType::distillation;
  if (distills && options.beta > 1)
    throw UsageError("must be from 0 to 1", "0 is KL(teacher || student)", "objective.beta");
  if (!options.on_policy && (options.lmbda < 1 || options.seq_kd)) {
    throw UsageError("is for answers that are drawn", "add a section rollout",
                     options.seq_kd ? "objective.seq_kd" : "objective.lmbda");
  }
  if (options.lmbda < 1 && !options.rollout.file.empty()) {
    throw UsageError("contradicts rollout.file, whose answers are all there are", "leave one of them out",
                     "objective.lmbda");
  }
  if (options.seq_kd && options.lmbda == 1) {
    throw UsageError("the teacher answers in no step, because objective.lmbda is 1", "lower that", "objective.seq_kd");
  }
  if (has_given_answers(options) && options.rollout.completions > 1) {
    throw UsageError("the data have one answer to a prompt (objective.lmbda below 1)",
                     "leave it out, or set objective.seq_kd", "rollout.completions");
  }
  if (distills && options.teacher_model_name_or_path.empty()) {
    throw UsageError("is missing", "name the teacher's directory", "objective.teacher_model_name_or_path");
  }
  if (!has_reference(options) && !options.reference.empty() && options.reference != "none") {
    const std::string key = options.type == ObjectiveType::ppo ? "objective.kl_coef" : "objective.beta";
    throw UsageError(has_rewards(options.type) ? "with " + key + " 0 nothing is compared with a reference"
                                               : "the objective compares with no reference",
                     "leave it out", "objective.reference");
  }
  if ((options.type == ObjectiveType::kto || (has_rewards(options.type) && has_reference(options))) &&
      options.reference == "none") {
    throw UsageError(std::string(objective_type_name(options.type)) + " needs a reference",
                     "leave it out, or name a directory", "objective.reference");
  }
}

std::unique_ptr<Objective> make_objective(const ObjectiveOptions& options, bool adapter_off, Decoder* teacher) {
  switch (options.type) {
    case ObjectiveType::sft:
      return std::make_unique<NextToken>();
    case ObjectiveType::dpo:
      return std::make_unique<Dpo>(options, adapter_off);
    case ObjectiveType::kto:
      return std::make_unique<Kto>(options, adapter_off);
    case ObjectiveType::reward:
      return std::make_unique<Reward>(options);
    case ObjectiveType::classification:
      return std::make_unique<Classification>(options);
    case ObjectiveType::distillation:
      return std::make_unique<Distillation>(options, teacher);
    case ObjectiveType::grpo:
    case ObjectiveType::rloo:
      return std::make_unique<PolicyGradient>(options);
    case ObjectiveType::ppo:
      return std::make_unique<PpoPolicy>(options);
    default:
      return std::make_unique<Cpo>(options);
  }
}

}  // namespace nibble
