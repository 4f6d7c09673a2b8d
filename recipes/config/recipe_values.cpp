#include "nibble/recipes/config/recipe_values.h"

#include <algorithm>
#include <charconv>

namespace nibble::detail {

namespace {

// Past 2^53 integers in JSON are no longer safe in other readers.
constexpr int64_t kLargest = int64_t{1} << 53;

std::string shortened(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string range_text(const std::string& kind, int64_t least, int64_t most) {
  if (most >= kLargest) return kind + " from " + std::to_string(least);
  return kind + " from " + std::to_string(least) + " to " + std::to_string(most);
}

std::string short_number(double value) {
  const std::string text = Json(value).dump();
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

Json integer_schema(int64_t least, int64_t most) {
  Json schema = {{"type", "integer"}, {"minimum", least}};
  if (most < kLargest) schema["maximum"] = most;
  return schema;
}

const Json kTextsSchema = {{"type", {"array", "string"}}, {"items", {{"type", "string"}}}};

Interval read_interval(const Json& value, const std::string& place, const std::string& values) {
  if (!value.is_string()) return {read_integer(value, place, values, 0, kLargestCount), 0};
  const std::string text = value.get<std::string>();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const double seconds = unit == "s" ? 1 : unit == "min" ? 60 : unit == "h" ? 3600 : 0;
  if (error != std::errc() || seconds == 0 || !(number > 0) || !std::isfinite(number)) {
    refuse_value(place, values, value);
  }
  return {0, number * seconds};
}

Json write_interval(const Interval& interval) {
  if (interval.seconds == 0) return interval.steps;
  const bool minutes = std::fmod(interval.seconds, 60) == 0;
  return short_number(minutes ? interval.seconds / 60 : interval.seconds) + (minutes ? "min" : "s");
}

}  // namespace

void refuse_value(const std::string& place, const std::string& values, const Json& got) {
  throw UsageError("must be " + values + ", not " + shortened(got), "", place);
}

int64_t read_integer(const Json& value, const std::string& place, const std::string& values, int64_t least,
                     int64_t most) {
  most = std::min(most, kLargest);
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const uint64_t given = value.get<uint64_t>();
    if (given > static_cast<uint64_t>(kLargest)) refuse_value(place, values, value);
    number = static_cast<int64_t>(given);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const double given = value.get<double>();  // 1e3 is an integer too
    if (!(std::fabs(given) <= static_cast<double>(kLargest)) || given != std::floor(given)) {
      refuse_value(place, values, value);
    }
    number = static_cast<int64_t>(given);
  } else {
    refuse_value(place, values, value);
  }
  if (number < least || number > most) refuse_value(place, values, value);
  return number;
}

double read_number(const Json& value, const std::string& place, const std::string& values, double least, double below) {
  if (!value.is_number()) refuse_value(place, values, value);
  const double number = value.get<double>();
  const double rounded = static_cast<float>(number);
  const bool vanishes = rounded == 0 && least > 0;
  if (!std::isfinite(rounded) || number < least || !(rounded < below) || vanishes) refuse_value(place, values, value);
  return number;
}

std::vector<std::string> read_texts(const Json& value, const std::string& place, const std::string& values) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) refuse_value(place, values, value);
  std::vector<std::string> texts;
  for (const Json& item : value) {
    if (!item.is_string()) refuse_value(place, values, value);
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

RecipeField bare_field(std::string name, std::string values, Json schema, std::string meaning) {
  RecipeField field;
  field.name = std::move(name);
  field.values = std::move(values);
  field.schema = std::move(schema);
  field.meaning = std::move(meaning);
  return field;
}

std::vector<ObjectiveType> rewarded_objectives() {
  std::vector<ObjectiveType> types = objective_types();
  std::erase_if(types, [](ObjectiveType type) { return !has_rewards(type); });
  return types;
}

RecipeField only_for(const std::vector<ObjectiveType>& types, RecipeField field) {
  field.applies = [types](const Recipe& recipe) { return std::ranges::count(types, recipe.objective.type) > 0; };
  return field;
}

RecipeField free_to_change(RecipeField field) {
  field.decides_bits = false;
  return field;
}

RecipeField text_field(std::string name, std::string values, Place<std::string> at, std::string meaning) {
  RecipeField field = bare_field(std::move(name), std::move(values), {{"type", "string"}}, std::move(meaning));
  field.read = [at, values = field.values](Recipe& recipe, const Json& value, const std::string& place) {
    if (!value.is_string() || value.get<std::string>().find('\0') != std::string::npos) {
      refuse_value(place, values, value);
    }
    at(recipe) = value.get<std::string>();
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe).empty() ? Json(nullptr) : Json(at(recipe)); };
  return field;
}

RecipeField flag_field(std::string name, Place<bool> at, std::string meaning) {
  RecipeField field = bare_field(std::move(name), "true | false", {{"type", "boolean"}}, std::move(meaning));
  field.read = [at](Recipe& recipe, const Json& value, const std::string& place) {
    if (!value.is_boolean()) refuse_value(place, "true or false", value);
    at(recipe) = value.get<bool>();
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe); };
  return field;
}

RecipeField integer_field(std::string name, int64_t least, int64_t most, Place<int64_t> at, std::string meaning) {
  RecipeField field = bare_field(std::move(name), range_text("an integer", least, most), integer_schema(least, most),
                                 std::move(meaning));
  field.read = [=, values = field.values](Recipe& recipe, const Json& value, const std::string& place) {
    at(recipe) = read_integer(value, place, values, least, most);
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe); };
  return field;
}

RecipeField optional_integer_field(std::string name, int64_t least, int64_t most, Place<std::optional<int64_t>> at,
                                   std::string meaning) {
  RecipeField field = bare_field(std::move(name), range_text("an integer", least, most), integer_schema(least, most),
                                 std::move(meaning));
  field.read = [=, values = field.values](Recipe& recipe, const Json& value, const std::string& place) {
    at(recipe) = read_integer(value, place, values, least, most);
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe) ? Json(*at(recipe)) : Json(nullptr); };
  return field;
}

RecipeField number_field(std::string name, double least, double below, Place<double> at, std::string meaning) {
  std::string values = "a number from " + short_number(least);
  Json schema = {{"type", "number"}, {"minimum", least}};
  if (std::isfinite(below)) {
    values += " to below " + short_number(below);
    schema["exclusiveMaximum"] = below;
  }
  RecipeField field = bare_field(std::move(name), values, schema, std::move(meaning));
  field.read = [=](Recipe& recipe, const Json& value, const std::string& place) {
    at(recipe) = read_number(value, place, values, least, below);
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe); };
  return field;
}

namespace {

RecipeField optional_number(std::string name, const std::string& values, const char* bound, double shown, double least,
                            Place<std::optional<double>> at, std::string meaning) {
  RecipeField field = bare_field(std::move(name), values, {{"type", "number"}, {bound, shown}}, std::move(meaning));
  field.read = [=](Recipe& recipe, const Json& value, const std::string& place) {
    at(recipe) = read_number(value, place, values, least);
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe) ? Json(*at(recipe)) : Json(nullptr); };
  return field;
}

}  // namespace

RecipeField optional_positive_field(std::string name, Place<std::optional<double>> at, std::string meaning) {
  return optional_number(std::move(name), "a number above 0", "exclusiveMinimum", 0, std::numeric_limits<double>::min(),
                         at, std::move(meaning));
}

RecipeField optional_number_field(std::string name, double least, Place<std::optional<double>> at,
                                  std::string meaning) {
  return optional_number(std::move(name), "a number from " + short_number(least), "minimum", least, least, at,
                         std::move(meaning));
}

RecipeField texts_field(std::string name, Place<std::vector<std::string>> at, std::string meaning) {
  RecipeField field = bare_field(std::move(name), "a list of strings", kTextsSchema, std::move(meaning));
  field.read = [at](Recipe& recipe, const Json& value, const std::string& place) {
    at(recipe) = read_texts(value, place, "a list of strings");
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe); };
  return field;
}

RecipeField optional_texts_field(std::string name, Place<std::optional<std::vector<std::string>>> at,
                                 std::string meaning) {
  RecipeField field = bare_field(std::move(name), "a list of strings", kTextsSchema, std::move(meaning));
  field.read = [at](Recipe& recipe, const Json& value, const std::string& place) {
    at(recipe) = read_texts(value, place, "a list of strings");
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe) ? Json(*at(recipe)) : Json(nullptr); };
  return field;
}

RecipeField interval_field(std::string name, Place<Interval> at, std::string meaning) {
  const std::string values = "a number of steps (0: never) or a time such as \"10min\", \"90s\", \"2h\"";
  RecipeField field =
      bare_field(std::move(name), values, {{"type", {"integer", "string"}}, {"minimum", 0}}, std::move(meaning));
  field.decides_bits = false;
  field.read = [=](Recipe& recipe, const Json& value, const std::string& place) {
    at(recipe) = read_interval(value, place, values);
  };
  field.write = [at](Recipe& recipe) -> Json { return write_interval(at(recipe)); };
  return field;
}

}  // namespace nibble::detail
