#include "nibble/recipes/tokenizers.h"

#include <chrono>
#include <filesystem>
#include <optional>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/text/model_chat_template.h"

namespace nibble {

std::unique_ptr<Tokenizer> find_tokenizer(const std::string& path) {
  const std::filesystem::path place(path);
  if (!std::filesystem::is_directory(place)) return load_tokenizer(place);
  for (const char* file : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    if (std::filesystem::exists(place / file)) return load_tokenizer(place);
  }
  return nullptr;
}

std::unique_ptr<ChatTemplate> open_chat_template(const std::string& name, const Tokenizer& tokenizer) {
  const TokenRoles& roles = tokenizer.roles();
  const auto model_template = [&](const std::map<std::string, std::string>& sources, const std::string& place) {
    return std::make_unique<ModelChatTemplate>(ModelTemplates(sources, roles.special_tokens, place));
  };
  std::error_code ignored;
  if (name.ends_with(".jinja") || std::filesystem::is_regular_file(name, ignored))
    return model_template({{"default", read_text_file(name)}}, name);
  if (!name.empty()) return builtin_chat_template(name, template_tokens(tokenizer));
  if (!roles.chat_templates.empty()) return model_template(roles.chat_templates, "chat_template");
  std::string known;
  for (const std::string& builtin : builtin_chat_template_names()) known += (known.empty() ? "" : ", ") + builtin;
  throw UsageError("the model has no chat template",
                   "name a built-in one (" + known + ") or a .jinja file: --template NAME, in recipes data.template");
}

int64_t rows_for_tokenizer(const std::string& path, int64_t model_rows) {
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(path);
  if (!tokenizer || tokenizer->vocab_size() <= model_rows) return model_rows;
  if (tokenizer->vocab_size() - model_rows <= model_rows / 8) return tokenizer->vocab_size();
  throw InputError(path,
                   "the tokenizer has " + std::to_string(tokenizer->vocab_size()) + " tokens, the model only " +
                       std::to_string(model_rows),
                   "use the tokenizer that belongs to the model");
}

namespace {

// Of all that decides ids and rendered text: the tokenizer's files, the templates, and the day where one asks for it.
std::string fingerprint_of(const std::filesystem::path& path, const std::string& chat_template,
                           const Tokenizer& tokenizer) {
  Hasher hasher;
  const auto add = [&](const std::string& text) {
    const uint64_t size = text.size();
    hasher.update(std::as_bytes(std::span(&size, 1)));
    hasher.update(std::as_bytes(std::span(text)));
  };
  std::error_code ignored;
  const std::filesystem::path directory = std::filesystem::is_directory(path) ? path : path.parent_path();
  if (!std::filesystem::is_directory(path)) add(hash_file(path));
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json",
                           "special_tokens_map.json", "config.json"}) {
    const std::filesystem::path file = directory / name;
    add(std::filesystem::is_regular_file(file, ignored) ? hash_file(file) : "");
  }
  std::string templates = chat_template;
  if (std::filesystem::is_regular_file(chat_template, ignored)) templates += read_text_file(chat_template);
  for (const auto& [name, text] : tokenizer.roles().chat_templates) templates += name + text;
  add(templates);
  if (templates.find("strftime_now") != std::string::npos) {
    add(std::to_string(
        std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()).time_since_epoch().count()));
  }
  return hasher.hex();
}

}  // namespace

Encoder open_encoder(const std::string& path, const std::string& chat_template, int64_t vocab_size) {
  const std::shared_ptr<const Tokenizer> tokenizer = find_tokenizer(path);
  if (!tokenizer) return make_ids_encoder(vocab_size, path);
  if (tokenizer->vocab_size() > vocab_size) {
    throw InputError(path,
                     "the tokenizer has " + std::to_string(tokenizer->vocab_size()) + " tokens, the model only " +
                         std::to_string(vocab_size),
                     "use the tokenizer that belongs to the model");
  }
  std::shared_ptr<const ChatTemplate> chat;
  std::optional<InputError> broken;
  if (!chat_template.empty()) {
    chat = open_chat_template(chat_template, *tokenizer);
  } else if (!tokenizer->roles().chat_templates.empty()) {
    try {
      chat = open_chat_template("", *tokenizer);
    } catch (const InputError& error) {  // of no matter until a conversation needs it
      broken = error;
    }
  }
  Encoder encoder = make_encoder(tokenizer, chat, vocab_size);
  encoder.fingerprint = fingerprint_of(path, chat_template, *tokenizer);
  if (broken) encoder.render_chat = [broken](const Conversation&) -> RenderedChat { throw *broken; };
  return encoder;
}

}  // namespace nibble
