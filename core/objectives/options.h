#pragma once
// What the `objective` section of a recipe says; each member is the recipe key of the same name. Names, meanings and
// defaults are TRL's (1.16).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/objectives/objective.h"

namespace nibble {

class Decoder;
struct DecoderConfig;

enum class ObjectiveType : uint8_t { sft, dpo, kto, cpo, simpo, orpo, reward, classification, distillation };

enum class FDivergence : uint8_t { reverse_kl, forward_kl, js_divergence, alpha_divergence };

/// Transformers' problem_type; automatic: as config.json says, or else as the labels are.
enum class ProblemType : uint8_t { automatic, regression, single_label, multi_label };

/// Which token of a text a score head scores.
enum class ScoreAt : uint8_t {
  last_token,
  last_non_pad,  ///< Transformers' rule: the last whose id is not pad_token_id
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
  /// adapter_off, initial, none, or a directory; "": adapter_off where an adapter is trained, else initial.
  std::string reference;
  bool precompute_ref_log_probs = false;
  double center_rewards_coefficient = 0;
  int64_t num_labels = 0;  ///< of a score head; 0: as the model's or the adapter's files say
  ProblemType problem_type = ProblemType::automatic;
  ScoreAt score_at = ScoreAt::last_token;
  std::string teacher_model_name_or_path;
  double temperature = 1;
  /// No key, see with_score_head(): the id that score_at passes over; -1: none.
  int32_t pad_id = -1;
};

/// "dpo"; all of them.
std::string_view objective_type_name(ObjectiveType type);
std::vector<ObjectiveType> objective_types();
/// loss_types that `type` knows, its default first.
std::vector<std::string> loss_types_of(ObjectiveType type);
/// Whether it compares with a reference.
bool has_reference(ObjectiveType type);
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
