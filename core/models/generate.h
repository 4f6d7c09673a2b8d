#pragma once
// Text from a Decoder, one token at a time with a KV cache.

#include <functional>
#include <span>
#include <vector>

#include "nibble/core/models/decoder.h"
#include "nibble/core/models/sampler.h"

namespace nibble {

/// The longest text the model was made for, in tokens.
int64_t text_limit(const DecoderConfig& config);

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  /// Generation ends before any of these; usually DecoderConfig::eos_ids, empty = never.
  std::vector<int32_t> stop_ids;
};

/// Logits [1, V] f32 of the last token of a batch whose document continues the cached one: Decoder::next_logits, or
/// what several ranks do together instead, each with the same result.
using NextLogits = std::function<Tensor(const Batch& batch, KvCache& cache)>;

/// The ids that follow `prompt` (without it, and without the stop id). on_token, if given, is called with each id as it
/// is chosen; returning false ends generation after that id. Ends at the longest text the model was made for.
/// Throws InputError for an empty prompt, one longer than that, or an id outside the
/// vocabulary.
std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt, const GenerateOptions& options,
                              const StepContext& step, const std::function<bool(int32_t)>& on_token = {});
std::vector<int32_t> generate(const Decoder& decoder, const NextLogits& next_logits, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const StepContext& step,
                              const std::function<bool(int32_t)>& on_token = {});

}  // namespace nibble
