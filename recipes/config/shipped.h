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

/// A model of the table: what the recipes "published-KIND" need for it, and what its own say otherwise.
struct PublishedModel {
  std::string name;                          ///< "llama-3.2-1b"; the recipe NAME-KIND is made of published-KIND
  std::string path;                          ///< its directory as downloaded: "Llama-3.2-1B"
  std::map<std::string, std::string> plans;  ///< KIND ("qlora") -> memory and time of a step ("2.3 GiB; 18 s")
  /// KIND -> keys of the recipe with the values that NAME-KIND has instead of published-KIND's, as a recipe spells
  /// them: "train.accumulate" -> "16".
  std::map<std::string, std::map<std::string, std::string>> values;

  /// The same of one KIND, with the model's own directories: model.path and output.dir.
  std::map<std::string, std::string> recipe_values(const std::string& kind) const;
};

/// The table, by name.
std::vector<PublishedModel> published_models();

/// All that shipped_recipe() knows: files, and MODEL-KIND of the table.
std::vector<std::string> shipped_recipe_names();

/// Whether shipped_recipe() knows the name.
bool is_shipped_recipe(std::string_view name);

/// The text of a file of recipes/configs, or of MODEL-KIND for a published model. Throws UsageError for an unknown
/// name, with the nearest one.
std::string shipped_recipe(std::string_view name);

}  // namespace nibble
