#pragma once
// Records that say which answers are better than others, and texts with labels. For .cpp files of core/data.

#include "nibble/core/data/records/format.h"
#include "nibble/core/data/records/json_record.h"

namespace nibble {

/// What each takes is said at render_record().
RenderedRecord render_preference(const JsonRecord& record, const DataOptions& options, const Encoder& encoder);
RenderedRecord render_unpaired(const JsonRecord& record, const DataOptions& options, const Encoder& encoder);
RenderedRecord render_labeled(const JsonRecord& record, const DataOptions& options, const Encoder& encoder);
RenderedRecord render_prompt(const JsonRecord& record, const DataOptions& options, const Encoder& encoder);
RenderedRecord render_rollout(const JsonRecord& record, const DataOptions& options, const Encoder& encoder);

/// value i of the field `name` as a token id of a vocabulary of vocab_size, or as a label.
int32_t read_id(const JsonRecord& record, const std::string& name, const Json& value, size_t i, int64_t vocab_size,
                bool is_label);
/// Good or bad, as TRL's unpaired preferences and LLaMA-Factory's say it of an answer.
bool is_verdict(const Json* label);
bool is_good(const Json& verdict);

}  // namespace nibble
