#pragma once
// Which keys of a recipe contradict each other or are missing. For .cpp files of recipes.

#include <set>
#include <string>

#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/config/recipe_fields.h"

namespace nibble::detail {

/// A recipe as JSON together with where each key was said.
struct Document {
  Json root;
  std::string place;
  std::set<std::string> overridden;

  std::string place_of(const std::string& key) const {
    return (overridden.contains(key) ? "command line" : place) + ": " + key;
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& reason, const std::string& remedy) const {
    throw UsageError(reason, remedy, place_of(key));
  }
};

/// What the objective's data are; automatic: texts as next-token training has them.
DataFormat format_of(const ObjectiveOptions& options);

/// What parallel.tensor contradicts but for the model, which this does not open.
void check_tensor_parallel(const Document& document, const Recipe& recipe);

/// Throws UsageError with the key's place.
void check_recipe(const Document& document, const Recipe& recipe);

}  // namespace nibble::detail
