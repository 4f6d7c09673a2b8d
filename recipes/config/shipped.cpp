#include "nibble/recipes/config/shipped.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/text/matching/nearest.h"

namespace nibble {

std::string_view published_models_text();  // made with shipped_recipes() by cmake/embed_recipes.cmake

namespace {

constexpr std::string_view kPublished = "published-";
constexpr const char* kEachRank = " a rank";

const ShippedRecipe* find_file(std::string_view name) {
  const auto files = shipped_recipes();
  const auto found = std::find_if(files.begin(), files.end(), [&](const auto& one) { return one.name == name; });
  return found == files.end() ? nullptr : &*found;
}

void replace(std::string& text, std::string_view from, const std::string& to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

// A value of the table as a recipe spells it: a list with blanks.
std::string text_of(const nlohmann::json& value) {
  if (!value.is_array()) return value.dump();
  return "[" + joined(value, ", ", [](const nlohmann::json& one) { return one.dump(); }) + "]";
}

// `line`, which ends in `comment`, with `value` for that of `key`. The comment keeps its column, or stands above where
// the line would be too long.
std::string with_value(std::string line, const std::string& key, const std::string& value) {
  constexpr size_t kMaxColumns = 120;
  const size_t column = line.find("//");
  const std::string comment = line.substr(column);
  line.resize(line.find_last_not_of(' ', column - 1) + 1);
  std::string code = "    \"" + key + "\": " + value + (line.ends_with(',') ? "," : "");
  if (code.size() + 1 + comment.size() > kMaxColumns) return "    " + comment + "\n" + code;
  code.resize(std::max(code.size() + 1, column), ' ');
  return code + comment;
}

// published-KIND with the values of the model; all stand alone in a line of a section: "    "key": value  // comment".
std::string recipe_of(const PublishedModel& model, const std::string& kind) {
  std::istringstream lines(std::string(find_file(std::string(kPublished) + kind)->text));
  std::string line;
  std::getline(lines, line);
  replace(line, "a published model", model.path);
  const std::map<std::string, std::string> values = model.recipe_values(kind);
  if (const auto stages = values.find("parallel.pipeline"); stages != values.end())
    replace(line, "STAGES", stages->second);
  const std::string& plan = model.plans.at(kind);
  std::string text = line + "\n// Plan: " + plan + " a step on 16 cores of 4 TFLOP/s in bf16" +
                     (plan.find(kEachRank) == std::string::npos ? "" : kEachRank) + ".\n";
  std::string section;
  while (std::getline(lines, line)) {
    const std::string key = line.substr(0, line.find("\": ")).substr(std::min(line.find('"') + 1, line.size()));
    if (line.starts_with("  \"")) section = key + ".";
    const auto found = values.find(section + key);
    text += (found == values.end() ? line : with_value(line, key, found->second)) + "\n";
  }
  return text;
}

}  // namespace

std::vector<PublishedModel> published_models() {
  std::vector<PublishedModel> models;
  for (const auto& row : nlohmann::json::parse(published_models_text())) {
    PublishedModel& model = models.emplace_back();
    for (const auto& [key, value] : row.items()) {
      if (key != "values") {
        (key == "name" ? model.name : key == "path" ? model.path : model.plans[key]) = value;
        continue;
      }
      for (const auto& [kind, own] : value.items()) {
        for (const auto& [name, one] : own.items()) model.values[kind][name] = text_of(one);
      }
    }
  }
  return models;
}

std::map<std::string, std::string> PublishedModel::recipe_values(const std::string& kind) const {
  const auto own = values.find(kind);
  std::map<std::string, std::string> all = own == values.end() ? decltype(all)() : own->second;
  all["model.path"] = text_of(path);
  all["output.dir"] = text_of("runs/" + name + "-" + kind);
  return all;
}

std::vector<std::string> shipped_recipe_names() {
  std::vector<std::string> names;
  for (const ShippedRecipe& recipe : shipped_recipes()) names.emplace_back(recipe.name);
  for (const PublishedModel& model : published_models()) {
    for (const auto& [kind, plan] : model.plans) names.push_back(model.name + "-" + kind);
  }
  return names;
}

bool is_shipped_recipe(std::string_view name) {
  const auto names = shipped_recipe_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string shipped_recipe(std::string_view name) {
  if (const ShippedRecipe* file = find_file(name)) return std::string(file->text);
  for (const PublishedModel& model : published_models()) {
    for (const auto& [kind, plan] : model.plans) {
      if (name == model.name + "-" + kind) return recipe_of(model, kind);
    }
  }
  const std::string meant = nearest(std::string(name), shipped_recipe_names());
  throw UsageError("no recipe is named " + std::string(name),
                   meant.empty() ? "see nibble recipes ls" : "did you mean " + meant + "?");
}

}  // namespace nibble
