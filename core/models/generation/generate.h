#pragma once
// Text from a Decoder, one token of every sequence at a time with a KV cache.

#include <functional>
#include <span>
#include <vector>

#include "nibble/core/models/decoder.h"
#include "nibble/core/models/generation/sampler.h"

namespace nibble {

/// The longest text the model was made for, in tokens.
int64_t text_limit(const DecoderConfig& config);

/// Throws InputError for an empty prompt, one longer than the text limit, or an id outside the vocabulary.
void check_prompt(const DecoderConfig& config, std::span<const int32_t> prompt);

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  /// Generation ends before any of these; usually DecoderConfig::eos_ids, empty = never.
  std::vector<int32_t> stop_ids;
  /// Prompts are continued together while they have no more tokens than this: it bounds the memory of their first pass
  /// and of their cache. A longer one is continued alone.
  int64_t tokens_together = 512;
};

/// A text that is continued.
struct Prompt {
  std::vector<int32_t> ids;
  int64_t max_new_tokens = 128;
  int64_t sequence = 0;  ///< keys its sampling: see sample_token
};

/// Logits [documents, V] f32 of the last tokens of a batch whose documents continue cached ones: Decoder::next_logits,
/// or what several ranks do together instead, each with the same result.
using NextLogits = std::function<Tensor(const Batch& batch, KvCache& cache)>;

/// The ids that follow `prompt` (without it, and without the stop id). on_token, if given, is called with each id as it
/// is chosen; returning false ends generation after that id. Ends at the longest text the model was made for.
/// Throws InputError for an empty prompt, one longer than that, or an id outside the vocabulary; UsageError for a
/// negative max_new_tokens.
std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt, const GenerateOptions& options,
                              const StepContext& step, const std::function<bool(int32_t)>& on_token = {});

/// The same for several prompts, each up to its own max_new_tokens: one pass gives a token of every text that goes on.
/// on_token: with the number of the prompt. What a prompt gives depends on the others by roundings alone: products of
/// one row, of 2 to 4 and of more add in different orders (ops/gemm.h).
std::vector<std::vector<int32_t>> generate(const Decoder& decoder, const NextLogits& next_logits,
                                           std::span<const Prompt> prompts, const GenerateOptions& options,
                                           const StepContext& step,
                                           const std::function<bool(size_t, int32_t)>& on_token = {});

}  // namespace nibble
