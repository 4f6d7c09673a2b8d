#pragma once
// What the data pipeline needs of a tokenizer and a chat template, as a value: tests put small hand-made ones in.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/chat/chat_template.h"
#include "nibble/core/text/chat/conversation.h"
#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

/// The functions must be safe to call from several threads at once.
struct Encoder {
  /// No BOS or EOS added, each token with its bytes in order; special tokens that are written in the text are
  /// recognized.
  std::function<void(std::string_view, const TakeTokens&)> encode;
  /// What each of these tokens adds to their text, for people (preview): blanks are where they are in the whole, and a
  /// character of several tokens is at its last.
  std::function<std::vector<std::string>(std::span<const int32_t>)> token_texts;
  /// Absent where there is no chat template. Throws InputError for a conversation that the template refuses.
  std::function<RenderedChat(const Conversation&)> render_chat;
  /// The conversation as text, with or without the generation prompt, whatever of it is trained; absent as render_chat.
  std::function<std::string(Conversation, bool add_generation_prompt)> render_text;
  /// ChatTemplate::hidden_parts; absent where there is no chat template.
  std::function<std::vector<HiddenPart>(const Conversation&)> hidden_parts;
  std::function<bool(int32_t)> is_special;  ///< a control token; absent where there is no tokenizer
  std::vector<int32_t> prefix;              ///< what the tokenizer puts in front of a text: BOS, or nothing
  std::optional<int32_t> eos;               ///< put after a finished answer or document
  std::string fingerprint;                  ///< of tokenizer and chat template; with none, nothing is cached
  int64_t vocab_size = 0;                   ///< of the model; ids at or above it are refused
  int64_t tokenizer_size = 0;               ///< tokens of the tokenizer; 0: none
};

/// An Encoder over a model's tokenizer and, where there is one, its chat template (may be null); it keeps both alive.
/// vocab_size is the model's, which may be larger than the tokenizer's.
Encoder make_encoder(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const ChatTemplate> chat_template,
                     int64_t vocab_size);

/// For data that are token ids already (DataFormat::tokens), without a tokenizer: text records are refused.
Encoder make_ids_encoder(int64_t vocab_size, const std::string& directory);

}  // namespace nibble
