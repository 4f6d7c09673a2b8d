#pragma once
// Texts that are longer than the model was made for.

#include <functional>
#include <string>

#include "nibble/core/data/dataset.h"
#include "nibble/core/models/decoder_config.h"

namespace nibble {

/// Tells a warning where a sample, cut to `max_length`, has more tokens than the model was made for (text_limit).
/// Throws InputError, naming the record, where it has more than the model has positions. remedy: what to do. who: the
/// model's name.
void check_text_lengths(const Dataset& dataset, const DecoderConfig& model, int64_t max_length,
                        const std::string& remedy, const std::function<void(const std::string&)>& tell,
                        const std::string& who = "the model");

}  // namespace nibble
