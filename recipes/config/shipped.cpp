#include "nibble/recipes/config/shipped.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/text/matching/nearest.h"

namespace nibble {

std::string_view published_models_text();  // made with shipped_recipes() by cmake/embed_recipes.cmake

namespace {

constexpr std::string_view kPublished = "published-";

const ShippedRecipe* find_file(std::string_view name) {
  const auto files = shipped_recipes();
  const auto found = std::find_if(files.begin(), files.end(), [&](const auto& one) { return one.name == name; });
  return found == files.end() ? nullptr : &*found;
}

void replace(std::string& text, std::string_view from, const std::string& to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

// The template with the model in the places of "MODEL"; comments keep their column where there is room.
std::string recipe_of(const PublishedModel& model, const std::string& kind) {
  std::istringstream lines(std::string(find_file(std::string(kPublished) + kind)->text));
  std::string line;
  std::getline(lines, line);
  replace(line, "a published model", model.path);
  std::string text = line + "\n// Plan: " + model.plans.at(kind) + " a step on 16 cores of 4 TFLOP/s in bf16.\n";
  while (std::getline(lines, line)) {
    const size_t comment = line.find("//");
    if (line.find("MODEL") != std::string::npos && comment != std::string::npos) {
      std::string code = line.substr(0, line.find_last_not_of(' ', comment - 1) + 1);
      replace(code, "MODEL-" + kind, model.name + "-" + kind);
      replace(code, "\"MODEL\"", "\"" + model.path + "\"");
      code.resize(std::max(code.size() + 1, comment), ' ');
      line = code + line.substr(comment);
    }
    text += line + "\n";
  }
  return text;
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const ShippedRecipe& recipe : shipped_recipes()) names.emplace_back(recipe.name);
  for (const PublishedModel& model : published_models()) {
    for (const auto& [kind, plan] : model.plans) names.push_back(model.name + "-" + kind);
  }
  return names;
}

}  // namespace

std::vector<PublishedModel> published_models() {
  std::vector<PublishedModel> models;
  for (const auto& row : nlohmann::json::parse(published_models_text())) {
    PublishedModel& model = models.emplace_back();
    for (const auto& [key, value] : row.items()) {
      (key == "name" ? model.name : key == "path" ? model.path : model.plans[key]) = value;
    }
  }
  return models;
}

bool is_shipped_recipe(std::string_view name) {
  const auto names = all_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string shipped_recipe(std::string_view name) {
  if (const ShippedRecipe* file = find_file(name)) return std::string(file->text);
  for (const PublishedModel& model : published_models()) {
    for (const auto& [kind, plan] : model.plans) {
      if (name == model.name + "-" + kind) return recipe_of(model, kind);
    }
  }
  const std::string meant = nearest(std::string(name), all_names());
  throw UsageError("no recipe is named " + std::string(name),
                   meant.empty() ? "see nibble recipes ls" : "did you mean " + meant + "?");
}

}  // namespace nibble
