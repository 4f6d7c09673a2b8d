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

/// The same for a record whose text, without a chat template, shows no tools, documents, reasoning and system message;
/// `conversation` has what it should not lose of them. `text`: what it is, for people.
bool leave_out_hidden(const JsonRecord& record, const DataOptions& options, const Conversation& conversation,
                      const std::string& text);

/// For a conversation where the encoder has no chat template, or none because it has no tokenizer.
[[noreturn]] void fail_without_template(const JsonRecord& record, const Encoder& encoder);

}  // namespace nibble
