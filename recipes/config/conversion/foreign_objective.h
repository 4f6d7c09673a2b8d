#pragma once
// Which tool a configuration is of, and what it optimizes. Internal to recipes/config.

#include <string>

#include "nibble/core/objectives/options.h"
#include "nibble/recipes/config/recipe_fields.h"

namespace nibble::detail {

enum class Tool : uint8_t { axolotl, llama_factory, trl };

/// By the keys that only its configurations have. Throws UsageError at `place` for one of none of them.
Tool foreign_tool(const Json& theirs, const std::string& place);

/// By Axolotl's rl, LLaMA-Factory's stage and pref_loss, or by the keys that only some of TRL's trainers have; `named`
/// ("dpo", or empty) decides for TRL's, which do not name it. Throws UsageError at `place` where the keys fit several
/// trainers or none, and for what is not converted.
ObjectiveType foreign_objective(const Json& theirs, Tool tool, const std::string& named, const std::string& place);

/// The key of the sections objective and rollout that `key` of any of the tools is for an objective of this type
/// ("objective.beta" for "pref_beta" or "trl.beta"); empty where there is none.
std::string objective_key(std::string key, ObjectiveType type);

/// The recipe key of any section that `key` of any of the tools is for such an objective; empty where there is none.
std::string recipe_key(const std::string& key, ObjectiveType type);

}  // namespace nibble::detail
