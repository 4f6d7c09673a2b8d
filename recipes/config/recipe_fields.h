#pragma once
// The table behind the recipe: one row for each key. Internal to recipes/config.

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "nibble/recipes/config/recipe.h"

namespace nibble::detail {

/// Keeps the order of keys, which counts in rank_pattern.
using Json = nlohmann::ordered_json;

/// One key. read() checks type and range and throws UsageError at `place`; write() gives the value back (null: absent).
struct RecipeField {
  std::string name;          ///< "train.microbatch_size"
  std::string values;        ///< for messages and documentation: "integer from 1"
  std::string meaning;       ///< one line
  Json schema;               ///< JSON Schema of the value
  bool decides_bits = true;  ///< a run cannot be continued with another value
  std::function<void(Recipe&, const Json&, const std::string& place)> read;
  std::function<Json(Recipe&)> write;
  /// Whether the key has a meaning beside the others; empty: always.
  std::function<bool(const Recipe&)> applies = {};

  /// Whether the schema allows the JSON type "string", "integer", "number", "boolean", "array" or "object".
  bool accepts(const std::string& type) const;
};

/// The text of a recipe, or of another tool's configuration, as an object: YAML where `place` ends like it, else JSON
/// with comments. Throws InputError with line and column, UsageError where it is no object.
Json parse_settings(const std::string& text, const std::string& place);

/// "train" and "steps" of "train.steps".
inline std::pair<std::string, std::string> section_and_name(const std::string& key) {
  const size_t dot = key.find('.');
  return {key.substr(0, dot), key.substr(dot + 1)};
}

/// All keys, section by section.
const std::vector<RecipeField>& recipe_fields();

/// The rows of one section: in the recipe_fields_*.cpp that is named after it, those of train and optimizer in
/// recipe_fields_training.cpp, the others in recipe_fields.cpp.
std::vector<RecipeField> model_fields();
std::vector<RecipeField> adapter_fields();
std::vector<RecipeField> objective_fields();
std::vector<RecipeField> rollout_fields();
std::vector<RecipeField> reward_fields();
std::vector<RecipeField> data_fields();
std::vector<RecipeField> train_fields();
std::vector<RecipeField> optimizer_fields();
std::vector<RecipeField> parallel_fields();
std::vector<RecipeField> output_fields();

}  // namespace nibble::detail
