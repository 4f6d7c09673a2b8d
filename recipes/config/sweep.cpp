#include "nibble/recipes/config/sweep.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/text/matching/nearest.h"
#include "nibble/recipes/config/recipe_fields.h"

namespace nibble {

namespace fs = std::filesystem;

namespace {

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

std::vector<std::string> matching_keys(const std::string& given) {
  std::vector<std::string> known;
  for (const RecipeKey& key : recipe_keys()) {
    if (key.name == given) return {given};
    known.push_back(key.name);
  }
  std::map<std::string, std::vector<std::string>> keys = keys_by_last_part();
  if (keys.contains(given)) return keys[given];
  for (const auto& [last, names] : keys) known.push_back(last);
  const std::string meant = nearest(given, known);
  throw UsageError("unknown key", meant.empty() ? "see nibble recipes keys" : "did you mean " + meant + "?", given);
}

std::string full_key(const std::string& given, const std::function<Recipe()>& read) {
  const std::vector<std::string> meant = matching_keys(given);
  if (meant.size() == 1) return meant.front();
  std::vector<std::string> fitting;
  try {
    const Recipe recipe = read ? read() : Recipe();
    std::ranges::copy_if(meant, std::back_inserter(fitting), [&](const std::string& key) {
      const auto field = std::ranges::find(detail::recipe_fields(), key, &detail::RecipeField::name);
      return !field->applies || field->applies(recipe);
    });
  } catch (const Error&) {  // the recipe needs the keys whose names are asked for, or is told with whole ones
  }
  if (fitting.size() == 1) return fitting.front();
  const std::vector<std::string>& names = fitting.empty() ? meant : fitting;
  throw UsageError("is ambiguous", "write " + names[0] + " or " + names[1], given);
}

void require_values(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals != std::string::npos && equals > 0) return;
  throw UsageError("is no key=values", "write optimizer.lr=1e-4,2e-4", word);
}

// Splits at commas outside brackets, braces and quotes.
std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == ',' && depth == 0 && !quoted) {
      values.emplace_back();
    } else {
      values.back() += c;
    }
  }
  return values;
}

// A value as part of a file name; other bytes as in URLs (%2F), so that no two values share a directory.
std::string plain(const std::string& text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF", kKept = ".-+_[],{}:\"";  // lists, objects
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && (std::isalnum(byte) || kKept.find(c) != std::string_view::npos)) {
      result += c;
    } else {
      result += '%';
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    }
  }
  return result;
}

// Names beyond what file systems take end with a hash of the whole.
std::string shortened(const std::string& name) {
  constexpr size_t kLongest = 200;
  if (name.size() <= kLongest) return name;
  return name.substr(0, kLongest - 40) + "~" + hash_bytes(std::as_bytes(std::span(name)));
}

}  // namespace

std::map<std::string, std::vector<std::string>> keys_by_last_part() {
  std::map<std::string, std::vector<std::string>> keys;
  for (const RecipeKey& key : recipe_keys()) keys[last_part(key.name)].push_back(key.name);
  return keys;
}

SweepAxis parse_sweep_axis(const std::string& word, const std::function<Recipe()>& recipe) {
  require_values(word);
  const size_t equals = word.find('=');
  SweepAxis axis{full_key(word.substr(0, equals), recipe), split_values(word.substr(equals + 1))};
  for (const std::string& value : axis.values) {
    if (value.empty()) throw UsageError("has an empty value", "write optimizer.lr=1e-4,2e-4", word);
    if (std::count(axis.values.begin(), axis.values.end(), value) > 1) {
      throw UsageError("has the value " + value + " twice", "name it once", word);
    }
  }
  return axis;
}

std::vector<SweepAxis> parse_sweep_axes(const std::string& recipe_file, const std::vector<std::string>& words) {
  for (const std::string& word : words) require_values(word);
  const auto recipe = [&] {  // of one run, but for the keys that are ambiguous without it
    std::vector<std::string> overrides;
    for (const std::string& word : words) {
      if (matching_keys(word.substr(0, word.find('='))).size() > 1) continue;
      const SweepAxis axis = parse_sweep_axis(word);
      overrides.push_back(axis.key + "=" + axis.values.front());
    }
    return read_recipe(recipe_file, overrides);
  };
  std::vector<SweepAxis> axes;
  for (const std::string& word : words) axes.push_back(parse_sweep_axis(word, recipe));
  return axes;
}

std::vector<SweepRun> sweep_runs(const std::string& recipe_file, const std::vector<SweepAxis>& axes) {
  std::vector<SweepRun> runs(1);
  for (const SweepAxis& axis : axes) {
    if (axis.key == "output.dir" && axis.values.size() > 1) {
      throw UsageError("is one directory, which holds all runs", "name one", axis.key);
    }
    std::vector<SweepRun> more;
    for (const SweepRun& run : runs) {
      for (const std::string& value : axis.values) {
        SweepRun next = run;
        next.overrides.push_back(axis.key + "=" + value);
        if (axis.values.size() > 1) {
          next.name += (next.name.empty() ? "" : ",") + last_part(axis.key) + "=" + plain(value);
        }
        more.push_back(std::move(next));
      }
    }
    runs = std::move(more);
  }
  if (runs.size() < 2) throw UsageError("no key has two values", "write optimizer.lr=1e-4,2e-4", "sweep");
  std::map<std::string, std::string> names;  // by recipe
  for (SweepRun& run : runs) {
    const Recipe recipe = read_recipe(recipe_file, run.overrides);
    const auto [same, is_new] = names.emplace(to_json(recipe), run.name);
    if (!is_new) throw UsageError("is the same run as " + same->second, "name each value once", run.name);
    run.name = shortened(run.name);
    run.directory = fs::path(recipe.output.dir) / run.name;
    run.overrides.push_back("output.dir=" + run.directory.string());
  }
  return runs;
}

bool is_done(const std::string& recipe_file, const SweepRun& run) {
  if (!fs::exists(run.directory / "adapter") && !fs::exists(run.directory / "model")) return false;
  const fs::path file = run.directory / "recipe.json";
  if (!fs::exists(file)) return false;
  Recipe then = read_recipe(file.string()), now = read_recipe(recipe_file, run.overrides);
  then.train.threads = now.train.threads = 0;  // they are shared out anew each time and change no bit
  if (!now.model.bf16_products) now.model.bf16_products = then.model.bf16_products;  // a run goes on as it began
  return to_json(then) == to_json(now);
}

}  // namespace nibble
