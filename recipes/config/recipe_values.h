#pragma once
// Makers of rows of the recipe's table, one for each kind of value. Internal to recipes/config.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nibble/core/formatting/joined.h"
#include "nibble/core/text/matching/nearest.h"
#include "nibble/recipes/config/foreign_keys.h"
#include "nibble/recipes/config/recipe_fields.h"

namespace nibble::detail {

/// The largest count of anything: every count fits a 32-bit integer, wherever it goes.
inline constexpr int64_t kLargestCount = std::numeric_limits<int32_t>::max();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Throws UsageError "place: must be VALUES, not GOT".
[[noreturn]] void refuse_value(const std::string& place, const std::string& values, const Json& got);

/// A number in [least, below), also when it is rounded to 32 bits, in which it may be used: finite, below `below`, and
/// not 0 where 0 is not allowed.
double read_number(const Json& value, const std::string& place, const std::string& values, double least,
                   double below = std::numeric_limits<double>::infinity());
int64_t read_integer(const Json& value, const std::string& place, const std::string& values, int64_t least,
                     int64_t most);
/// A list of integers from `least`.
std::vector<int64_t> read_integers(const Json& value, const std::string& place, const std::string& values,
                                   int64_t least);
std::string read_text(const Json& value, const std::string& place, const std::string& values);
/// A list of strings; one string is a list of one.
std::vector<std::string> read_texts(const Json& value, const std::string& place, const std::string& values);
Interval read_interval(const Json& value, const std::string& place, const std::string& values);

Json written(const auto& value) { return value; }
inline Json written(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
Json written(const Interval& interval);
template <typename T>
Json written(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// The struct with the values of a section.
template <typename Section>
Section& section_of(Recipe& recipe) {
  if constexpr (std::is_same_v<Section, ModelRecipe>) return recipe.model;
  if constexpr (std::is_same_v<Section, AdapterRecipe>) return *recipe.adapter;
  if constexpr (std::is_same_v<Section, AdapterOptions>) return recipe.adapter->options;
  if constexpr (std::is_same_v<Section, ObjectiveOptions>) return recipe.objective;
  if constexpr (std::is_same_v<Section, RolloutOptions>) return recipe.objective.rollout;
  if constexpr (std::is_same_v<Section, DataOptions>) return recipe.data;
  if constexpr (std::is_same_v<Section, TrainRecipe>) return recipe.train;
  if constexpr (std::is_same_v<Section, OptimizerRecipe>) return recipe.optimizer;
  if constexpr (std::is_same_v<Section, ParallelRecipe>) return recipe.parallel;
  if constexpr (std::is_same_v<Section, OutputRecipe>) return recipe.output;
}

/// The row with everything but read and write.
RecipeField bare_field(std::string name, std::string values, Json schema, std::string meaning);
/// The same row, but the value may change between stop and resume.
RecipeField free_to_change(RecipeField field);
/// The key belongs to objectives of these types.
RecipeField only_for(const std::vector<ObjectiveType>& types, RecipeField field);
/// Objectives whose answers are the model's own.
std::vector<ObjectiveType> rewarded_objectives();

struct Written {
  Json operator()(const auto& value) const { return written(value); }
};
inline constexpr auto kNullIfEmpty = [](const auto& value) { return value.empty() ? Json(nullptr) : Json(value); };

/// A row for a member of a section that becomes what read(value, place, values) gives; write(it) gives that back.
template <typename T, typename Section, typename Read, typename Write = Written>
RecipeField value_field(std::string name, std::string values, Json schema, T Section::*at, Read read,
                        std::string meaning, Write write = {}) {
  RecipeField field = bare_field(std::move(name), std::move(values), std::move(schema), std::move(meaning));
  field.read = [=, values = field.values](Recipe& recipe, const Json& value, const std::string& place) {
    section_of<Section>(recipe).*at = read(value, place, values);
  };
  field.write = [=](Recipe& recipe) -> Json { return write(section_of<Section>(recipe).*at); };
  return field;
}

template <typename Section>
RecipeField text_field(std::string name, std::string values, std::string Section::*at, std::string meaning) {
  return value_field(std::move(name), std::move(values), {{"type", "string"}}, at, read_text, std::move(meaning));
}

template <typename Section>
RecipeField flag_field(std::string name, bool Section::*at, std::string meaning) {
  const auto read = [](const Json& value, const std::string& place, const std::string&) {
    if (!value.is_boolean()) refuse_value(place, "true or false", value);
    return value.get<bool>();
  };
  return value_field(std::move(name), "true | false", {{"type", "boolean"}}, at, read, std::move(meaning));
}

/// "an integer from LEAST to MOST", and its schema.
std::pair<std::string, Json> integer_range(int64_t least, int64_t most);
/// T: int64_t, or an optional one, as below.
template <typename T, typename Section>
RecipeField integer_field(std::string name, int64_t least, int64_t most, T Section::*at, std::string meaning) {
  const auto read = [=](const Json& value, const std::string& place, const std::string& values) {
    return read_integer(value, place, values, least, most);
  };
  auto [values, schema] = integer_range(least, most);
  return value_field(std::move(name), values, schema, at, read, std::move(meaning));
}

template <typename T, typename Section>
RecipeField number_field(std::string name, const std::string& values, Json bounds, double least, double below,
                         T Section::*at, std::string meaning) {
  const auto read = [=](const Json& value, const std::string& place, const std::string& allowed) {
    return read_number(value, place, allowed, least, below);
  };
  Json schema = {{"type", "number"}};
  schema.update(bounds);
  return value_field(std::move(name), values, schema, at, read, std::move(meaning));
}

/// "a number from LEAST to below BELOW", and the bounds in its schema.
std::pair<std::string, Json> number_range(double least, double below);
/// least <= value < below
template <typename T, typename Section>
RecipeField number_field(std::string name, double least, double below, T Section::*at, std::string meaning) {
  const auto [values, bounds] = number_range(least, below);
  return number_field(std::move(name), values, bounds, least, below, at, std::move(meaning));
}

/// 0 <= value <= 1
template <typename T, typename Section>
RecipeField share_field(std::string name, T Section::*at, std::string meaning) {
  return number_field(std::move(name), "a number from 0 to 1", {{"minimum", 0}, {"maximum", 1}}, 0, 1 + 1e-9, at,
                      std::move(meaning));
}

template <typename T, typename Section>
RecipeField texts_field(std::string name, T Section::*at, std::string meaning) {
  const Json schema = {{"type", {"array", "string"}}, {"items", {{"type", "string"}}}};
  return value_field(std::move(name), "a list of strings", schema, at, read_texts, std::move(meaning));
}

/// One of several names.
template <typename T, typename Section>
RecipeField choice_field(std::string name, std::type_identity_t<std::vector<std::pair<std::string, T>>> choices,
                         T Section::*at, std::string meaning) {
  std::vector<std::string> names;
  for (const auto& [choice, value] : choices) names.push_back(choice);
  const auto read = [=](const Json& got, const std::string& place, const std::string& values) {
    for (const auto& [choice, value] : choices) {
      if (got == choice) return value;
    }
    const std::string given = got.is_string() ? got.get<std::string>() : "";
    std::string near = value_for_foreign(given);
    if (std::find(names.begin(), names.end(), near) == names.end()) near = nearest(given, names);
    if (near.empty()) refuse_value(place, values, got);
    throw UsageError("must be " + values + ", not " + got.dump(), "did you mean " + near + "?", place);
  };
  const auto write = [=](const T& held) -> Json {
    for (const auto& [choice, value] : choices) {
      if (held == value) return choice;
    }
    return nullptr;
  };
  return value_field(std::move(name), joined(names, " | "), {{"enum", names}}, at, read, std::move(meaning), write);
}

}  // namespace nibble::detail
