#pragma once
// What the data pipeline needs of a tokenizer and a chat template, as a value: tests put small hand-made ones in.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/conversation.h"

namespace nibble {

/// Token ids and, of the same length, the bytes of the text that each stands for (in order; empty for a token that
/// stands for nothing, such as a dummy prefix).
struct EncodedText {
  std::vector<int32_t> ids;
  std::vector<TextSpan> spans;
};

/// The functions must be safe to call from several threads at once.
struct Encoder {
  /// No BOS or EOS added; special tokens that are written in the text are recognized.
  std::function<EncodedText(std::string_view)> encode;
  /// The text of one token, for people (preview).
  std::function<std::string(int32_t)> token_text;
  /// Absent where there is no chat template. Throws InputError for a conversation that the template refuses.
  std::function<RenderedChat(const Conversation&)> render_chat;
  std::optional<int32_t> bos;  ///< put in front of plain text, where the tokenizer does so
  std::optional<int32_t> eos;  ///< put after a finished answer or document
  int64_t vocab_size = 0;      ///< of the model; ids at or above it are refused
  std::string fingerprint;     ///< changes when tokenizer or template change
};

}  // namespace nibble
