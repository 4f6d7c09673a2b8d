#pragma once
// The recipes in recipes/configs, compiled into the library so that the program needs no files beside it.

#include <span>
#include <string_view>

namespace nibble {

struct ShippedRecipe {
  std::string_view name;   ///< file name without .json
  std::string_view about;  ///< its first comment line
  std::string_view text;
};

/// All of them, by name.
std::span<const ShippedRecipe> shipped_recipes();

/// Throws UsageError for an unknown name, with the nearest one.
const ShippedRecipe& shipped_recipe(std::string_view name);

}  // namespace nibble
