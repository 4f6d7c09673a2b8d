#include "nibble/recipes/config/recipe_fields.h"

namespace nibble {

using detail::Json;
using detail::recipe_fields;
using detail::RecipeField;

std::vector<RecipeKey> recipe_keys() {
  Recipe defaults;
  defaults.adapter.emplace();
  std::vector<RecipeKey> keys;
  for (const RecipeField& field : recipe_fields()) {
    const Json value = field.write(defaults);
    keys.push_back({field.name, field.values, value.is_null() ? "" : value.dump(), field.meaning});
  }
  return keys;
}

std::string recipe_schema() {
  Recipe defaults;
  defaults.adapter.emplace();
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "nibble recipe"},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", {{"$schema", {{"type", "string"}}}}}};
  for (const RecipeField& field : recipe_fields()) {
    const size_t dot = field.name.find('.');
    if (dot == std::string::npos) {  // a list that is a section
      root["properties"][field.name] = field.schema;
      root["properties"][field.name]["description"] = field.meaning;
      continue;
    }
    Json& section = root["properties"][field.name.substr(0, dot)];
    if (section.is_null()) {
      section = {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
    }
    Json key = field.schema.is_object() ? field.schema : Json{{"not", Json::object()}};
    key["description"] = field.meaning;
    const Json value = field.write(defaults);
    if (!value.is_null()) key["default"] = value;
    section["properties"][field.name.substr(dot + 1)] = key;
  }
  return root.dump(2) + "\n";
}

}  // namespace nibble
