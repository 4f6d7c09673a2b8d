#include "nibble/core/text/token_roles.h"

#include "nibble/core/base/error.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/text/json_fields.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_object_if_there(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return json::object();
  json value = read_json_file(path, kTokenizerLimits);
  if (!value.is_object()) throw InputError(path.string(), "is not a JSON object");
  return value;
}

// A token in tokenizer_config.json is its text, or an object that has it as "content".
std::string token_text(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return "";
}

class RoleFiles {
 public:
  RoleFiles(const fs::path& directory, const Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        named_{read_object_if_there(directory / "tokenizer_config.json"),
               read_object_if_there(directory / "special_tokens_map.json")},
        config_(read_object_if_there(directory / "config.json")) {}

  std::optional<int32_t> role(const std::string& name, std::optional<int32_t> own) const {
    for (const json& file : named_) {
      const auto found = file.find(name + "_token");
      if (found == file.end()) continue;
      return found->is_null() ? std::nullopt : tokenizer_.id_of(token_text(*found));
    }
    auto id = config_.find(name + "_token_id");
    if (id == config_.end() || id->is_null()) return own;
    const json& value = id->is_array() && !id->empty() ? id->front() : *id;  // several: the first is the usual one
    if (!value.is_number_integer() || value < 0 || value >= tokenizer_.vocab_size()) return own;
    return value.get<int32_t>();
  }

  const json& tokenizer_config() const { return named_[0]; }

 private:
  const Tokenizer& tokenizer_;
  json named_[2];
  json config_;
};

void take_templates(const json& value, std::map<std::string, std::string>& templates) {
  if (value.is_string()) templates["default"] = value.get<std::string>();
  if (!value.is_array()) return;
  for (const json& entry : value) {
    if (entry.is_object() && entry.contains("name") && entry.contains("template") && entry["name"].is_string() &&
        entry["template"].is_string())
      templates[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
}

std::map<std::string, std::string> read_templates(const fs::path& directory, const json& tokenizer_config) {
  std::map<std::string, std::string> templates;
  if (tokenizer_config.contains("chat_template")) take_templates(tokenizer_config["chat_template"], templates);
  const json own_file = read_object_if_there(directory / "chat_template.json");
  if (own_file.contains("chat_template")) take_templates(own_file["chat_template"], templates);
  std::error_code ignored;
  const fs::path single = directory / "chat_template.jinja";
  if (fs::is_regular_file(single, ignored)) templates["default"] = read_text_file(single, kTokenizerLimits.max_bytes);
  for (fs::directory_iterator entry(directory / "additional_chat_templates", ignored), end; entry != end; ++entry) {
    if (entry->path().extension() == ".jinja" && entry->is_regular_file(ignored))
      templates[entry->path().stem().string()] = read_text_file(entry->path(), kTokenizerLimits.max_bytes);
  }
  return templates;
}

}  // namespace

TokenRoles read_token_roles(const fs::path& directory, const Tokenizer& tokenizer) {
  const RoleFiles files(directory, tokenizer);
  const TokenRoles& own = tokenizer.roles();
  return {files.role("bos", own.bos), files.role("eos", own.eos), files.role("pad", own.pad),
          files.role("unk", own.unk), read_templates(directory, files.tokenizer_config())};
}

}  // namespace nibble
