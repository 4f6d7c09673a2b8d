#pragma once
// Conversations, and what a chat template makes of them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

/// Reasoning is passed under these names; the first is the one that templates read.
inline constexpr std::string_view kReasoningNames[] = {"reasoning_content", "thinking", "reasoning"};

/// One turn of a conversation as the record gives it.
struct ChatMessage {
  std::string role;  ///< system, user, assistant, tool, or what the template knows
  std::string content;
  std::string tool_calls;  ///< JSON array, OpenAI's form; empty = none
  std::string reasoning;   ///< under any of kReasoningNames; empty = none
  bool train = true;       ///< false: an answer that is context only ("weight": 0)
  std::string json = {};   ///< the whole message as a model's own template reads it; empty = made from the fields above
  std::string place = {};  ///< where the record has it, for people: "messages[2]"
};

struct Conversation {
  std::vector<ChatMessage> messages;
  std::string tools;                    ///< JSON array of tool descriptions; empty = none given, which "[]" is not
  std::string documents = {};           ///< JSON array of what the answers rest on, likewise
  std::string template_arguments = {};  ///< JSON object: further variables of the template (chat_template_kwargs)
};

/// Whether a JSON array, of tools or documents, holds any.
inline bool holds_any(std::string_view array) { return !array.empty() && array != "[]"; }

/// A part of a conversation that its text does not show.
struct HiddenPart {
  enum class Kind : uint8_t { tools, documents, tool_calls, reasoning, message };
  Kind kind = Kind::tools;
  size_t message = 0;  ///< whose part it is; not of tools and documents
};

/// A conversation as text, with the bytes that are the assistant's answers, end-of-turn marks included, one span a
/// trained message or several.
struct RenderedChat {
  std::string text;
  std::vector<TextSpan> answers;
};

}  // namespace nibble
