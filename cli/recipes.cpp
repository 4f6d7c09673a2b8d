// nibble recipes: the recipes that come with nibble, the keys a recipe may have, and their schema for editors.

#include <cstdio>
#include <filesystem>
#include <memory>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/cli/printing/table.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/json/yaml.h"
#include "nibble/parallel/launch.h"
#include "nibble/recipes/config/conversion/convert_recipe.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/config/recipe_reference.h"
#include "nibble/recipes/config/shipped.h"

namespace nibble::cli {

namespace {

void list() {
  for (const ShippedRecipe& recipe : shipped_recipes()) {
    say(stdout, "%-26s %s", std::string(recipe.name).c_str(), std::string(recipe.about).c_str());
  }
  say(stdout, "%-26s %s", "MODEL-KIND", "published-KIND for a model of the table: nibble recipes models");
}

// The table, and what its recipes say otherwise than published-KIND, as it is typed.
void list_models() {
  std::vector<std::vector<std::string>> rows{{"recipe", "model", "memory; a step on 16 cores of 4 TFLOP/s"}};
  std::vector<std::vector<std::string>> differences{{"recipe", "instead of published-KIND's values"}};
  for (const PublishedModel& model : published_models()) {
    for (const auto& [kind, plan] : model.plans) rows.push_back({model.name + "-" + kind, model.path, plan});
    for (const auto& [kind, values] : model.values) {
      std::vector<std::string> words;
      for (const auto& [key, value] : values) words.push_back(key + "=" + value);
      differences.push_back({model.name + "-" + kind, shell_line(words)});
    }
  }
  print_table(rows);
  std::printf("\n");
  print_table(differences);
}

// JSON is YAML but for the marks of its comments.
std::string as_yaml(const std::string& json) {
  std::string text;
  bool in_quotes = false, in_comment = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '\n') in_quotes = in_comment = false;
    if (json[i] == '"' && !in_comment) in_quotes = !in_quotes;
    const bool begins = !in_quotes && !in_comment && json.compare(i, 2, "//") == 0;
    in_comment = in_comment || begins;
    text += begins ? '#' : json[i];
    i += begins ? 1 : 0;
  }
  return text;
}

void copy(const std::string& name, const std::string& to) {
  const std::filesystem::path target = to.empty() ? std::filesystem::path(name + ".json") : std::filesystem::path(to);
  if (std::filesystem::exists(target)) throw UsageError("exists already", "choose another name", target.string());
  const std::string recipe = shipped_recipe(name);
  write_file_atomically(target, is_yaml(target.string()) ? as_yaml(recipe) : recipe);
  say(stdout, target.string());
}

void convert(const std::string& from, const std::string& to, const std::string& objective) {
  const ConvertedRecipe converted = convert_recipe(read_text_file(from, size_t{4} << 20), from, objective);
  for (const std::string& line : converted.notes) say(stderr, "note: " + line);
  if (to.empty()) {
    std::fputs(converted.text.c_str(), stdout);
    return;
  }
  if (std::filesystem::exists(to)) throw UsageError("exists already", "choose another name", to);
  write_file_atomically(to, converted.text);
  std::printf("%s: made from a configuration of %s\n", to.c_str(), converted.tool.c_str());
}

void list_keys() {
  for (const RecipeKey& key : recipe_keys()) {
    const std::string value = key.default_value.empty() ? "" : " [" + key.default_value + "]";
    say(stdout, "%-32s %s%s", key.name.c_str(), key.values.c_str(), value.c_str());
    say(stdout, "%-32s %s", "", key.meaning.c_str());
  }
}

}  // namespace

void add_recipes_command(Command& nibble) {
  auto name = std::make_shared<std::string>();
  auto target = std::make_shared<std::string>();
  auto objective = std::make_shared<std::string>();
  Command command =
      nibble.subcommand("recipes", "The recipes that come with nibble: ls, models, cat, cp, convert; keys and schema");
  command.require_subcommand();
  command.footer(
      "Editors complete and check a recipe that has \"$schema\": \"recipe.schema.json\" (nibble recipes schema).\n"
      "Example: nibble recipes cp llama-3.2-1b-qlora my-qlora.json");
  command.subcommand("ls", "List them").run(list);
  command.subcommand("models", "The published models that recipes MODEL-KIND are for").run(list_models);
  const std::string names = "Name as `recipes ls` or `recipes models` prints it";
  Command cat = command.subcommand("cat", "Print one");
  cat.option("name", *name, names).required();
  cat.run([name] { std::fputs(shipped_recipe(*name).c_str(), stdout); });
  Command cp = command.subcommand("cp", "Copy one to edit it");
  cp.option("name", *name, names).required();
  cp.option("target", *target, "File to write (NAME.json)");
  cp.run([name, target] { copy(*name, *target); });
  Command conversion =
      command.subcommand("convert", "Make a recipe of a configuration of Axolotl, LLaMA-Factory or TRL");
  conversion.option("file", *name, "The configuration: YAML or JSON").required();
  conversion.option("target", *target, "File to write (standard output)");
  conversion.option("--objective", *objective, "Of a configuration of TRL that may be for several trainers: dpo, ...");
  conversion.footer(
      "What has no counterpart is named on standard error.\nExample: nibble recipes convert qlora.yml my.json");
  conversion.run([name, target, objective] { convert(*name, *target, *objective); });
  command.subcommand("keys", "Every key with its values, default and meaning").run(list_keys);
  command.subcommand("schema", "JSON Schema of a recipe, for editors").run([] {
    std::fputs(recipe_schema().c_str(), stdout);
  });
  command.subcommand("reference", "The keys as Markdown (docs/recipe.md)").run([] {
    std::fputs(recipe_reference().c_str(), stdout);
  });
}

}  // namespace nibble::cli
