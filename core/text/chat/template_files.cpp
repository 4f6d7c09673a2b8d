#include "nibble/core/text/chat/template_files.h"

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void take_templates(const json& value, std::map<std::string, std::string>& templates) {
  if (value.is_string()) templates["default"] = value.get<std::string>();
  if (!value.is_array()) return;
  for (const json& entry : value) {
    if (entry.is_object() && entry.contains("name") && entry.contains("template") && entry["name"].is_string() &&
        entry["template"].is_string())
      templates[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
}

void take_token(const json& file, const std::string& name, TemplateFiles& files) {
  const auto found = file.find(name);
  if (found == file.end() || files.special_tokens.contains(name) || files.without.contains(name)) return;
  if (found->is_null()) files.without[name] = true;
  if (found->is_string()) files.special_tokens[name] = found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
    files.special_tokens[name] = (*found)["content"].get<std::string>();
}

}  // namespace

TemplateFiles read_template_files(const fs::path& directory) {
  TemplateFiles files;
  const json config = read_object_if_there(directory / "tokenizer_config.json");
  const json tokens = read_object_if_there(directory / "special_tokens_map.json");
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    take_token(config, name, files);
    take_token(tokens, name, files);
  }
  if (config.contains("chat_template")) take_templates(config["chat_template"], files.templates);
  const json own_file = read_object_if_there(directory / "chat_template.json");
  if (own_file.contains("chat_template")) take_templates(own_file["chat_template"], files.templates);
  std::error_code ignored;
  const fs::path single = directory / "chat_template.jinja";
  if (fs::is_regular_file(single, ignored)) files.templates["default"] = read_text_file(single);
  for (fs::directory_iterator entry(directory / "additional_chat_templates", ignored), end; entry != end; ++entry) {
    if (entry->path().extension() == ".jinja" && entry->is_regular_file(ignored))
      files.templates[entry->path().stem().string()] = read_text_file(entry->path());
  }
  return files;
}

}  // namespace nibble
