// nibble recipes: the recipes that come with nibble.

#include <cstdio>
#include <filesystem>
#include <memory>

#include "nibble/cli/commands.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/atomic_file.h"
#include "nibble/recipes/shipped.h"

namespace nibble::cli {

namespace {

void list() {
  for (const ShippedRecipe& recipe : shipped_recipes()) {
    std::printf("%-20s %s\n", std::string(recipe.name).c_str(), std::string(recipe.about).c_str());
  }
}

void copy(const std::string& name, const std::string& to) {
  const std::filesystem::path target = to.empty() ? std::filesystem::path(name + ".json") : std::filesystem::path(to);
  if (std::filesystem::exists(target)) throw UsageError("exists already", "choose another name", target.string());
  write_file_atomically(target, shipped_recipe(name).text);
}

}  // namespace

void add_recipes_command(Command& nibble) {
  auto name = std::make_shared<std::string>();
  auto target = std::make_shared<std::string>();
  Command command = nibble.subcommand("recipes", "The recipes that come with nibble: ls, cat, cp");
  command.require_subcommand();
  command.footer("Example: nibble recipes cp qlora my-qlora.json");
  command.subcommand("ls", "List them").run(list);
  Command cat = command.subcommand("cat", "Print one");
  cat.option("name", *name, "Name as `recipes ls` prints it").required();
  cat.run([name] { std::fputs(std::string(shipped_recipe(*name).text).c_str(), stdout); });
  Command cp = command.subcommand("cp", "Copy one to edit it");
  cp.option("name", *name, "Name as `recipes ls` prints it").required();
  cp.option("target", *target, "File to write (NAME.json)");
  cp.run([name, target] { copy(*name, *target); });
}

}  // namespace nibble::cli
