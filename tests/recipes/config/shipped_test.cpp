#include "nibble/recipes/config/shipped.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/config/recipe_reference.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

TEST(ShippedRecipes, AllParseAndSayWhatTheyAreForInTheirFirstSentence) {
  EXPECT_GE(shipped_recipes().size(), 13u);
  for (const ShippedRecipe& recipe : shipped_recipes()) {
    EXPECT_NO_THROW(parse_recipe(std::string(recipe.text), std::string(recipe.name))) << recipe.name;
    EXPECT_TRUE(recipe.about.ends_with('.')) << recipe.name << ": " << recipe.about;
  }
}

TEST(ShippedRecipes, ExplainEveryValueInAComment) {
  for (const ShippedRecipe& recipe : shipped_recipes()) {
    const std::string text(recipe.text);
    if (text.find("$schema") != std::string::npos || recipe.name.find('-') == std::string_view::npos) continue;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      const bool has_value = line.starts_with("    \"");  // inside a section
      EXPECT_TRUE(!has_value || line.find("// ") != std::string::npos) << recipe.name << ": " << line;
    }
  }
}

// A published model stands in the places of MODEL and nothing else differs; the comments keep their column.
TEST(ShippedRecipes, ForAPublishedModelAreTheTemplateWithItsPathAndPlan) {
  EXPECT_GE(published_models().size(), 50u);
  for (const PublishedModel& model : published_models()) {
    EXPECT_FALSE(model.plans.empty()) << model.name;
    for (const auto& [kind, plan] : model.plans) {
      const std::string name = model.name + "-" + kind;
      EXPECT_TRUE(is_shipped_recipe(name));
      const std::string text = shipped_recipe(name);
      EXPECT_EQ(text.find("MODEL"), std::string::npos) << text;
      EXPECT_NE(text.find("// Plan: " + plan + " a step on "), std::string::npos) << text;
      const Recipe recipe = parse_recipe(text, name);
      EXPECT_EQ(recipe.model.path, model.path);
      EXPECT_EQ(recipe.output.dir, "runs/" + name);
      const Recipe plain = parse_recipe(shipped_recipe("published-" + kind), name,
                                        {"model.path=" + model.path, "output.dir=" + recipe.output.dir});
      EXPECT_EQ(to_json(recipe), to_json(plain));
    }
  }
  EXPECT_NE(
      shipped_recipe("tinyllama-1.1b-qlora").find("\n    \"path\": \"TinyLlama-1.1B-Chat-v1.0\",     // directory"),
      std::string::npos);
  for (const char* of_this_year :
       {"gemma-3-4b-qlora", "gemma-4-e4b-lora", "gemma-4-26b-a4b-mixture", "qwen3.5-4b-qlora", "glm-4.7-flash-latent",
        "nemotron-3-nano-30b-a3b-mixture", "lfm2-2.6b-lora", "granite-4.0-h-tiny-qlora", "phi-4-mini-qlora"}) {
    EXPECT_TRUE(is_shipped_recipe(of_this_year)) << of_this_year;
  }
  EXPECT_THROW(shipped_recipe("pythia-1.4b-full"), UsageError);
  EXPECT_FALSE(is_shipped_recipe("MODEL-qlora"));
}

// The files under docs/ are what the program prints; make them with `nibble recipes schema` and `reference`.
TEST(RecipeDocuments, AreWhatTheTableSays) {
  const std::filesystem::path docs = std::filesystem::path(kSourceDir) / "docs";
  EXPECT_EQ(test::read_bytes(docs / "recipe.schema.json"), recipe_schema());
  EXPECT_EQ(test::read_bytes(docs / "recipe.md"), recipe_reference());
}

TEST(RecipeSchema, KnowsEveryKeyAndForbidsOthers) {
  const nlohmann::json schema = nlohmann::json::parse(recipe_schema());
  EXPECT_EQ(schema["additionalProperties"], false);
  for (const RecipeKey& key : recipe_keys()) {
    const size_t dot = key.name.find('.');
    ASSERT_TRUE(schema["properties"].contains(key.name.substr(0, dot))) << key.name;
    const nlohmann::json& section = schema["properties"][key.name.substr(0, dot)];
    if (dot == std::string::npos) {  // a list, which is its own section
      EXPECT_EQ(section["items"]["additionalProperties"], false) << key.name;
      continue;
    }
    EXPECT_EQ(section["additionalProperties"], false);
    EXPECT_TRUE(section["properties"].contains(key.name.substr(dot + 1))) << key.name;
  }
  EXPECT_TRUE(schema["properties"].contains("$schema"));
}

}  // namespace
}  // namespace nibble
