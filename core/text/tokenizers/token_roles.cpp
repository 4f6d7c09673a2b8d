#include "nibble/core/text/tokenizers/token_roles.h"

#include "nibble/core/base/error.h"
#include "nibble/core/text/chat/template_files.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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

 private:
  const Tokenizer& tokenizer_;
  json named_[2];
  json config_;
};

}  // namespace

TokenRoles read_token_roles(const fs::path& directory, const Tokenizer& tokenizer) {
  const RoleFiles files(directory, tokenizer);
  const TokenRoles& own = tokenizer.roles();
  TokenRoles roles;
  roles.bos = files.role("bos", own.bos);
  roles.eos = files.role("eos", own.eos);
  roles.pad = files.role("pad", own.pad);
  roles.unk = files.role("unk", own.unk);
  TemplateFiles templates = read_template_files(directory);
  roles.chat_templates = std::move(templates.templates);
  roles.special_tokens = std::move(templates.special_tokens);
  const auto fill = [&](const char* name, std::optional<int32_t> id) {
    if (id && !templates.without.contains(name)) roles.special_tokens.try_emplace(name, tokenizer.token(*id));
  };
  fill("bos_token", roles.bos);
  fill("eos_token", roles.eos);
  return roles;
}

}  // namespace nibble
