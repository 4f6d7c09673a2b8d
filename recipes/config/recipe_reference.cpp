#include "nibble/recipes/config/recipe_reference.h"

#include <sstream>

#include "nibble/recipes/config/recipe.h"

namespace nibble {

namespace {

constexpr size_t kColumns = 120;

// The words of `text` in lines of at most kColumns, those after the first indented.
std::string wrapped(const std::string& text, const std::string& indent) {
  std::istringstream words(text);
  std::string result, line, word;
  while (words >> word) {
    if (!line.empty() && line.size() + 1 + word.size() > kColumns) {
      result += line + "\n";
      line = indent + word;
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
  }
  return result + line + "\n";
}

}  // namespace

std::string recipe_reference() {
  std::string text = "# The keys of a recipe\n\n" +
                     wrapped(
                         "Made by `nibble recipes reference` from the table that reads recipes. A recipe is JSON with "
                         "comments, or YAML; an unknown key ends with the nearest known one. On the command line a key "
                         "is set by `section.key=value`: `null` takes it away, a list may come without its quotes "
                         "(`data.train=[a.jsonl,b.jsonl]`), and of two keys that exclude each other the command line's "
                         "goes before the file's. `nibble recipes schema` prints a JSON Schema "
                         "([recipe.schema.json](recipe.schema.json)): a recipe with `\"$schema\": "
                         "\"recipe.schema.json\"` is completed and checked by editors.",
                         "");
  std::string section;
  for (const RecipeKey& key : recipe_keys()) {
    const std::string own = key.name.substr(0, key.name.find('.'));
    if (own != section) {
      section = own;
      text += "\n## " + section + "\n\n";
    }
    const std::string value = key.default_value.empty() ? "" : "; default `" + key.default_value + "`";
    text += wrapped("* `" + key.name + "` (" + key.values + value + "): " + key.meaning, "  ");
  }
  return text;
}

}  // namespace nibble
