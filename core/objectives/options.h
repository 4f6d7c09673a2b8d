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

enum class ObjectiveType : uint8_t { sft, dpo, kto, cpo, simpo, orpo };

enum class FDivergence : uint8_t { reverse_kl, forward_kl, js_divergence, alpha_divergence };

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

/// Whether `reference` is the name of a directory.
bool names_reference_directory(const ObjectiveOptions& options);

/// Throws UsageError, naming the recipe key, for values that contradict each other.
void check_objective_options(const ObjectiveOptions& options);

/// adapter_off: the reference is a pass without adapters; otherwise what the batches bring.
std::unique_ptr<Objective> make_objective(const ObjectiveOptions& options, bool adapter_off);

}  // namespace nibble
