#pragma once
// What other tools do where a configuration says nothing. Internal to recipes/config.

#include <string>
#include <vector>

#include "nibble/recipes/config/conversion/foreign_objective.h"

namespace nibble::detail {

struct ForeignDefault {
  std::string key;    ///< the tool's
  std::string value;  ///< JSON
};

/// Of what counts in the result and is another number here, for the configuration `theirs`.
std::vector<ForeignDefault> foreign_defaults(const Json& theirs, Tool tool, ObjectiveType type);

}  // namespace nibble::detail
