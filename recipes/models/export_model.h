#pragma once
// What a run leaves for others: written unsharded whatever the layout, read back, compared. Called by all ranks.

#include <filesystem>

#include "nibble/adapters/attach.h"
#include "nibble/core/models/decoder.h"
#include "nibble/parallel/parallel_model.h"

namespace nibble {

/// Writes a whole model as a Hugging Face directory in the dtype its config names (f32, bf16 or f16): `config` is a
/// config.json or a directory with one, `companions` a directory whose tokenizer and other small files are copied,
/// `chat_template` a built-in one or a file that the model was trained with, "" for that directory's. What ends a turn
/// by them ends a text of the model (complete_end_ids). Replaces an older one; reads the weights back and compares.
/// Weights are gathered block by block and written by the first rank. Throws IoError when it cannot be written or
/// differs.
void export_model(Decoder& model, ParallelModel& parallel, const std::filesystem::path& config,
                  const std::filesystem::path& companions, const std::string& chat_template,
                  const std::filesystem::path& target, RankContext& rank);

/// The adapter as a PEFT directory with its companions; replaces an older one.
void export_adapter(Decoder& model, ParallelModel& parallel, const AttachedAdapter& adapter,
                    const AdapterCompanions& companions, const std::filesystem::path& target, RankContext& rank);

}  // namespace nibble
