#pragma once
// What the `objective` section of a recipe says; each member is the recipe key of the same name. Names, meanings and
// defaults are TRL's (1.16).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/core/objectives/objective.h"

namespace nibble {

enum class ObjectiveType : uint8_t { sft, dpo, kto, cpo, simpo, orpo, grpo, rloo };

enum class FDivergence : uint8_t { reverse_kl, forward_kl, js_divergence, alpha_divergence };

/// By what the advantages of GRPO are divided: the standard deviation of rewards of the group, or of the whole step.
enum class ScaleRewards : uint8_t { group, batch, none };
/// What has a ratio of probabilities of its own: each token, or each answer (GSPO).
enum class ImportanceSampling : uint8_t { token, sequence };

/// The section `rollout`: answers to prompts that the model gives while it is trained.
struct RolloutOptions {
  int64_t completions = 8;       ///< of one prompt
  int64_t max_new_tokens = 256;  ///< of one answer
  double temperature = 1;        ///< all log-probabilities are of logits / temperature
  double top_p = 1, min_p = 0;
  int64_t top_k = 0;
  std::vector<std::string> stop;  ///< texts that end an answer
  std::string file;               ///< given answers with their rewards; "": the model's own
};

struct ObjectiveOptions {
  ObjectiveType type = ObjectiveType::sft;
  std::vector<std::string> loss_type;  ///< empty: the type's default; several: their sum by loss_weights
  std::vector<double> loss_weights;    ///< empty: all 1
  double beta = 0.1;
  double label_smoothing = 0;
  FDivergence f_divergence_type = FDivergence::reverse_kl;
  double f_alpha_divergence_coef = 0.5;
  std::optional<double> ld_alpha;
  bool use_weighting = false;
  double discopop_tau = 0.05;
  double desirable_weight = 1, undesirable_weight = 1;
  double cpo_alpha = 1;
  double simpo_gamma = 0.5;
  double epsilon = 0.2;                ///< ratios below 1 - epsilon are clipped,
  std::optional<double> epsilon_high;  ///< and above 1 + this; absent: epsilon
  std::optional<double> delta;         ///< the largest ratio that is not clipped
  ScaleRewards scale_rewards = ScaleRewards::group;
  ImportanceSampling importance_sampling_level = ImportanceSampling::token;
  bool use_bias_correction_kl = true;
  bool mask_truncated_completions = false;
  int64_t num_iterations = 1;
  bool normalize_advantages = false;
  std::optional<std::pair<double, double>> reward_clip_range;
  RolloutOptions rollout;
  /// adapter_off, initial, none, or a directory; "": adapter_off where an adapter is trained, else initial.
  std::string reference;
  bool precompute_ref_log_probs = false;
};

/// "dpo"; all of them.
std::string_view objective_type_name(ObjectiveType type);
std::vector<ObjectiveType> objective_types();
/// loss_types that `type` knows, its default first.
std::vector<std::string> loss_types_of(ObjectiveType type);
/// Whether its answers are the model's own, or given as if they were, and have rewards.
bool has_rollouts(ObjectiveType type);
/// TRL's `beta` of the type.
double default_beta(ObjectiveType type);
/// Whether it compares with a reference.
bool has_reference(const ObjectiveOptions& options);
/// Whether its samples are pairs of a chosen and a rejected answer.
bool is_pairwise(ObjectiveType type);

/// Whether `reference` is the name of a directory.
bool names_reference_directory(const ObjectiveOptions& options);

/// Throws UsageError, naming the recipe key, for values that contradict each other.
void check_objective_options(const ObjectiveOptions& options);

/// adapter_off: the reference is a pass without adapters; otherwise what the batches bring.
std::unique_ptr<Objective> make_objective(const ObjectiveOptions& options, bool adapter_off);

}  // namespace nibble
