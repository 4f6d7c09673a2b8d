#include "nibble/recipes/tokenizers.h"

#include <filesystem>

#include "nibble/core/base/error.h"

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
  if (!name.empty()) return builtin_chat_template(name, template_tokens(tokenizer));
  std::string known;
  for (const std::string& builtin : builtin_chat_template_names()) known += (known.empty() ? "" : ", ") + builtin;
  throw UsageError("the model's own chat template cannot be rendered yet", "choose a built-in one: " + known,
                   "data.template");
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

Encoder open_encoder(const std::string& path, const std::string& chat_template, int64_t vocab_size) {
  const std::shared_ptr<const Tokenizer> tokenizer = find_tokenizer(path);
  if (!tokenizer) return make_ids_encoder(vocab_size);
  if (tokenizer->vocab_size() > vocab_size) {
    throw InputError(path,
                     "the tokenizer has " + std::to_string(tokenizer->vocab_size()) + " tokens, the model only " +
                         std::to_string(vocab_size),
                     "use the tokenizer that belongs to the model");
  }
  std::shared_ptr<const ChatTemplate> chat;
  if (!chat_template.empty()) chat = open_chat_template(chat_template, *tokenizer);
  return make_encoder(tokenizer, chat, vocab_size);
}

}  // namespace nibble
