#include "nibble/recipes/models/continued_adapter.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/adapters/adapter_plan.h"
#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/adapters/peft/peft_config.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/expert_lora.h"
#include "nibble/core/base/error.h"

namespace nibble {

namespace {

template <auto kMember>
void take(AdapterOptions& to, const AdapterOptions& from) {
  to.*kMember = from.*kMember;
}

/// A key that says where the adapter is and with which factors, for which there is more than one wording.
struct PlaceKey {
  std::string_view name;
  void (*take)(AdapterOptions& to, const AdapterOptions& from);
};
constexpr std::string_view kTokens = "trainable_token_indices";
constexpr std::array kPlaceKeys{
    PlaceKey{"target_modules", take<&AdapterOptions::target_modules>},
    PlaceKey{"exclude_modules", take<&AdapterOptions::exclude_modules>},
    PlaceKey{"rank_pattern", take<&AdapterOptions::rank_pattern>},
    PlaceKey{"alpha_pattern", take<&AdapterOptions::alpha_pattern>},
    PlaceKey{"layers_to_transform", take<&AdapterOptions::layers_to_transform>},
    PlaceKey{"layers_pattern", take<&AdapterOptions::layers_pattern>},
    PlaceKey{"target_parameters", take<&AdapterOptions::target_parameters>},
    PlaceKey{kTokens, take<&AdapterOptions::trainable_token_indices>},
};

// What a plan comes to, whatever the wording of the options.
nlohmann::json places(const AdapterPlan& plan, const AdapterOptions& options, int64_t vocabulary) {
  nlohmann::json all;
  for (const auto* paths : {&plan.modules, &plan.parameters}) {
    for (const std::string& path : *paths) all[path] = {rank_of(options, path), alpha_of(options, path)};
  }
  for (const TrainedTokens& tokens : plan.tokens) {
    std::set<int64_t> ids(tokens.ids.begin(), tokens.ids.end());
    ids.erase(ids.lower_bound(vocabulary), ids.end());
    if (!ids.empty()) all["tokens of " + tokens.table] = ids;
  }
  return all;
}

// Whether these keys of the recipe, put into the directory's config, change no place; or all of the recipe's do not.
bool same_places(const std::vector<std::string>& keys, const AdapterRecipe& recipe, const PeftAdapter& adapter,
                 const DecoderConfig& config) {
  const AdapterOptions asked = in_file_names(recipe.options, config), has = in_file_names(adapter.options, config);
  const AdapterPlan plan = plan_adapter(config, adapter);
  DecoderConfig grown = config;
  grown.vocab_size = plan.vocab_size;
  for (const bool all : {false, true}) {
    AdapterOptions options = has;
    for (const PlaceKey& key : kPlaceKeys) {
      if (std::ranges::count(keys, key.name) || (all && key.name != kTokens)) key.take(options, asked);
    }
    options.lora_dropout = 0;  // these two decide no place, and exclude some
    options.init_lora_weights = LoraInit::standard;
    try {
      options = translate_for_experts(options, grown);
      const nlohmann::json changed = places(plan_adapter(grown, options), options, config.vocab_size);
      if (changed == places(plan, has, config.vocab_size)) return true;
    } catch (const UsageError&) {  // they exclude each other, or fit nothing
    }
  }
  return false;
}

}  // namespace

void check_continued(const AdapterRecipe& recipe, const PeftAdapter& adapter, const DecoderConfig& config) {
  const auto values = [&](AdapterOptions options) {
    for (std::string& entry : options.modules_to_save) entry = peft_module(entry, config);
    std::ranges::sort(options.modules_to_save);
    return nlohmann::ordered_json::parse(peft_config_text(options));
  };
  const auto asked = values(recipe.options), has = values(adapter.options);
  const auto refuse = [&](const std::string& key) {
    throw UsageError("is " + asked[key].dump() + ", and adapter_config.json of " + adapter.directory.string() +
                         " says " + has[key].dump(),
                     "leave the key out or give the same value", "adapter." + key);
  };
  std::vector<std::string> differing;  // in their words
  for (const std::string& key : recipe.given) {
    if (key == "lora_dropout" || !asked.contains(key) || asked[key] == has[key]) continue;
    if (!std::ranges::count(kPlaceKeys, key, &PlaceKey::name)) refuse(key);
    differing.push_back(key);
  }
  if (differing.empty() || same_places(differing, recipe, adapter, config)) return;
  for (const std::string& key : differing) {
    if (!same_places({key}, recipe, adapter, config)) refuse(key);
  }
  refuse(differing.front());
}

}  // namespace nibble
