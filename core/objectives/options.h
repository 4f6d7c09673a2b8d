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

class Decoder;
struct DecoderConfig;

enum class ObjectiveType : uint8_t {
  sft,
  dpo,
  kto,
  cpo,
  simpo,
  orpo,
  reward,
  classification,
  distillation,
  grpo,
  rloo,
  ppo
};

enum class FDivergence : uint8_t { reverse_kl, forward_kl, js_divergence, alpha_divergence };

/// Transformers' problem_type; automatic: as config.json says, or else as the labels are.
enum class ProblemType : uint8_t { automatic, regression, single_label, multi_label };

/// Which token of a text a score head scores.
enum class ScoreAt : uint8_t {
  last_token,
  last_non_pad,  ///< Transformers' rule: the last whose id is not pad_token_id
};

/// By what the advantages of GRPO are divided: the standard deviation of rewards of the group, or of the whole step.
enum class ScaleRewards : uint8_t { group, batch, none };
/// What has a ratio of probabilities of its own: each token, or each answer (GSPO).
enum class ImportanceSampling : uint8_t { token, sequence };

/// How far a token's log-probability is from the reference's: the log-ratio q, or exp(-q) - 1 + q, which is never below
/// 0 (Schulman 2020).
enum class KlEstimator : uint8_t { k1, k3 };

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
  double gamma = 1, lam = 0.95;                   ///< of generalized advantage estimation
  double cliprange = 0.2, cliprange_value = 0.2;  ///< of ratios around 1, of values around the old ones
  double vf_coef = 0.1, kl_coef = 0.05;           ///< weights of the value model's loss, and of KL in rewards
  KlEstimator kl_estimator = KlEstimator::k1;
  bool whiten_rewards = false;
  std::optional<double> missing_eos_penalty;  ///< taken off the score of an answer without an end
  int64_t num_ppo_epochs = 4, num_mini_batches = 1;
  std::string value_model, value_adapter, reward_model;  ///< directories; value_model: "" is the policy's base
  RolloutOptions rollout;
  /// adapter_off, initial, none, or a directory; "": adapter_off where an adapter is trained, else initial.
  std::string reference;
  bool precompute_ref_log_probs = false;
  double center_rewards_coefficient = 0;
  int64_t num_labels = 0;  ///< of a score head; 0: as the model's or the adapter's files say
  ProblemType problem_type = ProblemType::automatic;
  ScoreAt score_at = ScoreAt::last_token;
  std::string teacher_model_name_or_path;
  /// Distillation, no key: the student's own answers are what it learns from (the recipe has a section rollout).
  bool on_policy = false;
  double lmbda = 1;     ///< the share of steps on them; in the others it learns from the answers of the data,
  bool seq_kd = false;  ///< or of the teacher
  double temperature = 1;
  /// No key, see with_score_head(): the id that score_at passes over; -1: none.
  int32_t pad_id = -1;
};

/// "dpo"; all of them.
std::string_view objective_type_name(ObjectiveType type);
std::vector<ObjectiveType> objective_types();
/// loss_types that `type` knows, its default first.
std::vector<std::string> loss_types_of(ObjectiveType type);
/// Whether it trains on answers that are the model's own, or given as if they were.
bool has_rollouts(const ObjectiveOptions& options);
/// Whether some of its answers are those of the data.
bool has_given_answers(const ObjectiveOptions& options);
/// Whether such answers have rewards.
bool has_rewards(ObjectiveType type);
/// Optimizer steps that use the same answers.
int64_t steps_per_block(const ObjectiveOptions& options);
/// TRL's `beta` of the type.
double default_beta(ObjectiveType type);
/// Whether it compares with a reference.
bool has_reference(const ObjectiveOptions& options);
/// Whether its samples are pairs of a chosen and a rejected answer.
bool is_pairwise(ObjectiveType type);

/// Whether the model it trains ends in a score head.
bool has_scores(ObjectiveType type);
/// With what a model that ends in a score head says of it: its problem_type, its pad_token_id where score_at asks for
/// it. Throws UsageError where that is missing.
ObjectiveOptions with_score_head(ObjectiveOptions options, const DecoderConfig& config);

/// Whether `reference` is the name of a directory.
bool names_reference_directory(const ObjectiveOptions& options);

/// Throws UsageError, naming the recipe key, for values that contradict each other.
void check_objective_options(const ObjectiveOptions& options);

/// adapter_off: the reference is a pass without adapters; otherwise what the batches bring. teacher: of distillation,
/// must outlive the objective.
std::unique_ptr<Objective> make_objective(const ObjectiveOptions& options, bool adapter_off,
                                          Decoder* teacher = nullptr);

}  // namespace nibble
