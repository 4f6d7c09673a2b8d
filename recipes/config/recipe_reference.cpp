#include "nibble/recipes/config/recipe_reference.h"

#include "nibble/recipes/config/recipe.h"

namespace nibble {

namespace {

// In a cell of a table a bar would end it.
std::string cell(const std::string& text) {
  std::string made;
  for (const char c : text) made += c == '|' ? std::string("\\|") : std::string(1, c);
  return made;
}

}  // namespace

std::string recipe_reference() {
  std::string text =
      "# The keys of a recipe\n\n"
      "Made by `nibble recipes reference` from the table that reads recipes. A recipe is JSON with comments, or YAML; "
      "an "
      "unknown "
      "key ends\nwith the nearest known one. On the command line a key is set by `section.key=value`: `null` takes it\n"
      "away, a list may come without its quotes (`data.train=[a.jsonl,b.jsonl]`), and of two keys that exclude each "
      "other the command\nline's goes before the file's. `nibble recipes schema` prints a JSON\nSchema "
      "([recipe.schema.json](recipe.schema.json)): a recipe with `\"$schema\": "
      "\"recipe.schema.json\"` is completed and checked by\neditors.\n";
  std::string section;
  for (const RecipeKey& key : recipe_keys()) {
    const std::string own = key.name.substr(0, key.name.find('.'));
    if (own != section) {
      section = own;
      text += "\n## " + section + "\n\n| key | values | default | meaning |\n|---|---|---|---|\n";
    }
    const std::string value = key.default_value.empty() ? "" : "`" + cell(key.default_value) + "`";
    text += "| `" + key.name + "` | " + cell(key.values) + " | " + value + " | " + cell(key.meaning) + " |\n";
  }
  return text;
}

}  // namespace nibble
