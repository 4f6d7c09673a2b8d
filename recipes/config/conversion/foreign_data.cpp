#include "nibble/recipes/config/conversion/foreign_data.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "nibble/core/formatting/joined.h"
#include "nibble/recipes/config/foreign_keys.h"

namespace nibble::detail {

namespace {

using Files = std::vector<std::string>;

// How one entry of a list of datasets is read.
struct Reading {
  Files files;
  std::string type;  // the tool's
  std::string format;
  std::map<std::string, std::string> fields;
  std::optional<bool> on_prompt;

  std::string described() const {
    return joined(files) + " (" + (type.empty() ? "no type" : "type " + type) +
           (fields.empty() ? "" : ", fields " + Json(fields).dump()) + ")";
  }
};

constexpr std::string_view kFields[] = {"field",        "text_column",  "field_messages", "field_instruction",
                                        "field_input",  "field_output", "field_system",   "field_tools",
                                        "field_prompt", "field_chosen", "field_rejected", "field_completion",
                                        "field_label"};
// Paths of a dataset that only say of which kind its data_files are.
constexpr std::string_view kKinds[] = {"json", "csv", "parquet", "arrow", "text"};
constexpr std::string_view kNamesOfTurns[] = {"message_property_mappings", "message_field_role",
                                              "message_field_content"};

// Whether its turns are those that are read here: role and content, or from and value.
bool has_known_turns(const Json& source) {
  Json names = source.value("message_property_mappings", Json::object());
  if (!names.is_object()) return false;
  for (const auto& [ours, theirs] : {std::pair("role", "message_field_role"), {"content", "message_field_content"}}) {
    if (source.contains(theirs)) names[ours] = source[theirs];
  }
  const Json role = names.value("role", Json("role")), content = names.value("content", Json("content"));
  return names.size() <= 2 && ((role == "role" && content == "content") || (role == "from" && content == "value"));
}

// What is so here without a key.
bool is_as_here(const Json& source, const std::string& name, const Json& value) {
  return name == "ds_type" || (name == "split" && value == "train") || (name == "train_on_eos" && value == "turn") ||
         (name == "roles_to_train" && value == Json::array({"assistant"})) ||
         (name == "chat_template" && value == "tokenizer_default") ||
         (std::ranges::count(kNamesOfTurns, name) > 0 && has_known_turns(source));
}

class Reader {
 public:
  explicit Reader(ObjectiveType objective) : objective_(objective) {}

  void note(const std::string& key, const std::string& what) { data_.notes.emplace_back(key, what); }
  void read(const std::string& key, const Json& sources, Files& files);
  ForeignData finish(const Json& theirs);
  Files& train() { return data_.train; }
  Files& eval() { return data_.eval; }

 private:
  bool is_sft() const { return objective_ == ObjectiveType::sft; }
  void read_one(const std::string& key, const Json& source, Files& files);
  void read_member(const std::string& key, const std::string& name, const Json& value, Reading& reading);
  void agree_on_format();
  void agree_on_prompts(const Json& of_all);

  const ObjectiveType objective_;
  std::vector<Reading> readings_;
  ForeignData data_;
};

void Reader::read(const std::string& key, const Json& sources, Files& files) {
  if (!sources.is_array()) return read_one(key, sources, files);
  for (const Json& source : sources) read_one(key, source, files);
}

void Reader::read_one(const std::string& key, const Json& source, Files& files) {
  Reading reading;
  if (source.is_string()) {
    reading.files = {source.get<std::string>()};
  } else if (!source.is_object() || !source.contains("path") || !source["path"].is_string()) {
    return note(key, source.dump() + " has no counterpart: name files in data.train");
  } else {
    reading.files = {source["path"].get<std::string>()};
    for (const auto& [name, value] : source.items()) {
      if (name != "path" && !value.is_null() && !is_as_here(source, name, value))
        read_member(key + "." + name, name, value, reading);
    }
  }
  files.insert(files.end(), reading.files.begin(), reading.files.end());
  readings_.push_back(std::move(reading));
}

void Reader::read_member(const std::string& key, const std::string& name, const Json& value, Reading& reading) {
  const auto is_text = [](const Json& one) { return one.is_string(); };
  if (name == "data_files" &&
      (is_text(value) || (value.is_array() && std::all_of(value.begin(), value.end(), is_text)))) {
    const std::string path = reading.files.front();
    reading.files = is_text(value) ? Files{value.get<std::string>()} : value.get<Files>();
    if (std::ranges::count(kKinds, path) == 0)
      note(key, "are taken for files of this machine; those of the dataset " + path + " are named " + path + "/FILE");
  } else if (name == "type" && is_text(value) && !is_sft()) {
    note(key, value.dump() + " is left out: the objective says how records are read");
  } else if (name == "type" && is_text(value)) {
    reading.type = value.get<std::string>();
    const std::string format = value_for_foreign(reading.type);
    reading.format = reading.type == "completion" ? "text" : format.empty() ? reading.type : format;
  } else if (name == "train_on_inputs" && value.is_boolean() && is_sft()) {
    reading.on_prompt = value.get<bool>();
  } else if (std::ranges::count(kFields, name) > 0 && is_text(value)) {
    const bool is_prompt = !is_sft() && name == "field_messages";
    const std::string ours = is_prompt ? "prompt" : name == "field" || name == "text_column" ? "text" : name.substr(6);
    const bool is_found = value == ours || (ours == "messages" && value == "conversations");
    if (!is_found) reading.fields[ours] = value.get<std::string>();
  } else {
    note(key, "has no counterpart");
  }
}

void Reader::agree_on_format() {
  if (readings_.empty()) return;
  const Reading& first = readings_.front();
  const auto same = [&](auto member) {
    return std::ranges::all_of(readings_, [&](const Reading& one) { return one.*member == first.*member; });
  };
  const bool has_format = same(&Reading::format), has_fields = same(&Reading::fields);
  if (has_format) data_.format = first.format;
  if (has_format && has_fields) {
    data_.fields = first.fields;
    return;
  }
  note("datasets", std::string("a recipe has one ") + (has_format ? "data.fields" : "data.format and one data.fields") +
                       " for all its files, and these differ: " + joined(readings_, "; ", &Reading::described) +
                       "; left out: the names of its fields say how each file is read; check it with `nibble "
                       "preview`, and rewrite files that come out wrong in the format of the others");
}

// Axolotl reads train_on_inputs beside its datasets, and none in them.
void Reader::agree_on_prompts(const Json& of_all) {
  const bool everywhere = of_all == true;
  Files others;
  bool is_common = of_all.is_null();
  for (const Reading& one : readings_) {
    if (one.format == "text") continue;  // has no prompt
    const bool differs = one.on_prompt.value_or(everywhere) != everywhere;
    if (differs) others.insert(others.end(), one.files.begin(), one.files.end());
    is_common = is_common && differs;
  }
  const char* key = "datasets.train_on_inputs";
  if (others.empty()) return;
  if (is_common) {
    data_.on_prompt = true;
    note(key, "is taken for data.train_on_prompt, although Axolotl reads it beside datasets alone");
  } else {
    note(key, "is left out for " + joined(others) +
                  ": data.train_on_prompt is for all files, as Axolotl's "
                  "train_on_inputs beside datasets is");
  }
}

ForeignData Reader::finish(const Json& theirs) {
  agree_on_format();
  agree_on_prompts(theirs.value("train_on_inputs", Json()));
  return std::move(data_);
}

}  // namespace

std::vector<std::string> names_of(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t begin = part.find_first_not_of(' '), end = part.find_last_not_of(' ');
    if (begin != std::string::npos) names.push_back(part.substr(begin, end - begin + 1));
  }
  return names;
}

ForeignData foreign_data(const Json& theirs, Tool tool, ObjectiveType objective) {
  Reader reader(objective);
  const auto find = [&](const char* key) { return theirs.value(key, Json()); };
  const auto text = [&](const char* key) {
    const Json value = find(key);
    return value.is_string() ? value.get<std::string>() : "";
  };
  for (const char* key : {"datasets", "pretraining_dataset", "dataset_name"}) {
    if (const Json sources = find(key); !sources.is_null()) reader.read(key, sources, reader.train());
  }
  if (const Json sources = find("test_datasets"); !sources.is_null())
    reader.read("test_datasets", sources, reader.eval());
  const std::string folder = text("dataset_dir").empty() ? "data" : text("dataset_dir");
  const auto add_named = [&](const char* key, Files& files) {
    for (const std::string& name : names_of(text(key))) {
      files.push_back(folder + "/" + name + ".json");
      reader.note(key, "\"" + name + "\" is taken for the file " + files.back() + "; look it up in " + folder +
                           "/dataset_info.json");
    }
  };
  add_named("dataset", reader.train());
  if (tool == Tool::llama_factory) add_named("eval_dataset", reader.eval());
  return reader.finish(theirs);
}

}  // namespace nibble::detail
