#pragma once
// Makers of rows of the recipe's table, one for each kind of value. Internal to recipes/config.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nibble/core/text/matching/nearest.h"
#include "nibble/recipes/config/foreign_keys.h"
#include "nibble/recipes/config/recipe_fields.h"

namespace nibble::detail {

/// The largest count of anything: every count fits a 32-bit integer, wherever it goes.
inline constexpr int64_t kLargestCount = std::numeric_limits<int32_t>::max();

/// Where a value lives in a Recipe.
template <typename T>
using Place = T& (*)(Recipe&);

/// Throws UsageError "place: must be VALUES, not GOT".
[[noreturn]] void refuse_value(const std::string& place, const std::string& values, const Json& got);

RecipeField text_field(std::string name, std::string values, Place<std::string> at, std::string meaning);
RecipeField flag_field(std::string name, Place<bool> at, std::string meaning);
RecipeField integer_field(std::string name, int64_t least, int64_t most, Place<int64_t> at, std::string meaning);
RecipeField optional_integer_field(std::string name, int64_t least, int64_t most, Place<std::optional<int64_t>> at,
                                   std::string meaning);
/// least <= value < below
RecipeField number_field(std::string name, double least, double below, Place<double> at, std::string meaning);
/// value > 0
RecipeField optional_positive_field(std::string name, Place<std::optional<double>> at, std::string meaning);
/// value >= least
RecipeField optional_number_field(std::string name, double least, Place<std::optional<double>> at, std::string meaning);
/// The key belongs to objectives of these types.
RecipeField only_for(const std::vector<ObjectiveType>& types, RecipeField field);
/// Objectives whose answers are the model's own.
std::vector<ObjectiveType> rewarded_objectives();
/// A list of strings; one string is a list of one.
RecipeField texts_field(std::string name, Place<std::vector<std::string>> at, std::string meaning);
RecipeField optional_texts_field(std::string name, Place<std::optional<std::vector<std::string>>> at,
                                 std::string meaning);
/// Steps, or a time such as "30s", "10min", "2h"; 0 = never.
RecipeField interval_field(std::string name, Place<Interval> at, std::string meaning);

/// The same row, but the value may change between stop and resume.
RecipeField free_to_change(RecipeField field);
/// The row with everything but read and write.
RecipeField bare_field(std::string name, std::string values, Json schema, std::string meaning);
std::vector<std::string> read_texts(const Json& value, const std::string& place, const std::string& values);
/// A number in [least, below), also when it is rounded to 32 bits, in which it may be used: finite, below `below`, and
/// not 0 where 0 is not allowed.
double read_number(const Json& value, const std::string& place, const std::string& values, double least,
                   double below = std::numeric_limits<double>::infinity());
int64_t read_integer(const Json& value, const std::string& place, const std::string& values, int64_t least,
                     int64_t most);

/// One of several names.
template <typename T>
RecipeField choice_field(std::string name, std::vector<std::pair<std::string, T>> choices, Place<T> at,
                         std::string meaning) {
  std::vector<std::string> names;
  std::string values;
  for (const auto& [choice, value] : choices) names.push_back(choice);
  for (const std::string& choice : names) values += (values.empty() ? "" : " | ") + choice;
  RecipeField field = bare_field(std::move(name), values, {{"enum", names}}, std::move(meaning));
  field.read = [=](Recipe& recipe, const Json& got, const std::string& place) {
    for (const auto& [choice, value] : choices) {
      if (got == choice) {
        at(recipe) = value;
        return;
      }
    }
    const std::string given = got.is_string() ? got.get<std::string>() : "";
    std::string near = value_for_foreign(given);
    if (std::find(names.begin(), names.end(), near) == names.end()) near = nearest(given, names);
    if (near.empty()) refuse_value(place, values, got);
    throw UsageError("must be " + values + ", not " + got.dump(), "did you mean " + near + "?", place);
  };
  field.write = [=](Recipe& recipe) -> Json {
    for (const auto& [choice, value] : choices) {
      if (at(recipe) == value) return choice;
    }
    return nullptr;
  };
  return field;
}

}  // namespace nibble::detail
