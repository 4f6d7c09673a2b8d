#pragma once
// Conversations as they are written in files. For .cpp files of core/data.

#include "nibble/core/data/encoder.h"
#include "nibble/core/data/records/json_record.h"

namespace nibble {

/// Reads messages [{role, content}] or conversations [{from, value}] with their system and tools; see render_record().
Conversation read_conversation(const JsonRecord& record);
/// The messages in the field `name`, which may be empty.
std::vector<ChatMessage> read_messages(const JsonRecord& record, const std::string& name);
/// The record's tools and chat_template_kwargs, no messages.
Conversation read_conversation_settings(const JsonRecord& record);
/// These and the record's system message, before any turn.
Conversation start_conversation(const JsonRecord& record);
/// `text` as the answer of a record without messages, with the reasoning that stands beside it.
ChatMessage read_answer(const JsonRecord& record, std::string text);

}  // namespace nibble
