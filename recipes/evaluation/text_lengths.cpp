#include "nibble/recipes/evaluation/text_lengths.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/models/generation/generate.h"

namespace nibble {

void check_text_lengths(const Dataset& dataset, const DecoderConfig& model, int64_t max_length,
                        const std::string& remedy, const std::function<void(const std::string&)>& tell,
                        const std::string& who) {
  const int64_t most = text_limit(model), positions = model.position_limit();
  const int64_t longest = std::min(dataset.report().longest, max_length);  // where nothing was split off
  if (longest <= std::min(most, positions)) return;
  dataset.for_each([&](int64_t i, const SampleInfo& sample) {
    const int64_t length = std::min<int64_t>(sample.length, max_length);
    if (length <= positions) return;
    throw InputError(
        dataset.place(i),
        "has " + std::to_string(length) + " tokens, " + who + " holds " + std::to_string(positions) + " positions",
        remedy);
  });
  tell("warning: the longest sample has " + std::to_string(longest) + " tokens, " + who + " was made for " +
       std::to_string(most) + " (max_position_embeddings); " + remedy);
}

}  // namespace nibble
