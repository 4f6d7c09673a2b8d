#pragma once
// What records hold and the chat template does not show. For .cpp files of core/data.

#include "nibble/core/data/data_options.h"
#include "nibble/core/data/encoder.h"
#include "nibble/core/data/records/json_record.h"

namespace nibble {

/// Takes such parts out of `conversation`, whose text stays the same; false where there are none. Throws InputError
/// naming the first where options.hidden_parts is `error`.
bool take_hidden_parts(const JsonRecord& record, const DataOptions& options, const Encoder& encoder,
                       Conversation& conversation);

/// Whether `conversation` has such parts, and refuses them in the same way, where a record becomes text without a chat
/// template: tools, documents, reasoning and a system message, for which that has no place. text: "Alpaca's prompt".
bool has_parts_without_place(const JsonRecord& record, const DataOptions& options, const Conversation& conversation,
                             const std::string& text);

/// For a conversation where the encoder has no chat template, or none because it has no tokenizer.
[[noreturn]] void fail_without_template(const JsonRecord& record, const Encoder& encoder);

}  // namespace nibble
