// The rows of the section adapter. Their names and meanings are PEFT's.

#include <array>
#include <charconv>

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

const std::string kSelectorValues = "a list of names, or one regular expression, or \"all-linear\"";

AdapterOptions& options(Recipe& recipe) { return recipe.adapter->options; }

RecipeField selector_field(std::string name, Place<ModuleSelector> at, std::string meaning) {
  RecipeField field = bare_field(std::move(name), kSelectorValues,
                                 {{"type", {"string", "array"}}, {"items", {{"type", "string"}}}}, std::move(meaning));
  field.read = [at](Recipe& recipe, const Json& value, const std::string& place) {
    ModuleSelector selector;
    if (value.is_string()) {
      selector.pattern = value.get<std::string>();
    } else {
      selector.names = read_texts(value, place, kSelectorValues);
    }
    if (selector.empty()) refuse_value(place, kSelectorValues, value);
    at(recipe) = std::move(selector);
  };
  field.write = [at](Recipe& recipe) -> Json {
    const ModuleSelector& selector = at(recipe);
    if (selector.empty()) return nullptr;
    return selector.names.empty() ? Json(selector.pattern) : Json(selector.names);
  };
  return field;
}

// The first pattern that matches wins, so the order of the file is kept.
template <typename T, typename Read>
RecipeField pattern_field(std::string name, std::string values, Place<std::vector<std::pair<std::string, T>>> at,
                          Read read_member, std::string meaning) {
  RecipeField field =
      bare_field(std::move(name), values, {{"type", "object"}, {"additionalProperties", {{"type", "number"}}}},
                 std::move(meaning));
  field.read = [=](Recipe& recipe, const Json& value, const std::string& place) {
    if (!value.is_object()) refuse_value(place, values, value);
    at(recipe).clear();
    for (const auto& [key, member] : value.items()) {
      at(recipe).emplace_back(key, read_member(member, place, values));
    }
  };
  field.write = [at](Recipe& recipe) -> Json {
    if (at(recipe).empty()) return nullptr;
    Json object = Json::object();
    for (const auto& [key, member] : at(recipe)) object[key] = member;
    return object;
  };
  return field;
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
  const std::string values = "a list of token ids, or an object of such lists by table";
  RecipeField field = bare_field("adapter.trainable_token_indices", values, {{"type", {"array", "object"}}},
                                 "embedding rows that are trained; a tied head sees them too");
  const auto read_ids = [values](const Json& list, const std::string& place) {
    if (!list.is_array()) refuse_value(place, values, list);
    std::vector<int64_t> ids;
    for (const Json& id : list) ids.push_back(read_integer(id, place, values, 0, kLargestCount));
    return ids;
  };
  field.read = [read_ids](Recipe& recipe, const Json& value, const std::string& place) {
    auto& tables = options(recipe).trainable_token_indices;
    tables.clear();
    if (!value.is_object()) {
      tables.emplace_back("", read_ids(value, place));
      return;
    }
    for (const auto& [table, ids] : value.items()) tables.emplace_back(table, read_ids(ids, place));
  };
  field.write = [](Recipe& recipe) -> Json {
    const auto& tables = options(recipe).trainable_token_indices;
    if (tables.empty()) return nullptr;
    if (tables.size() == 1 && tables.front().first.empty()) return tables.front().second;
    Json object = Json::object();
    for (const auto& [table, ids] : tables) object[table] = ids;
    return object;
  };
  return field;
}

RecipeField layers_field() {
  const std::string values = "a list of layer numbers, or one";
  RecipeField field = bare_field("adapter.layers_to_transform", values,
                                 {{"type", {"array", "integer"}}, {"items", {{"type", "integer"}, {"minimum", 0}}}},
                                 "layers with an adapter (all)");
  field.read = [values](Recipe& recipe, const Json& value, const std::string& place) {
    std::vector<int64_t> layers;
    if (value.is_array()) {
      for (const Json& member : value) layers.push_back(read_integer(member, place, values, 0, kLargestCount));
    } else {
      layers.push_back(read_integer(value, place, values, 0, kLargestCount));
    }
    options(recipe).layers_to_transform = std::move(layers);
  };
  field.write = [](Recipe& recipe) -> Json {
    const auto& layers = options(recipe).layers_to_transform;
    return layers ? Json(*layers) : Json(nullptr);
  };
  return field;
}

}  // namespace

std::vector<RecipeField> adapter_fields() {
  std::vector<RecipeField> fields = {
      choice_field<std::string>(
          "adapter.type", {{"lora", "lora"}}, [](Recipe& r) -> std::string& { return r.adapter->type; },
          "kind of adapter"),
      text_field(
          "adapter.path", "a PEFT directory or a run's", [](Recipe& r) -> std::string& { return r.adapter->path; },
          "continue training this adapter"),
      integer_field(
          "adapter.r", 1, 1 << 16, [](Recipe& r) -> int64_t& { return options(r).r; }, "rank"),
      number_field(
          "adapter.lora_alpha", 0, std::numeric_limits<double>::infinity(),
          [](Recipe& r) -> double& { return options(r).lora_alpha; }, "the adapter counts lora_alpha / r"),
      number_field(
          "adapter.lora_dropout", 0, 1, [](Recipe& r) -> double& { return options(r).lora_dropout; },
          "dropout of the adapter's input"),
      selector_field(
          "adapter.target_modules", [](Recipe& r) -> ModuleSelector& { return options(r).target_modules; },
          "Linears that get an adapter"),
      selector_field(
          "adapter.exclude_modules", [](Recipe& r) -> ModuleSelector& { return options(r).exclude_modules; },
          "Linears that get none; wins over target_modules"),
      flag_field(
          "adapter.use_rslora", [](Recipe& r) -> bool& { return options(r).use_rslora; },
          "count lora_alpha / sqrt(r) instead"),
      flag_field(
          "adapter.use_dora", [](Recipe& r) -> bool& { return options(r).use_dora; },
          "weight-decomposed LoRA (Liu et al. 2024)"),
      init_field(),
      pattern_field<int64_t>(
          "adapter.rank_pattern", "an object of integers from 1",
          [](Recipe& r) -> std::vector<std::pair<std::string, int64_t>>& { return options(r).rank_pattern; },
          [](const Json& member, const std::string& place, const std::string& values) {
            return read_integer(member, place, values, 1, 1 << 16);
          },
          "other ranks by regular expression"),
      pattern_field<double>(
          "adapter.alpha_pattern", "an object of numbers from 0",
          [](Recipe& r) -> std::vector<std::pair<std::string, double>>& { return options(r).alpha_pattern; },
          [](const Json& member, const std::string& place, const std::string& values) {
            return read_number(member, place, values, 0);
          },
          "other alphas by regular expression"),
      layers_field(),
      texts_field(
          "adapter.layers_pattern", [](Recipe& r) -> std::vector<std::string>& { return options(r).layers_pattern; },
          "name before the layer number, with layers_to_transform"),
      texts_field(
          "adapter.modules_to_save", [](Recipe& r) -> std::vector<std::string>& { return options(r).modules_to_save; },
          "modules trained whole beside the adapter"),
      choice_field<BiasTraining>(
          "adapter.bias",
          {{"none", BiasTraining::none}, {"lora_only", BiasTraining::lora_only}, {"all", BiasTraining::all}},
          [](Recipe& r) -> BiasTraining& { return options(r).bias; }, "which biases of the base are trained too"),
      flag_field(
          "adapter.lora_bias", [](Recipe& r) -> bool& { return options(r).lora_bias; }, "B has a bias"),
      tokens_field(),
  };
  fields[1].decides_bits = false;  // what it holds is part of the base's fingerprint
  return fields;
}

}  // namespace nibble::detail
