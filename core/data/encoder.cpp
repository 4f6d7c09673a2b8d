#include "nibble/core/data/encoder.h"

#include <algorithm>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

// The tokens that the tokenizer puts in front of a text, found by encoding one with and without them.
std::vector<int32_t> tokens_in_front(const Tokenizer& tokenizer) {
  const std::vector<int32_t> with = tokenizer.encode("a", true), without = tokenizer.encode("a", false);
  const auto text = std::search(with.begin(), with.end(), without.begin(), without.end());
  return {with.begin(), text == with.end() ? with.begin() : text};
}

std::vector<std::string> texts_of(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  StreamDecoder decoder(tokenizer, false);
  std::vector<std::string> texts;
  for (const int32_t id : ids) {
    texts.push_back(id < tokenizer.vocab_size() ? decoder.push(id) : decoder.finish() + "<unused>");
  }
  if (!texts.empty()) texts.back() += decoder.finish();
  return texts;
}

}  // namespace

Encoder make_encoder(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
                     int64_t vocab_size) {
  Encoder encoder;
  encoder.encode = [tokenizer](std::string_view text, const TakeTokens& take) {
    tokenizer->encode_in_pieces(text, take);
  };
  encoder.token_texts = [tokenizer](std::span<const int32_t> ids) { return texts_of(*tokenizer, ids); };
  if (chat_template) {
    encoder.render_chat = [chat_template](const Conversation& chat) { return chat_template->render(chat); };
    encoder.render_text = [chat_template](Conversation chat, bool add_generation_prompt) {
      for (ChatMessage& message : chat.messages) message.train = false;  // nothing looks for answers
      return chat_template->render(chat, add_generation_prompt).text;
    };
    encoder.hidden_parts = [chat_template](const Conversation& chat) { return chat_template->hidden_parts(chat); };
  }
  encoder.is_special = [tokenizer](int32_t id) { return tokenizer->is_special(id); };
  encoder.prefix = tokens_in_front(*tokenizer);
  encoder.eos = tokenizer->eos_id();
  encoder.tokenizer_size = tokenizer->vocab_size();
  encoder.vocab_size = vocab_size;
  return encoder;
}

Encoder make_ids_encoder(int64_t vocab_size, const std::string& directory) {
  Encoder encoder;
  encoder.encode = [directory](std::string_view, const TakeTokens&) {
    throw InputError(
        directory,
        "has no tokenizer (tokenizer.json, tokenizer.model or vocab.json with merges.txt), and the data are text",
        "download it, set model.tokenizer, or give input_ids");
  };
  encoder.token_texts = [](std::span<const int32_t> ids) {
    std::vector<std::string> texts;
    for (const int32_t id : ids) texts.push_back("<" + std::to_string(id) + ">");
    return texts;
  };
  encoder.vocab_size = vocab_size;
  return encoder;
}

}  // namespace nibble
