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

RecipeField sources_field(std::string name, std::vector<DataSource> DataOptions::*at, std::string meaning) {
  const std::string allowed = "a path or glob, or a list of them or of {\"path\": ..., \"weight\": ...}";
  const Json weight = {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", kLargestWeight}};
  const Json item = {{"type", {"string", "object"}},
                     {"properties", {{"path", {{"type", "string"}}}, {"weight", weight}}},
                     {"additionalProperties", false}};
  const auto read = [](const Json& value, const std::string& place, const std::string& values) {
    if (!value.is_array()) return std::vector{read_source(value, place, values)};
    std::vector<DataSource> sources;
    for (const Json& member : value) sources.push_back(read_source(member, place, values));
    return sources;
  };
  const auto write = [](const std::vector<DataSource>& sources) -> Json {
    Json list = Json::array();
    for (const DataSource& source : sources) {
      list.push_back(source.weight == 1 ? Json(source.path) : Json{{"path", source.path}, {"weight", source.weight}});
    }
    if (list.empty()) return nullptr;
    return list.size() == 1 && list[0].is_string() ? list[0] : list;
  };
  // what the files hold is compared by the data's fingerprint
  return free_to_change(value_field(std::move(name), allowed,
                                    {{"type", {"string", "object", "array"}}, {"items", item}}, at, read,
                                    std::move(meaning), write));
}

RecipeField fields_field() {
  const auto read = [](const Json& value, const std::string& place, const std::string& values) {
    const std::string form = values + ", {\"prompt\": \"question\"} (or data.fields.prompt=question)";
    if (!value.is_object()) refuse_value(place, form, value);
    std::map<std::string, std::string> fields;
    for (const auto& [key, member] : value.items()) {
      if (!member.is_string()) refuse_value(place, form, value);
      fields[key] = member.get<std::string>();
    }
    return fields;
  };
  return value_field("data.fields", "an object of strings",
                     {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}}, &DataOptions::fields, read,
                     "what the files call the fields of a format: {\"prompt\": \"question\"}", kNullIfEmpty);
}

}  // namespace

std::vector<RecipeField> data_fields() {
  return {
      sources_field("data.train", &DataOptions::train,
                    "files to train on: .jsonl, .json, .txt, .csv, .parquet, .arrow; a directory of them (where "
                    "it has splits: train); a dataset's ID in the Hugging Face cache, or ID/PATH; weight: how often an "
                    "epoch takes each sample (2: twice, 0.5: half of them, drawn anew each epoch)"),
      sources_field("data.eval", &DataOptions::eval,
                    "files to evaluate on (of a directory with splits: validation, else test); data.eval=null on the "
                    "command line turns evaluation off"),
      number_field("data.eval_fraction", 0, 1, &DataOptions::eval_fraction,
                   "instead of data.eval: share of the training data held out by a keyed draw"),
      choice_field("data.format", data_formats(), &DataOptions::format,
                   "how a record is read (auto: by the first one, or as the objective asks)"),
      text_field("data.template", "a template's name or file", &DataOptions::chat_template,
                 "chat template (the model's own)"),
      fields_field(),
      integer_field("data.max_length", 2, 1 << 24, &DataOptions::max_length, "tokens of a sequence"),
      flag_field("data.pack", &DataOptions::pack, "put several documents in one sequence, blind to each other"),
      flag_field("data.shuffle", &DataOptions::shuffle, "false: in the order of the files"),
      flag_field("data.train_on_prompt", &DataOptions::train_on_prompt, "loss on prompts too, not only on answers"),
      choice_field(
          "data.truncate", {{"cut", Truncate::cut}, {"drop", Truncate::drop}, {"error", Truncate::error}},
          &DataOptions::truncate,
          "what happens to samples longer than max_length, but for texts (format text), which go on in the next"),
      integer_field("data.skip_bad", 0, kLargestCount, &DataOptions::skip_bad,
                    "malformed records that may be left out, beside those of max_dropped"),
      choice_field("data.hidden_parts", {{"drop", HiddenParts::drop}, {"error", HiddenParts::error}},
                   &DataOptions::hidden_parts,
                   "what happens to messages, tool calls, reasoning, tools, documents and system prompts that the text "
                   "does not show"),
      free_to_change(number_field("data.max_dropped", 0, 1, &DataOptions::max_dropped,
                                  "share of the records that may be dropped as too long or without a trained token, or "
                                  "have an empty answer or text or the same as chosen and as rejected")),
      free_to_change(text_field("data.cache", "a directory", &DataOptions::cache,
                                "keep encoded data there, for other runs and for data larger than memory")),
  };
}

}  // namespace nibble::detail
