// The rows of the section adapter. Their names and meanings are PEFT's.

#include <array>
#include <charconv>

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

AdapterOptions& options(Recipe& recipe) { return recipe.adapter->options; }

// `none`: what an empty one is written as.
RecipeField selector_field(std::string name, ModuleSelector AdapterOptions::*at, const Json& none,
                           std::string meaning) {
  const auto read = [](const Json& value, const std::string& place, const std::string& values) {
    if (value == Json("")) refuse_value(place, values, value);
    return value.is_string() ? ModuleSelector{{}, value.get<std::string>()}
                             : ModuleSelector{read_texts(value, place, values), ""};
  };
  const auto write = [none](const ModuleSelector& selector) -> Json {
    if (selector.empty()) return none;
    return selector.names.empty() ? Json(selector.pattern) : Json(selector.names);
  };
  return value_field(std::move(name), "a list of names, or one regular expression, or \"all-linear\"",
                     {{"type", {"string", "array"}}, {"items", {{"type", "string"}}}}, at, read, std::move(meaning),
                     write);
}

// The first pattern that matches wins, so the order of the file is kept.
template <typename T, typename Read>
RecipeField pattern_field(std::string name, std::string allowed,
                          std::vector<std::pair<std::string, T>> AdapterOptions::*at, Read read_member,
                          std::string meaning) {
  const auto read = [=](const Json& value, const std::string& place, const std::string& values) {
    if (!value.is_object()) refuse_value(place, values, value);
    std::vector<std::pair<std::string, T>> patterns;
    for (const auto& [key, member] : value.items()) patterns.emplace_back(key, read_member(member, place, values));
    return patterns;
  };
  const auto write = [](const std::vector<std::pair<std::string, T>>& patterns) {
    Json object;
    for (const auto& [key, member] : patterns) object[key] = member;
    return object;
  };
  return value_field(std::move(name), std::move(allowed),
                     {{"type", "object"}, {"additionalProperties", {{"type", "number"}}}}, at, read, std::move(meaning),
                     write);
}

// 16 of "pissa_niter_16"; 0: no such name
int64_t iterations_of(const std::string& name) {
  constexpr std::string_view kNiter = "pissa_niter_";
  constexpr int64_t kMost = 1000;
  if (!name.starts_with(kNiter)) return 0;
  int64_t rounds = 0;
  const char *begin = name.data() + kNiter.size(), *end = name.data() + name.size();
  const auto [last, error] = std::from_chars(begin, end, rounds);
  return error == std::errc() && last == end && rounds <= kMost ? std::max<int64_t>(rounds, 0) : 0;
}

constexpr std::array<std::pair<const char*, LoraInit>, 4> kNamedInits{{
    {"gaussian", LoraInit::gaussian},
    {"pissa", LoraInit::pissa},
    {"olora", LoraInit::olora},
    {"loftq", LoraInit::loftq},
}};

RecipeField init_field() {
  const std::string values = R"(true | false | "gaussian" | "pissa" | "pissa_niter_16" | "olora" | "loftq")";
  RecipeField field = bare_field("adapter.init_lora_weights", values, {{"type", {"boolean", "string"}}},
                                 "how A and B start; true is PEFT's default, false is not neutral");
  field.read = [values](Recipe& recipe, const Json& value, const std::string& place) {
    AdapterOptions& adapter = options(recipe);
    if (value.is_boolean()) {
      adapter.init_lora_weights = value.get<bool>() ? LoraInit::standard : LoraInit::random;
      return;
    }
    if (!value.is_string()) refuse_value(place, values, value);
    const auto name = value.get<std::string>();
    adapter.pissa_iterations = iterations_of(name);
    if (adapter.pissa_iterations > 0) {
      adapter.init_lora_weights = LoraInit::pissa;
      return;
    }
    for (const auto& [known, init] : kNamedInits) {
      if (name != known) continue;
      adapter.init_lora_weights = init;
      return;
    }
    for (const char* other : {"eva", "corda", "lora_ga", "mica", "orthogonal"}) {
      if (name == other)
        throw UsageError(name + " is a start that nibble does not make", "use one of " + values, place);
    }
    refuse_value(place, values, value);
  };
  field.write = [](Recipe& recipe) -> Json {
    const AdapterOptions& adapter = options(recipe);
    if (adapter.pissa_iterations > 0) return "pissa_niter_" + std::to_string(adapter.pissa_iterations);
    for (const auto& [name, init] : kNamedInits) {
      if (adapter.init_lora_weights == init) return name;
    }
    return adapter.init_lora_weights == LoraInit::standard;
  };
  return field;
}

RecipeField tokens_field() {
  using Tables = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  const auto read = [](const Json& value, const std::string& place, const std::string& values) {
    if (!value.is_object()) return Tables{{"", read_integers(value, place, values, 0)}};
    Tables tables;
    for (const auto& [table, ids] : value.items()) tables.emplace_back(table, read_integers(ids, place, values, 0));
    return tables;
  };
  const auto write = [](const Tables& tables) -> Json {
    if (tables.size() == 1 && tables.front().first.empty()) return tables.front().second;
    Json object;
    for (const auto& [table, ids] : tables) object[table] = ids;
    return object;
  };
  return value_field("adapter.trainable_token_indices", "a list of token ids, or an object of such lists by table",
                     {{"type", {"array", "object"}}}, &AdapterOptions::trainable_token_indices, read,
                     "embedding rows that are trained; a tied head sees them too", write);
}

RecipeField layers_field() {
  const auto read = [](const Json& value, const std::string& place, const std::string& values) {
    return read_integers(value.is_array() ? value : Json::array({value}), place, values, 0);
  };
  return value_field("adapter.layers_to_transform", "a list of layer numbers, or one",
                     {{"type", {"array", "integer"}}, {"items", {{"type", "integer"}, {"minimum", 0}}}},
                     &AdapterOptions::layers_to_transform, read, "layers with an adapter (all)");
}

}  // namespace

std::vector<RecipeField> adapter_fields() {
  std::vector<RecipeField> fields = {
      choice_field("adapter.type", {{"lora", "lora"}}, &AdapterRecipe::type, "kind of adapter"),
      text_field("adapter.path", "a PEFT directory or a run's", &AdapterRecipe::path,
                 "continue training this adapter; other keys that are given must be as in its adapter_config.json, but "
                 "for lora_dropout"),
      integer_field("adapter.r", 1, 1 << 16, &AdapterOptions::r, "rank"),
      number_field("adapter.lora_alpha", 0, std::numeric_limits<double>::infinity(), &AdapterOptions::lora_alpha,
                   "the adapter counts lora_alpha / r"),
      number_field("adapter.lora_dropout", 0, 1, &AdapterOptions::lora_dropout, "dropout of the adapter's input"),
      selector_field("adapter.target_modules", &AdapterOptions::target_modules, Json::array(),
                     "Linears that get an adapter; [] beside target_parameters: none"),
      selector_field("adapter.exclude_modules", &AdapterOptions::exclude_modules, nullptr,
                     "Linears that get none; wins over target_modules"),
      flag_field("adapter.use_rslora", &AdapterOptions::use_rslora, "count lora_alpha / sqrt(r) instead"),
      flag_field("adapter.use_dora", &AdapterOptions::use_dora, "weight-decomposed LoRA (Liu et al. 2024)"),
      init_field(),
      pattern_field<int64_t>(
          "adapter.rank_pattern", "an object of integers from 1", &AdapterOptions::rank_pattern,
          [](const Json& member, const std::string& place, const std::string& values) {
            return read_integer(member, place, values, 1, 1 << 16);
          },
          "other ranks by regular expression"),
      pattern_field<double>(
          "adapter.alpha_pattern", "an object of numbers from 0", &AdapterOptions::alpha_pattern,
          [](const Json& member, const std::string& place, const std::string& values) {
            return read_number(member, place, values, 0);
          },
          "other alphas by regular expression"),
      layers_field(),
      texts_field("adapter.layers_pattern", &AdapterOptions::layers_pattern,
                  "name before the layer number, with layers_to_transform"),
      texts_field("adapter.modules_to_save", &AdapterOptions::modules_to_save,
                  "modules fully trained beside the adapter"),
      texts_field("adapter.target_parameters", &AdapterOptions::target_parameters,
                  "tensors of all experts that get an adapter, as PEFT: \"mlp.experts.gate_up_proj\", "
                  "\"mlp.experts.down_proj\"; "
                  "a router by \"gate.weight\" (all-linear: both, where PEFT takes it so)"),
      choice_field("adapter.bias",
                   {{"none", BiasTraining::none}, {"lora_only", BiasTraining::lora_only}, {"all", BiasTraining::all}},
                   &AdapterOptions::bias, "which biases of the base are trained too"),
      flag_field("adapter.lora_bias", &AdapterOptions::lora_bias, "B has a bias"),
      tokens_field(),
  };
  fields[1].decides_bits = false;  // what it holds is part of the base's fingerprint
  return fields;
}

}  // namespace nibble::detail
