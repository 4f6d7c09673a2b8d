#include "nibble/core/models/families/config_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"

namespace nibble {

using nlohmann::json;

namespace {

std::string shown(double value) { return formatted("%g", value); }

// The text of a value for an error message, cut when it is long.
std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 40 ? text.substr(0, 37) + "..." : text;
}

std::optional<double> number_of(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_object() || value.size() != 1 || !value.contains("__float__")) return std::nullopt;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value["__float__"] == "Infinity") return kInfinity;
  if (value["__float__"] == "-Infinity") return -kInfinity;
  return std::nullopt;
}

}  // namespace

ConfigReader::ConfigReader(const json& object, std::string place, std::string path)
    : object_(&object), place_(std::move(place)), path_(std::move(path)) {
  if (!object.is_object()) throw InputError(place_, (path_.empty() ? "the file" : path_) + " is no JSON object");
}

void ConfigReader::fail(std::string_view key, const std::string& reason, const std::string& remedy) const {
  throw InputError(place_, path_ + std::string(spelled(key)) + " " + reason, remedy);
}

std::string_view ConfigReader::spelled(std::string_view key) const {
  const std::string_view first = key.substr(0, key.find('|'));
  std::string_view null;
  for (std::string_view rest = key; !rest.empty();) {
    const size_t end = std::min(rest.find('|'), rest.size());
    const auto found = object_->find(rest.substr(0, end));
    if (found != object_->end() && !found->is_null()) return rest.substr(0, end);
    if (found != object_->end() && null.empty()) null = rest.substr(0, end);
    rest = rest.substr(std::min(end + 1, rest.size()));
  }
  return null.empty() ? first : null;
}

const json* ConfigReader::find(std::string_view key) const {
  const auto found = object_->find(spelled(key));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::has(std::string_view key) const { return find(key) != nullptr; }

bool ConfigReader::is_null(std::string_view key) const {
  const auto found = object_->find(spelled(key));
  return found != object_->end() && found->is_null();
}

int64_t ConfigReader::integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> absent) const {
  const json* value = find(key);
  if (!value && !absent) fail(key, "is missing");
  if (!value && *absent > high) {
    fail(key, "is missing, and its default " + std::to_string(*absent) + " is above " + std::to_string(high));
  }
  if (!value) return *absent;
  if (!value->is_number_integer()) fail(key, "is " + shown(*value) + ", not a whole number");
  const bool too_large = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(high);
  if (too_large || value->get<int64_t>() < low) {
    fail(key, "is " + shown(*value) + ", allowed are " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value->get<int64_t>();
}

double ConfigReader::number(std::string_view key, double low, double high, std::optional<double> absent) const {
  const json* value = find(key);
  if (!value && !absent) fail(key, "is missing");
  if (!value) return *absent;
  if (!value->is_number()) fail(key, "is " + shown(*value) + ", not a number");
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    fail(key, "is " + shown(*value) + ", allowed are " + shown(low) + " to " + shown(high));
  }
  return number;
}

bool ConfigReader::boolean(std::string_view key, bool absent) const {
  const json* value = find(key);
  if (!value) return absent;
  if (!value->is_boolean()) fail(key, "is " + shown(*value) + ", not true or false");
  return value->get<bool>();
}

bool ConfigReader::boolean_or_number(std::string_view key, bool absent) const {
  const json* value = find(key);
  return value && value->is_number() ? value->get<double>() != 0 : boolean(key, absent);
}

std::string ConfigReader::text(std::string_view key, std::string_view absent) const {
  const json* value = find(key);
  if (!value) return std::string(absent);
  if (!value->is_string()) fail(key, "is " + shown(*value) + ", not a text");
  return value->get<std::string>();
}

bool ConfigReader::is_text(std::string_view key) const {
  const json* value = find(key);
  return value && value->is_string();
}

bool ConfigReader::is_list(std::string_view key) const {
  const json* value = find(key);
  return value && value->is_array();
}

std::vector<std::string> ConfigReader::texts(std::string_view key) const {
  const json* value = find(key);
  if (!value) return {};
  if (!value->is_array()) fail(key, "is " + shown(*value) + ", not a list");
  std::vector<std::string> result;
  for (const json& entry : *value) {
    if (!entry.is_string()) fail(key, "holds " + shown(entry) + ", not a text");
    result.push_back(entry.get<std::string>());
  }
  return result;
}

std::vector<double> ConfigReader::numbers(std::string_view key, double low, double high) const {
  const json* value = find(key);
  if (!value) return {};
  if (!value->is_array()) fail(key, "is " + shown(*value) + ", not a list");
  std::vector<double> result;
  for (const json& entry : *value) {
    const std::optional<double> number = number_of(entry);
    if (!number) fail(key, "holds " + shown(entry) + ", not a number");
    result.push_back(*number);
    if (!(result.back() >= low && result.back() <= high)) {
      fail(key, "holds " + shown(entry) + ", allowed are " + shown(low) + " to " + shown(high));
    }
  }
  return result;
}

std::vector<int32_t> ConfigReader::ids(std::string_view key) const {
  const json* value = find(key);
  if (!value) return {};
  const json list = value->is_array() ? *value : json::array({*value});
  std::vector<int32_t> result;
  for (const json& entry : list) {
    const bool whole = entry.is_number_integer();
    // Configurations of models without such a token say -1.
    if (whole && entry.is_number_integer() && !entry.is_number_unsigned() && entry.get<int64_t>() == -1) continue;
    if (!whole || (!entry.is_number_unsigned() && entry.get<int64_t>() < 0) ||
        entry.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
      fail(key, "is " + shown(*value) + ", not a token id");
    }
    result.push_back(entry.get<int32_t>());
  }
  return result;
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_object()) fail(key, "is " + shown(*value) + ", not an object");
  return ConfigReader(*value, place_, path_ + std::string(key) + ".");
}

}  // namespace nibble
