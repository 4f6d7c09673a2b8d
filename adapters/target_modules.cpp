#include "nibble/adapters/target_modules.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/text/matching/python_regex.h"

namespace nibble {

namespace {

/// The same with what stands before a number, which alone would name layers too: "linear_q_adapter_list.0.1".
std::string last_name(const std::string& module) {
  size_t begin = module.rfind('.') + 1;
  while (begin > 1 && std::isdigit(static_cast<unsigned char>(module[begin]))) begin = module.rfind('.', begin - 2) + 1;
  return module.substr(begin);
}

/// A ModuleSelector with its regular expression compiled.
class Selection {
 public:
  Selection(const ModuleSelector& selector, const PeftPaths& paths) : names_(selector.names), paths_(paths) {
    if (!selector.pattern.empty()) pattern_.emplace(selector.pattern);
  }
  bool matches(const std::string& module) const {
    if (pattern_) return pattern_->matches_whole(paths_.of(module));
    return std::any_of(names_.begin(), names_.end(), [&](const auto& name) { return is_named(module, name); });
  }
  bool holds_path(const std::string& module) const {
    return !pattern_ && std::find(names_.begin(), names_.end(), module) != names_.end();
  }

 private:
  std::vector<std::string> names_;
  const PeftPaths& paths_;
  std::optional<PythonRegex> pattern_;
};

/// layers_to_transform: the index is the first number in the path, or the one after layers_pattern.
class LayerFilter {
 public:
  explicit LayerFilter(const AdapterOptions& options) : indices_(options.layers_to_transform), paths_(options.paths) {
    if (!indices_) return;
    if (options.layers_pattern.empty()) patterns_.emplace_back(R"(.*?\.[^.]*\.(\d+)\.)");
    for (const std::string& pattern : options.layers_pattern) {
      patterns_.emplace_back("(?:^|.*?\\.)" + pattern + "\\.(\\d+)\\.");
    }
  }
  /// -1 where it is in none.
  int64_t layer_of(const std::string& module) const {
    int64_t index = -1;
    const std::string path = paths_.of(module);
    for (const PythonRegex& pattern : patterns_) {
      const std::optional<std::string> digits = pattern.first_group(path);
      if (!digits) continue;
      std::from_chars(digits->data(), digits->data() + digits->size(), index);
      break;
    }
    return index;
  }
  bool holds(const std::string& module) const {
    return !indices_ || indices_->empty() || std::ranges::count(*indices_, layer_of(module)) > 0;
  }

 private:
  std::optional<std::vector<int64_t>> indices_;
  const PeftPaths& paths_;
  std::vector<PythonRegex> patterns_;
};

/// modules_to_save, and what is inside them, get no adapter.
std::vector<PythonRegex> saved_modules(const AdapterOptions& options) {
  std::vector<PythonRegex> result;
  for (const std::string& name : options.modules_to_save) result.emplace_back("(^|.*\\.)" + name + "($|\\..*)");
  return result;
}

/// What rank_pattern and alpha_pattern are compared with: PEFT's path, of a router that is adapted as a tensor the
/// tensor's.
std::string pattern_name(const AdapterOptions& options, const std::string& module) {
  const std::string tensor = module + ".weight";
  const auto names_it = [&](const std::string& entry) { return is_named(tensor, entry); };
  return options.paths.of(std::ranges::any_of(options.target_parameters, names_it) ? tensor : module);
}

/// A key of rank_pattern or alpha_pattern.
PythonRegex pattern_regex(const std::string& key) { return PythonRegex("(.*\\.)?(" + key + ")$"); }

template <typename Value>
const std::pair<std::string, Value>* find_pattern(const std::vector<std::pair<std::string, Value>>& patterns,
                                                  const std::string& name) {
  for (const auto& entry : patterns) {
    if (pattern_regex(entry.first).matches_start(name)) return &entry;
  }
  return nullptr;
}

template <typename Value>
void add_unmatched(const std::vector<std::pair<std::string, Value>>& patterns, const std::string& key,
                   const PeftPaths& paths, std::span<const std::string> tensors, TargetModules& found) {
  for (const auto& entry : patterns) {
    const PythonRegex regex = pattern_regex(entry.first);
    const auto fits = [&](const std::string& name) { return regex.matches_start(paths.of(name)); };
    if (std::ranges::none_of(found.modules, fits) && std::ranges::none_of(tensors, fits))
      found.unmatched_entries.push_back(key + " \"" + entry.first + "\"");
  }
}

[[noreturn]] void nothing_selected(std::span<const std::string> linears, const std::string& head,
                                   const AdapterOptions& options) {
  std::set<std::string> kinds;
  for (const std::string& module : linears) {
    if (module != head) kinds.insert(last_part(module));
  }
  const ModuleSelector& targets = options.target_modules;
  const std::string known = joined(kinds), wanted = targets.pattern.empty() ? joined(targets.names) : targets.pattern;
  std::string with;
  if (!options.exclude_modules.empty()) with += ", exclude_modules";
  if (options.layers_to_transform) with += ", layers_to_transform";
  if (!options.modules_to_save.empty()) with += ", modules_to_save";
  std::string remedy = "the model has " + known + " (or use \"all-linear\")";
  if (!targets.pattern.empty() && !linears.empty())
    remedy += "; a regular expression has to match all of a path, as " + options.paths.of(linears.front());
  throw UsageError("target_modules (" + wanted + ")" + (with.empty() ? "" : " with" + with.substr(1)) +
                       " select no module of the model",
                   remedy);
}

void check_refused(std::span<const std::string> modules, const std::string& model_type) {
  const Family* family = family_of(model_type);
  if (!family || family->peft_refuses.empty()) return;
  for (const std::string& module : modules) {
    if (last_part(module) != family->peft_refuses) continue;
    throw UsageError(
        "target_modules select " + module + ", where PEFT refuses adapters in models of type " + model_type,
        "name the other modules (in_proj, q_proj, ...)");
  }
}

}  // namespace

bool ModuleSelector::all_linear() const {
  std::string lower = pattern;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower == "all-linear";
}

std::vector<std::string> default_target_modules(const std::string& model_type) {
  const Family* family = family_of(model_type);
  if (family && !family->peft_targets.empty()) return family->peft_targets;
  throw UsageError("there are no default target_modules for model type \"" + model_type + "\"",
                   "name them, or use \"all-linear\"");
}

TargetModules match_target_modules(std::span<const std::string> linears, const std::string& head,
                                   const std::string& model_type, const AdapterOptions& options,
                                   std::span<const std::string> embeddings, std::span<const std::string> tensors) {
  ModuleSelector targets = options.target_modules;
  const bool all_linear = targets.all_linear();
  if (targets.empty()) targets.names = default_target_modules(model_type);
  const Selection wanted(all_linear ? ModuleSelector{} : targets, options.paths);
  const Selection excluded(options.exclude_modules, options.paths);
  const std::vector<PythonRegex> saved = saved_modules(options);
  const LayerFilter layers(options);

  std::vector<std::string> modules(embeddings.begin(), embeddings.end());
  modules.insert(modules.end(), linears.begin(), linears.end());
  TargetModules found;
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string& module = modules[i];
    if (excluded.matches(module)) continue;
    if (std::any_of(saved.begin(), saved.end(), [&](const auto& regex) { return regex.matches_start(module); })) {
      continue;
    }
    const bool selected = all_linear ? module != head && i >= embeddings.size() : wanted.matches(module);
    // a whole path in the list, as all-linear writes it out, is taken whatever its layer
    if (selected && (all_linear || wanted.holds_path(module) || layers.holds(module))) found.modules.push_back(module);
  }
  if (found.modules.empty() && options.target_parameters.empty()) nothing_selected(linears, head, options);
  check_refused(found.modules, model_type);

  const auto count_unused = [&](const std::vector<std::string>& names, const std::string& key) {
    for (const std::string& name : names) {
      if (std::none_of(modules.begin(), modules.end(), [&](const auto& module) { return is_named(module, name); })) {
        found.unmatched_entries.push_back(key + " \"" + name + "\"");
      }
    }
  };
  count_unused(targets.names, "target_modules");
  count_unused(options.exclude_modules.names, "exclude_modules");
  if (!options.exclude_modules.pattern.empty() &&
      std::none_of(modules.begin(), modules.end(), [&](const auto& module) { return excluded.matches(module); })) {
    found.unmatched_entries.push_back("exclude_modules \"" + options.exclude_modules.pattern + "\"");
  }
  for (const int64_t layer : options.layers_to_transform.value_or(std::vector<int64_t>())) {
    const auto is_there = [&](const std::string& module) { return layers.layer_of(module) == layer; };
    if (std::ranges::none_of(found.modules, is_there))
      found.unmatched_entries.push_back("layers_to_transform " + std::to_string(layer));
  }
  add_unmatched(options.rank_pattern, "rank_pattern", options.paths, tensors, found);
  add_unmatched(options.alpha_pattern, "alpha_pattern", options.paths, tensors, found);
  return found;
}

int64_t rank_of(const AdapterOptions& options, const std::string& module) {
  const auto* entry = find_pattern(options.rank_pattern, pattern_name(options, module));
  return entry ? entry->second : options.r;
}

// PEFT makes the modules by the config and then finds that the tensors do not fit; alpha / r would be another number.
void check_rank(const AdapterOptions& options, const std::string& module, int64_t r, const std::string& file) {
  bool matched = false;
  const std::string name = pattern_name(options, module);
  for (const auto& [key, value] : options.rank_pattern) {
    if (!pattern_regex(key).matches_start(name)) continue;
    if (value == r) return;
    matched = true;
  }
  if (!matched && options.r == r) return;
  throw InputError(file,
                   module + " has rank " + std::to_string(r) + ", adapter_config.json says " +
                       std::to_string(rank_of(options, module)),
                   "correct r or rank_pattern in adapter_config.json");
}

double alpha_of(const AdapterOptions& options, const std::string& module) {
  const auto* entry = find_pattern(options.alpha_pattern, pattern_name(options, module));
  return entry ? entry->second : options.lora_alpha;
}

double lora_scaling(const AdapterOptions& options, const std::string& module, int64_t r) {
  const double alpha = alpha_of(options, module);
  return options.use_rslora ? alpha / std::sqrt(static_cast<double>(r)) : alpha / static_cast<double>(r);
}

bool is_module_to_save(const AdapterOptions& options, const std::string& module) {
  return std::any_of(options.modules_to_save.begin(), options.modules_to_save.end(),
                     [&](const std::string& name) { return module.ends_with(name); });
}

std::vector<std::string> target_names(std::span<const std::string> matched, std::span<const std::string> linears,
                                      const AdapterOptions& options, const std::string& head) {
  if (matched.empty()) return {};  // tensors of experts alone
  std::set<std::string> ends;
  for (const std::string& module : matched) ends.insert(last_name(module));
  AdapterOptions named = options;
  named.target_modules = {{ends.begin(), ends.end()}, ""};
  const TargetModules again = match_target_modules(linears, head, "", named);
  if (std::equal(again.modules.begin(), again.modules.end(), matched.begin(), matched.end())) {
    return named.target_modules.names;
  }
  return {matched.begin(), matched.end()};
}

void check_options(const AdapterOptions& options, const std::string& place) {
  const auto refuse = [&](const std::string& reason, const std::string& remedy) {
    throw UsageError(reason, remedy, place);
  };
  constexpr int64_t kMostRank = int64_t{1} << 20;
  const auto check_rank = [&](int64_t r, const std::string& key) {
    if (r < 1 || r > kMostRank) refuse(key + " is " + std::to_string(r), "it must be at least 1");
  };
  const auto check_alpha = [&](double alpha, const std::string& key) {
    if (!std::isfinite(alpha)) refuse(key + " is not a finite number", "");
  };
  check_rank(options.r, "r");
  check_alpha(options.lora_alpha, "lora_alpha");
  if (!(options.lora_dropout >= 0 && options.lora_dropout < 1)) {
    refuse("lora_dropout is " + std::to_string(options.lora_dropout), "it must be in [0, 1)");
  }
  if (options.lora_bias && options.init_lora_weights != LoraInit::standard &&
      options.init_lora_weights != LoraInit::random) {
    refuse("lora_bias goes with init_lora_weights true or false only, as in PEFT", "choose one");
  }
  if (options.use_dora && options.lora_bias) refuse("use_dora and lora_bias exclude each other", "choose one");
  if (options.layers_to_transform && !options.target_modules.pattern.empty()) {
    refuse("layers_to_transform needs target_modules as a list of names", "name the modules, or drop the layers");
  }
  if (!options.layers_pattern.empty() && !options.layers_to_transform) {
    refuse("layers_pattern without layers_to_transform", "give the layers too");
  }
  try {
    for (const auto& [key, r] : options.rank_pattern) {
      check_rank(r, "rank_pattern \"" + key + "\"");
      pattern_regex(key);
    }
    for (const auto& [key, alpha] : options.alpha_pattern) {
      check_alpha(alpha, "alpha_pattern \"" + key + "\"");
      pattern_regex(key);
    }
    if (!options.target_modules.pattern.empty()) PythonRegex check(options.target_modules.pattern);
    if (!options.exclude_modules.pattern.empty()) PythonRegex check(options.exclude_modules.pattern);
    saved_modules(options);
    LayerFilter(options).holds("");
  } catch (const UsageError& error) {
    const std::string line = error.what();
    if (line.starts_with(place)) throw;
    refuse(line, "");
  }
}

}  // namespace nibble
