#pragma once
// The recipes in recipes/configs and the table of published models (recipes/published_models.json), compiled into the
// library so that the program needs no files beside it.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct ShippedRecipe {
  std::string_view name;   ///< file name without .json
  std::string_view about;  ///< the first sentence of its comment
  std::string_view text;
};

/// The files, by name.
std::span<const ShippedRecipe> shipped_recipes();

/// A model of the table, and what the recipes "published-KIND" need for it.
struct PublishedModel {
  std::string name;                          ///< "llama-3.2-1b"; the recipe NAME-KIND is made of published-KIND
  std::string path;                          ///< its directory as downloaded: "Llama-3.2-1B"
  std::map<std::string, std::string> plans;  ///< KIND ("qlora") -> memory and time of a step ("2.3 GiB; 18 s")
};

/// The table, by name.
std::vector<PublishedModel> published_models();

/// Whether shipped_recipe() knows the name.
bool is_shipped_recipe(std::string_view name);

/// The text of a file of recipes/configs, or of MODEL-KIND for a published model. Throws UsageError for an unknown
/// name, with the nearest one.
std::string shipped_recipe(std::string_view name);

}  // namespace nibble
