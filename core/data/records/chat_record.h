#pragma once
// Conversations as they are written in files. For .cpp files of core/data.

#include "nibble/core/data/encoder.h"
#include "nibble/core/data/records/json_record.h"

namespace nibble {

/// Reads messages [{role, content}] or conversations [{from, value}] with their system and tools; see render_record().
Conversation read_conversation(const JsonRecord& record);
/// The messages in the field `name`, which may be empty, or its only one, without a list.
std::vector<ChatMessage> read_messages(const JsonRecord& record, const std::string& name);
/// The record's tools and chat_template_kwargs, no messages.
Conversation read_conversation_settings(const JsonRecord& record);
/// These and the record's system message, before any turn.
Conversation start_conversation(const JsonRecord& record);
/// `text` as the answer of a record without messages, with the reasoning that stands beside it.
ChatMessage read_answer(const JsonRecord& record, std::string text);

/// A prompt or an answer.
struct TextOrMessages {
  std::string text;
  std::vector<ChatMessage> messages;
  bool is_chat = false;
};
/// Alpaca's instruction, input and system, as messages with its history, or as the text of Stanford Alpaca's prompt,
/// which has no place for a history.
TextOrMessages read_alpaca_prompt(const JsonRecord& record, bool as_messages);

}  // namespace nibble
