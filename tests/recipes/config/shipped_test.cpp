#include "nibble/recipes/config/shipped.h"

#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/config/recipe_reference.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using testing::HasSubstr;

TEST(ShippedRecipes, AllParseAndSayWhatTheyAreForInTheirFirstSentence) {
  EXPECT_GE(shipped_recipes().size(), 13u);
  for (const ShippedRecipe& recipe : shipped_recipes()) {
    EXPECT_NO_THROW(parse_recipe(std::string(recipe.text), std::string(recipe.name))) << recipe.name;
    EXPECT_TRUE(recipe.about.ends_with('.')) << recipe.name << ": " << recipe.about;
  }
}

TEST(ShippedRecipes, ExplainEveryValueInACommentInOneColumn) {
  for (const ShippedRecipe& recipe : shipped_recipes()) {
    const std::string text(recipe.text);
    if (text.find("$schema") != std::string::npos || recipe.name.find('-') == std::string_view::npos) continue;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      const bool has_value = line.starts_with("    \"");  // inside a section
      EXPECT_TRUE(!has_value || line.find("// ") == 44) << recipe.name << ": " << line;
    }
  }
}

// What differs in values alone is one recipe, and rows of the table.
TEST(ShippedRecipes, HaveOtherKeysThanEachOther) {
  std::map<std::set<std::string>, std::string_view> by_keys;
  for (const ShippedRecipe& recipe : shipped_recipes()) {
    std::set<std::string> keys;
    const nlohmann::json file = nlohmann::json::parse(recipe.text, nullptr, true, true);
    for (const auto& [section, all] : file.items()) {
      if (!all.is_object()) continue;
      for (const auto& [key, value] : all.items()) keys.insert(section + "." + key);
    }
    const auto [known, is_new] = by_keys.emplace(keys, recipe.name);
    EXPECT_TRUE(is_new) << recipe.name << " has the keys of " << known->second;
  }
}

// Nothing differs but the values that the table has for the model; the comments keep their column.
TEST(ShippedRecipes, ForAPublishedModelAreTheTemplateWithItsValuesAndPlan) {
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
      std::vector<std::string> overrides;
      for (const auto& [key, value] : model.recipe_values(kind)) overrides.push_back(key + "=" + value);
      EXPECT_EQ(to_json(recipe), to_json(parse_recipe(shipped_recipe("published-" + kind), name, overrides)));
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
    }
    for (const auto& [kind, values] : model.values) EXPECT_TRUE(model.plans.contains(kind)) << model.name << kind;
  }
  EXPECT_NE(
      shipped_recipe("tinyllama-1.1b-qlora").find("\n    \"path\": \"TinyLlama-1.1B-Chat-v1.0\",     // directory"),
      std::string::npos);
  for (const char* of_this_year :
       {"gemma-3-4b-qlora", "gemma-4-e4b-lora", "gemma-4-26b-a4b-qlora", "qwen3.5-4b-qlora", "glm-4.7-flash-qlora",
        "nemotron-3-nano-30b-a3b-qlora", "lfm2-2.6b-lora", "granite-4.0-h-tiny-qlora", "phi-4-mini-qlora"}) {
    EXPECT_TRUE(is_shipped_recipe(of_this_year)) << of_this_year;
  }
  EXPECT_THROW(shipped_recipe("pythia-1.4b-full"), UsageError);
  EXPECT_FALSE(is_shipped_recipe("MODEL-qlora"));
}

TEST(ShippedRecipes, OfOneFileDifferByTheValuesOfTheTable) {
  for (const auto& [model, stages] : {std::pair("falcon-7b", 4), std::pair("falcon-40b", 8)}) {
    const std::string name = std::string(model) + "-qlora-pipeline", text = shipped_recipe(name);
    const Recipe recipe = parse_recipe(text, name);
    EXPECT_EQ(recipe.parallel.pipeline, stages);
    EXPECT_EQ(recipe.train.accumulate, 4 * stages);
    EXPECT_THAT(text, HasSubstr(" stages, one a rank: nibble launch -n " + std::to_string(stages) + " --hosts"));
    EXPECT_THAT(text, HasSubstr(" in bf16 a rank.\n")) << text;
    EXPECT_THAT(text,
                HasSubstr("\n    \"pipeline\": " + std::to_string(stages) + ",                          // stages"));
  }
  const Recipe continual = parse_recipe(shipped_recipe("llama-3.2-1b-continual"), "continual");
  EXPECT_EQ(continual.optimizer.lr, 1e-4);
  EXPECT_EQ(continual.train.microbatch_size, 1);
  const std::string mixture = shipped_recipe("qwen3-30b-a3b-qlora");
  EXPECT_THAT(mixture, HasSubstr("\n    // all-linear is every matrix but the head; experts take no lora_dropout\n"
                                 "    \"target_modules\": [\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"]\n"));
  EXPECT_THAT(shipped_recipe("glm-4.7-flash-qlora"), HasSubstr("\"kv_a_proj_with_mqa\", \"kv_b_proj\", \"o_proj\"]\n"));
  for (const char* old : {"qwen3-30b-a3b-mixture", "gpt-oss-20b-mixture", "glm-4.7-flash-latent"}) {
    const std::string model(old, std::string_view(old).rfind('-'));
    const std::string said = test::error_of<UsageError>([&] { shipped_recipe(old); });
    EXPECT_THAT(said, HasSubstr("did you mean " + model + "-qlora?"));
  }
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
