// The list `rewards`: a row of the recipe's table, and keys of its entries.

#include <algorithm>

#include "nibble/core/formatting/joined.h"
#include "nibble/core/text/matching/pattern.h"
#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

using Type = RewardRecipe::Type;

const std::vector<std::pair<std::string, Type>> kTypes = {
    {"exact", Type::exact},           {"number", Type::number},   {"regex", Type::regex}, {"length", Type::length},
    {"repetition", Type::repetition}, {"command", Type::command}, {"model", Type::model}};

/// One key of an entry.
struct RewardKey {
  std::string name;
  std::vector<Type> types;  ///< that have it; empty: all
  bool needed = false;
  std::function<void(RewardRecipe&, const Json&, const std::string& place)> read;
  std::function<Json(const RewardRecipe&)> write;
};

RewardKey text_key(std::string name, std::vector<Type> types, bool needed, std::string RewardRecipe::*at) {
  return {std::move(name), std::move(types), needed,
          [at](RewardRecipe& reward, const Json& value, const std::string& place) {
            reward.*at = read_text(value, place, "a string");
            if ((reward.*at).empty()) refuse_value(place, "a string", value);
          },
          [at](const RewardRecipe& reward) { return Json(reward.*at); }};
}

RewardKey count_key(std::string name, std::vector<Type> types, bool needed, int64_t RewardRecipe::*at) {
  return {std::move(name), std::move(types), needed,
          [at](RewardRecipe& reward, const Json& value, const std::string& place) {
            constexpr int64_t kMostCount = int64_t{1} << 50;
            reward.*at = read_integer(value, place, "integer from 1", 1, kMostCount);
          },
          [at](const RewardRecipe& reward) { return reward.*at == 0 ? Json(nullptr) : Json(reward.*at); }};
}

RewardKey number_key(std::string name, std::vector<Type> types, double least, double RewardRecipe::*at) {
  return {std::move(name), std::move(types), false,
          [at, least](RewardRecipe& reward, const Json& value, const std::string& place) {
            constexpr double kMostNumber = 1e9;
            reward.*at = read_number(value, place, number_range(least, kMostNumber).first, least, kMostNumber);
          },
          [at](const RewardRecipe& reward) { return Json(reward.*at); }};
}

const std::vector<RewardKey>& reward_keys() {
  static const std::vector<RewardKey> keys = {
      text_key("name", {}, false, &RewardRecipe::name),
      number_key("weight", {}, -1e9, &RewardRecipe::weight),
      text_key("column", {Type::exact, Type::number}, true, &RewardRecipe::column),
      text_key("pattern", {Type::regex}, true, &RewardRecipe::pattern),
      count_key("max_completion_len", {Type::length}, true, &RewardRecipe::max_completion_len),
      count_key("soft_punish_cache", {Type::length}, true, &RewardRecipe::soft_punish_cache),
      count_key("ngram_size", {Type::repetition}, false, &RewardRecipe::ngram_size),
      number_key("max_penalty", {Type::repetition}, -1e9, &RewardRecipe::max_penalty),
      {"argv",
       {Type::command},
       true,
       [](RewardRecipe& reward, const Json& value, const std::string& place) {
         reward.argv = read_texts(value, place, "a list of strings: a program and its arguments");
         if (reward.argv.empty() || reward.argv.front().empty())
           refuse_value(place, "a list of strings: a program and its arguments", value);
       },
       [](const RewardRecipe& reward) { return Json(reward.argv); }},
      number_key("timeout_seconds", {Type::command}, 1e-3, &RewardRecipe::timeout_seconds),
      count_key("memory_bytes", {Type::command}, false, &RewardRecipe::memory_bytes),
      {"null_on_failure",
       {Type::command},
       false,
       [](RewardRecipe& reward, const Json& value, const std::string& place) {
         if (!value.is_boolean()) refuse_value(place, "true | false", value);
         reward.null_on_failure = value.get<bool>();
       },
       [](const RewardRecipe& reward) { return Json(reward.null_on_failure); }},
      text_key("path", {Type::model}, true, &RewardRecipe::path),
  };
  return keys;
}

bool has_key(const RewardKey& key, Type type) { return key.types.empty() || std::ranges::count(key.types, type) > 0; }

RewardRecipe read_reward(const Json& entry, const std::string& place) {
  if (!entry.is_object()) refuse_value(place, "an object with a type", entry);
  RewardRecipe reward;
  std::vector<std::string> names, known = {"type"};
  for (const auto& [name, type] : kTypes) names.push_back(name);
  const Json given = entry.value("type", Json());
  const auto type = std::ranges::find_if(kTypes, [&](const auto& choice) { return given == choice.first; });
  if (type == kTypes.end()) {
    const std::string near = given.is_string() ? nearest(given.get<std::string>(), names) : "";
    throw UsageError("must be " + joined(names, " | ") + ", not " + given.dump(),
                     near.empty() ? "" : "did you mean " + near + "?", place + ".type");
  }
  reward.type = type->second;
  for (const RewardKey& key : reward_keys()) {
    if (has_key(key, reward.type)) known.push_back(key.name);
  }
  for (const auto& [name, value] : entry.items()) {
    if (name == "type") continue;
    const auto key = std::ranges::find_if(reward_keys(), [&, &name = name](const RewardKey& one) {
      return one.name == name && has_key(one, reward.type);
    });
    if (key == reward_keys().end()) {
      const std::string near = nearest(name, known);
      throw UsageError("unknown key of a reward of type " + type->first,
                       near.empty() ? "leave it out" : "did you mean " + near + "?", place + "." + name);
    }
    key->read(reward, value, place + "." + name);
  }
  for (const RewardKey& key : reward_keys()) {
    if (!key.needed || !has_key(key, reward.type) || entry.contains(key.name)) continue;
    throw UsageError("is missing", "a reward of type " + type->first + " needs it", place + "." + key.name);
  }
  if (reward.type == Type::regex) {
    try {
      regular_expression(reward.pattern, place + ".pattern \"" + reward.pattern + "\"");
    } catch (const InputError& error) {
      throw UsageError(error.what(), "correct it, or take another reward");
    }
  }
  if (reward.soft_punish_cache > reward.max_completion_len) {
    throw UsageError("is larger than max_completion_len", "", place + ".soft_punish_cache");
  }
  return reward;
}

Json write_reward(const RewardRecipe& reward) {
  Json entry;
  for (const auto& [name, type] : kTypes) {
    if (type == reward.type) entry["type"] = name;
  }
  for (const RewardKey& key : reward_keys()) {
    if (!has_key(key, reward.type)) continue;
    const Json value = key.write(reward);
    if (!value.is_null() && value != Json("")) entry[key.name] = value;
  }
  return entry;
}

}  // namespace

std::vector<RecipeField> reward_fields() {
  const std::string values = "a list of objects";
  std::vector<std::string> names;
  for (const auto& [name, type] : kTypes) names.push_back(name);
  Json properties = {{"type", {{"enum", names}}}};
  for (const RewardKey& key : reward_keys()) properties[key.name] = Json::object();
  const Json entry = {
      {"type", "object"}, {"required", {"type"}}, {"additionalProperties", false}, {"properties", properties}};
  RecipeField field = bare_field(
      "rewards", values, {{"type", "array"}, {"items", entry}},
      "what says how good an answer is, their sum by `weight` (1). `type`: exact (the answer is the field `column` of "
      "its prompt's record: 1 or 0), number (its last number is that of `column`), regex (`pattern` matches in it), "
      "length (0 to -1 over the last `soft_punish_cache` of `max_completion_len` tokens), repetition (`max_penalty` x "
      "share of repeated n-grams of `ngram_size` words), command (`argv`: for each line of JSON, the record with "
      "prompt_text, completion and completion_ids, a line with a number or null; `timeout_seconds` a step, "
      "`memory_bytes`, `null_on_failure`), model (what the score head in the directory `path` says of prompt and "
      "answer: a model, or an adapter for the policy's base). `name` is that of its metrics");
  field.read = [values](Recipe& recipe, const Json& value, const std::string& place) {
    if (!value.is_array()) refuse_value(place, values, value);
    recipe.rewards.clear();
    for (size_t i = 0; i < value.size(); ++i) {
      recipe.rewards.push_back(read_reward(value[i], place + "[" + std::to_string(i) + "]"));
    }
  };
  field.write = [](Recipe& recipe) -> Json {
    if (recipe.rewards.empty()) return nullptr;
    Json all = Json::array();
    for (const RewardRecipe& reward : recipe.rewards) all.push_back(write_reward(reward));
    return all;
  };
  return {only_for(rewarded_objectives(), std::move(field))};
}

}  // namespace nibble::detail
