#include "nibble/core/text/tokenizers/json/json_fields.h"

#include "nibble/core/base/error.h"

namespace nibble {

nlohmann::json read_object_if_there(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return nlohmann::json::object();
  nlohmann::json value = read_json_file(path, kTokenizerLimits);
  if (!value.is_object()) throw InputError(path.string(), "is not a JSON object");
  return value;
}

std::vector<nlohmann::json> flat_steps(const nlohmann::json& step, const char* members) {
  if (!step.is_object()) return {};
  if (step.value("type", "") != "Sequence") return {step};
  std::vector<nlohmann::json> steps;
  for (const nlohmann::json& member : step.value(members, nlohmann::json::array())) {
    for (nlohmann::json& inner : flat_steps(member, members)) steps.push_back(std::move(inner));
  }
  return steps;
}

void JsonFields::fail(const std::string& reason) const { throw InputError(place(), reason); }

bool JsonFields::has(const std::string& key) const {
  if (!value_->is_object()) return false;
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

JsonFields JsonFields::at(const std::string& key) const {
  if (!value_->is_object()) fail("is not a JSON object");
  const auto found = value_->find(key);
  if (found == value_->end()) fail("has no \"" + key + "\"");
  return {*found, file_, path_.empty() ? key : path_ + "." + key};
}

JsonFields JsonFields::item(size_t index) const {
  if (index >= size()) fail("has no element " + std::to_string(index));
  return {(*value_)[index], file_, path_ + "[" + std::to_string(index) + "]"};
}

size_t JsonFields::size() const {
  if (!value_->is_array()) fail("is not a list");
  return value_->size();
}

std::string JsonFields::string() const {
  if (!value_->is_string()) fail("is not a string");
  return value_->get<std::string>();
}

int64_t JsonFields::integer() const {
  if (!value_->is_number_integer() ||
      (value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)))
    fail("is not an integer");
  return value_->get<int64_t>();
}

bool JsonFields::boolean() const {
  if (!value_->is_boolean()) fail("is not true or false");
  return value_->get<bool>();
}

std::string JsonFields::string_or(const std::string& key, const std::string& otherwise) const {
  return has(key) ? at(key).string() : otherwise;
}

int64_t JsonFields::integer_or(const std::string& key, int64_t otherwise) const {
  return has(key) ? at(key).integer() : otherwise;
}

bool JsonFields::boolean_or(const std::string& key, bool otherwise) const {
  return has(key) ? at(key).boolean() : otherwise;
}

}  // namespace nibble
