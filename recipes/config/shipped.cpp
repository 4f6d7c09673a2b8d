#include "nibble/recipes/config/shipped.h"

#include <string>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/text/matching/nearest.h"

namespace nibble {

const ShippedRecipe& shipped_recipe(std::string_view name) {
  std::vector<std::string> names;
  for (const ShippedRecipe& recipe : shipped_recipes()) {
    if (recipe.name == name) return recipe;
    names.emplace_back(recipe.name);
  }
  const std::string meant = nearest(name, names);
  throw UsageError("no recipe is named " + std::string(name),
                   meant.empty() ? "see nibble recipes ls" : "did you mean " + meant + "?");
}

}  // namespace nibble
