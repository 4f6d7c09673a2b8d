#include "nibble/core/text/chat/turn_ends.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/text/chat/model_chat_template.h"

namespace nibble {

namespace {

using nlohmann::json;

constexpr const char* kEos = "eos_token_id";

json as_list(const json& ids) { return ids.is_array() ? ids : json::array({ids}); }

std::vector<int32_t> ends_of_directory(const std::filesystem::path& directory) {
  try {
    return turn_end_ids(*load_tokenizer(directory));
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::vector<int32_t> turn_end_ids(const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  std::vector<int32_t> ends;
  if (tokenizer.eos_id()) ends.push_back(*tokenizer.eos_id());
  if (chat_template == nullptr) return ends;
  const std::vector<int32_t> ids = tokenizer.encode(end_of_turn(*chat_template), false);
  if (ids.size() == 1 && tokenizer.is_special(ids[0]) && !std::ranges::count(ends, ids[0])) ends.push_back(ids[0]);
  return ends;
}

std::vector<int32_t> turn_end_ids(const Tokenizer& tokenizer) {
  const TokenRoles& roles = tokenizer.roles();
  if (!roles.chat_templates.contains("default")) return turn_end_ids(tokenizer, nullptr);
  try {
    const ModelChatTemplate chat(ModelTemplates(roles.chat_templates, roles.special_tokens, "chat_template"));
    return turn_end_ids(tokenizer, &chat);
  } catch (const InputError&) {  // a broken template is for whoever renders with it to report
    return turn_end_ids(tokenizer, nullptr);
  }
}

void complete_end_ids(const std::filesystem::path& directory) {
  const std::vector<int32_t> ends = ends_of_directory(directory);
  const std::filesystem::path config_file = directory / "config.json", file = directory / "generation_config.json";
  json config = read_json_file(config_file, kModelConfigJson);
  const bool inside = !config.contains(kEos) && config.contains("text_config");
  const json& text = inside ? config["text_config"] : config;
  json generation = json::object();
  if (std::filesystem::exists(file)) {
    generation = read_json_file(file);
  } else {
    for (const char* key : {"bos_token_id", "pad_token_id"}) {  // as Transformers reads them without the file
      if (text.contains(key) && !text[key].is_null()) generation[key] = text[key];
    }
  }
  json known = generation.value(kEos, json());
  if (known.is_null()) known = text.value(kEos, json());
  known = known.is_null() ? json::array() : as_list(known);
  json all = json::array();
  for (const int32_t id : ends) {
    if (!std::ranges::count(known, json(id))) all.push_back(id);
  }
  if (all.empty()) return;
  if (all.front() == ends.front()) config[kEos] = ends.front();
  for (const json& id : known) all.push_back(id);
  generation[kEos] = all.size() == 1 ? all.front() : all;
  write_json_file(config_file, config);
  write_json_file(file, generation);
}

}  // namespace nibble
