#include "nibble/recipes/config/recipe_values.h"

#include <algorithm>
#include <charconv>

namespace nibble::detail {

namespace {

// Past 2^53 integers in JSON are no longer safe in other readers.
constexpr int64_t kLargestInteger = int64_t{1} << 53;

std::string shortened(const Json& value) {
  const double number = value.is_number_float() ? value.get<double>() : 0;
  if (!std::isfinite(number)) return std::isnan(number) ? ".nan" : number < 0 ? "-.inf" : ".inf";  // as YAML has them
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string short_number(double value) {
  const std::string text = Json(value).dump();
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

}  // namespace

void refuse_value(const std::string& place, const std::string& values, const Json& got) {
  throw UsageError("must be " + values + ", not " + shortened(got), "", place);
}

int64_t read_integer(const Json& value, const std::string& place, const std::string& values, int64_t least,
                     int64_t most) {
  most = std::min(most, kLargestInteger);
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const uint64_t given = value.get<uint64_t>();
    if (given > static_cast<uint64_t>(kLargestInteger)) refuse_value(place, values, value);
    number = static_cast<int64_t>(given);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const double given = value.get<double>();  // 1e3 is an integer too
    if (!(std::fabs(given) <= static_cast<double>(kLargestInteger)) || given != std::floor(given)) {
      refuse_value(place, values, value);
    }
    number = static_cast<int64_t>(given);
  } else {
    refuse_value(place, values, value);
  }
  if (number < least || number > most) refuse_value(place, values, value);
  return number;
}

namespace {

// Whether a text is a number that no double holds: JSON has none of it, and so the command line takes it for a text.
bool is_beyond_doubles(const Json& value) {
  if (!value.is_string()) return false;
  const std::string text = value.get<std::string>();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc::result_out_of_range && end == text.data() + text.size();
}

}  // namespace

double read_number(const Json& value, const std::string& place, const std::string& values, double least, double below) {
  std::string limits = values;
  if (!std::isfinite(below)) limits += least > 0 ? ", from 1.4e-45 to 3.4e+38" : ", at most 3.4e+38";
  if (is_beyond_doubles(value)) refuse_value(place, limits, value);
  if (!value.is_number()) refuse_value(place, values, value);
  const double number = value.get<double>();
  const double rounded = static_cast<float>(number);
  if (std::isinf(rounded)) refuse_value(place, number > 0 ? limits : values, value);
  if (rounded == 0 && number > 0) {
    refuse_value(place, least > 0 && !std::isfinite(below) ? limits : values + " (0, or from 1.4e-45)", value);
  }
  if (number < least || !(number < below)) refuse_value(place, values, value);
  if (!(rounded < below)) refuse_value(place, values + " in 32 bits, where this is " + short_number(below), value);
  return number;
}

std::vector<int64_t> read_integers(const Json& value, const std::string& place, const std::string& values,
                                   int64_t least) {
  if (!value.is_array()) refuse_value(place, values, value);
  std::vector<int64_t> integers;
  for (const Json& item : value) integers.push_back(read_integer(item, place, values, least, kLargestCount));
  return integers;
}

std::string read_text(const Json& value, const std::string& place, const std::string& values) {
  if (!value.is_string() || value.get<std::string>().find('\0') != std::string::npos) {
    refuse_value(place, values, value);
  }
  return value.get<std::string>();
}

std::vector<std::string> read_texts(const Json& value, const std::string& place, const std::string& values) {
  if (value.is_string()) return {read_text(value, place, values)};
  if (!value.is_array()) refuse_value(place, values, value);
  std::vector<std::string> texts;
  for (const Json& item : value) {
    texts.push_back(read_text(item, place, values));
  }
  return texts;
}

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

Json written(const Interval& interval) {
  if (interval.seconds == 0) return interval.steps;
  const bool minutes = std::fmod(interval.seconds, 60) == 0;
  return short_number(minutes ? interval.seconds / 60 : interval.seconds) + (minutes ? "min" : "s");
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

std::pair<std::string, Json> integer_range(int64_t least, int64_t most) {
  std::string values = "an integer from " + std::to_string(least);
  Json schema = {{"type", "integer"}, {"minimum", least}};
  if (most < kLargestInteger) {
    values += " to " + std::to_string(most);
    schema["maximum"] = most;
  }
  return {values, schema};
}

std::pair<std::string, Json> number_range(double least, double below) {
  std::string values = "a number from " + short_number(least);
  Json bounds = {{"minimum", least}};
  if (std::isfinite(below)) {
    values += " to below " + short_number(below);
    bounds["exclusiveMaximum"] = below;
  }
  return {values, bounds};
}

}  // namespace nibble::detail
