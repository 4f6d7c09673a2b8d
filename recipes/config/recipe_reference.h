#pragma once
#include <string>

namespace nibble {

/// docs/recipe.md: every key of a recipe, from the same table that reads recipes.
std::string recipe_reference();

}  // namespace nibble
