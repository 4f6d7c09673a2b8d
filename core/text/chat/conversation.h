#pragma once
// Conversations, and what a chat template makes of them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

/// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

/// One turn of a conversation as the record gives it.
struct ChatMessage {
  std::string role;  ///< system, user, assistant, tool, or what the template knows
  std::string content;
  std::string tool_calls;  ///< JSON array, OpenAI's form; empty = none
  std::string reasoning;   ///< reasoning_content; empty = none
  bool train = true;       ///< false: an answer that is context only ("weight": 0)
  std::string json = {};   ///< the whole message as a model's own template reads it; empty = made from the fields above
};

struct Conversation {
  std::vector<ChatMessage> messages;
  std::string tools;  ///< JSON array of tool descriptions; empty = none
};

/// A part of a conversation that its text does not show.
struct HiddenPart {
  enum class Kind : uint8_t { tools, tool_calls, reasoning, tool_result };
  Kind kind = Kind::tools;
  size_t message = 0;  ///< whose part it is; not of tools
};

/// A conversation as text, with the bytes that are the assistant's answers, end-of-turn marks included, one span a
/// trained message or several.
struct RenderedChat {
  std::string text;
  std::vector<TextSpan> answers;
};

}  // namespace nibble
