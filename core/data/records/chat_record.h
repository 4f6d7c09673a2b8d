#pragma once
// Conversations as they are written in files. For .cpp files of this folder.

#include "nibble/core/data/encoder.h"
#include "nibble/core/data/records/json_record.h"

namespace nibble {

/// Reads messages [{role, content}] or conversations [{from, value}] with their system and tools; see render_record().
Conversation read_conversation(const JsonRecord& record);

}  // namespace nibble
