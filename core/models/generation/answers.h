#pragma once
// Several answers to each of several prompts, sampled together.

#include <functional>
#include <span>
#include <vector>

#include "nibble/core/models/generation/generate.h"

namespace nibble {

/// A prompt of which several answers are wanted.
struct AnsweredPrompt {
  std::vector<int32_t> ids;
  /// One answer for each: keys its sampling (sample_token), so that it depends on nothing but prompt, model, options
  /// and this.
  std::vector<int64_t> sequences;
};

struct AnswerOptions {
  SamplingOptions sampling;
  int64_t max_new_tokens = 256;
  std::vector<int32_t> stop_ids;  ///< any of them ends an answer, and belongs to it
  /// Whether the answer so far has come to its end otherwise; may be empty.
  std::function<bool(std::span<const int32_t> answer)> ends;
  int64_t together = 64;        ///< answers that are continued in one pass; the next begins where one has ended
  int64_t prompt_tokens = 512;  ///< of prompts in one pass, or one longer prompt
};

struct Answer {
  size_t prompt = 0;
  int64_t sequence = 0;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;  ///< of its tokens, of logits / temperature before top-k, top-p and min-p
  bool truncated = false;        ///< max_new_tokens, or the longest text the model was made for, came first
};

/// Calls use(answer) as they end and go_on() before every pass; where that says false it is left. A prompt is computed
/// once for all of its answers. What an answer is does not depend on the others, on `together` or on the number of
/// threads: passes have documents enough that products add in one order (ops/gemm.h); with experts, whose products have
/// rows of few tokens, that holds up to roundings. On a device without bytes answers have any tokens, max_new_tokens of
/// them. Throws InputError for a prompt that the model cannot hold.
void sample_answers(const Decoder& decoder, const NextLogits& next_logits, std::span<const AnsweredPrompt> prompts,
                    const AnswerOptions& options, const StepContext& step, const std::function<void(Answer)>& use,
                    const std::function<bool()>& go_on);

}  // namespace nibble
