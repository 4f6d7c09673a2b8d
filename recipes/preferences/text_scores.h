#pragma once
// What a score head says of the texts in a file.

#include <functional>
#include <vector>

#include "nibble/core/data/dataset.h"
#include "nibble/core/models/decoder.h"

namespace nibble {

/// What the score head says of one text, by label.
std::vector<float> last_scores(Decoder& model, const Sample& text, const StepContext& step, int32_t pad_id);

/// Scores of each record of options.train, in order, by label: of chosen and rejected, or of the one text. Nothing is
/// cut. pad_id: see ObjectiveOptions::pad_id. on_data: called with the texts before they are scored. Throws
/// NumericError where a score is not finite.
std::vector<std::vector<std::vector<float>>> text_scores(Decoder& model, DataOptions options, const Encoder& encoder,
                                                         const StepContext& step, int32_t pad_id,
                                                         const std::function<void(const Dataset&)>& on_data = {});

}  // namespace nibble
