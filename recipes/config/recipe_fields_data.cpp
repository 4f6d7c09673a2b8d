// The rows of the section data.

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

DataSource read_source(const Json& value, const std::string& place, const std::string& values) {
  DataSource source;
  if (value.is_string()) {
    source.path = value.get<std::string>();
  } else if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      if (key == "path" && member.is_string()) {
        source.path = member.get<std::string>();
      } else if (key == "weight") {
        const std::string weights = "a weight above 0 and at most 1000";
        source.weight = read_number(member, place, weights, std::numeric_limits<double>::min());
        if (source.weight > kLargestWeight) refuse_value(place, weights, member);
      } else {
        refuse_value(place, values, value);
      }
    }
  }
  if (source.path.empty()) refuse_value(place, values, value);
  return source;
}

RecipeField sources_field(std::string name, Place<std::vector<DataSource>> at, std::string meaning) {
  const std::string values = "a path or glob, or a list of them or of {\"path\": ..., \"weight\": ...}";
  const Json weight = {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", kLargestWeight}};
  const Json item = {{"type", {"string", "object"}},
                     {"properties", {{"path", {{"type", "string"}}}, {"weight", weight}}},
                     {"additionalProperties", false}};
  RecipeField field = bare_field(std::move(name), values, {{"type", {"string", "object", "array"}}, {"items", item}},
                                 std::move(meaning));
  field.decides_bits = false;  // what the files hold is compared by the data's fingerprint
  field.read = [=](Recipe& recipe, const Json& value, const std::string& place) {
    std::vector<DataSource>& sources = at(recipe);
    sources.clear();
    if (!value.is_array()) {
      sources.push_back(read_source(value, place, values));
      return;
    }
    for (const Json& member : value) sources.push_back(read_source(member, place, values));
  };
  field.write = [at](Recipe& recipe) -> Json {
    if (at(recipe).empty()) return nullptr;
    Json list = Json::array();
    for (const DataSource& source : at(recipe)) {
      list.push_back(source.weight == 1 ? Json(source.path) : Json{{"path", source.path}, {"weight", source.weight}});
    }
    return list.size() == 1 && list[0].is_string() ? list[0] : list;
  };
  return field;
}

RecipeField fields_field() {
  const std::string values = "an object of strings";
  RecipeField field =
      bare_field("data.fields", values, {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}},
                 "what the files call the fields of a format: {\"prompt\": \"question\"}");
  field.read = [=](Recipe& recipe, const Json& value, const std::string& place) {
    if (!value.is_object()) refuse_value(place, values, value);
    recipe.data.fields.clear();
    for (const auto& [key, member] : value.items()) {
      if (!member.is_string()) refuse_value(place, values, value);
      recipe.data.fields[key] = member.get<std::string>();
    }
  };
  field.write = [](Recipe& recipe) -> Json {
    return recipe.data.fields.empty() ? Json(nullptr) : Json(recipe.data.fields);
  };
  return field;
}

}  // namespace

namespace {

RecipeField max_dropped_field() {
  RecipeField field = number_field(
      "data.max_dropped", 0, 1, [](Recipe& r) -> double& { return r.data.max_dropped; },
      "share of the records that may be dropped as too long or without a trained token, or have an empty answer");
  field.decides_bits = false;
  return field;
}

}  // namespace

RecipeField cache_field() {
  RecipeField field = text_field(
      "data.cache", "a directory", [](Recipe& r) -> std::string& { return r.data.cache; },
      "keep encoded data there, for other runs and for data larger than memory");
  field.decides_bits = false;
  return field;
}

std::vector<RecipeField> data_fields() {
  return {
      sources_field(
          "data.train", [](Recipe& r) -> std::vector<DataSource>& { return r.data.train; },
          "files to train on: .jsonl, .json, .txt, .csv, .parquet, .arrow; a dataset's ID in the Hugging Face cache, "
          "or ID/PATH"),
      sources_field(
          "data.eval", [](Recipe& r) -> std::vector<DataSource>& { return r.data.eval; },
          "files to evaluate on; data.eval=null on the command line turns evaluation off"),
      number_field(
          "data.eval_fraction", 0, 1, [](Recipe& r) -> double& { return r.data.eval_fraction; },
          "instead of data.eval: share of the training data held out by a keyed draw"),
      choice_field<DataFormat>(
          "data.format", data_formats(), [](Recipe& r) -> DataFormat& { return r.data.format; },
          "how a record is read (auto: by the first one, or as the objective asks)"),
      text_field(
          "data.template", "a template's name or file", [](Recipe& r) -> std::string& { return r.data.chat_template; },
          "chat template (the model's own)"),
      fields_field(),
      integer_field(
          "data.max_length", 2, 1 << 30, [](Recipe& r) -> int64_t& { return r.data.max_length; },
          "tokens of a sequence"),
      flag_field(
          "data.pack", [](Recipe& r) -> bool& { return r.data.pack; },
          "put several documents in one sequence, blind to each other"),
      flag_field(
          "data.shuffle", [](Recipe& r) -> bool& { return r.data.shuffle; }, "false: in the order of the files"),
      flag_field(
          "data.train_on_prompt", [](Recipe& r) -> bool& { return r.data.train_on_prompt; },
          "loss on prompts too, not only on answers"),
      choice_field<Truncate>(
          "data.truncate", {{"cut", Truncate::cut}, {"drop", Truncate::drop}, {"error", Truncate::error}},
          [](Recipe& r) -> Truncate& { return r.data.truncate; }, "what happens to samples longer than max_length"),
      integer_field(
          "data.skip_bad", 0, kLargestCount, [](Recipe& r) -> int64_t& { return r.data.skip_bad; },
          "malformed records that may be left out"),
      choice_field<HiddenParts>(
          "data.hidden_parts", {{"drop", HiddenParts::drop}, {"error", HiddenParts::error}},
          [](Recipe& r) -> HiddenParts& { return r.data.hidden_parts; },
          "what happens to tool calls, reasoning and tools that the chat template does not show"),
      max_dropped_field(),
      cache_field(),
  };
}

}  // namespace nibble::detail
