#include "nibble/core/models/generation/generate.h"

#include <algorithm>

namespace nibble {

void check_prompt(const DecoderConfig& config, std::span<const int32_t> prompt) {
  if (prompt.empty()) throw InputError("prompt", "has no tokens", "give at least one");
  if (static_cast<int64_t>(prompt.size()) > text_limit(config)) {
    throw InputError("prompt",
                     "has " + std::to_string(prompt.size()) + " tokens, the model holds " +
                         std::to_string(text_limit(config)) + " positions",
                     "shorten it");
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= config.vocab_size) {
      throw InputError(
          "prompt token " + std::to_string(i),
          "id " + std::to_string(prompt[i]) + " is outside the vocabulary of " + std::to_string(config.vocab_size),
          "use the model's own tokenizer");
    }
  }
}

// ALiBi has no end, and dynamic rope stretches to `factor` times its length.
int64_t text_limit(const DecoderConfig& config) {
  if (config.alibi != Alibi::none) return config.position_limit();
  double stretch = 1;
  for (const RopeConfig& rope : config.rope) {
    if (rope.scaling == RopeScaling::dynamic) stretch = std::max(stretch, rope.factor);
  }
  const double length = static_cast<double>(config.max_positions) * stretch;
  return length < 1e9 ? static_cast<int64_t>(length) : config.position_limit();
}

namespace {

// Fills `made` with what follows each of `prompts`.
void continue_together(const Decoder& decoder, const NextLogits& next_logits, std::span<const Prompt> prompts,
                       const GenerateOptions& options, const StepContext& step,
                       const std::function<bool(size_t, int32_t)>& on_token, std::span<std::vector<int32_t>> result) {
  const DecoderConfig& config = decoder.config();
  const size_t count = prompts.size();
  KvCache cache = decoder.make_cache(step, static_cast<int64_t>(count));
  std::vector<bool> ended(count);
  const auto position = [&](size_t i) { return static_cast<int64_t>(prompts[i].ids.size() + result[i].size()); };
  while (true) {
    std::vector<int64_t> sequences;
    std::vector<Sample> next;
    for (size_t i = 0; i < count; ++i) {
      if (ended[i] || static_cast<int64_t>(result[i].size()) >= prompts[i].max_new_tokens) continue;
      if (position(i) >= text_limit(config)) continue;
      const auto sequence = static_cast<int64_t>(i);
      if (!config.cache_holds(cache.length(sequence), position(i))) cache.forget(sequence);
      sequences.push_back(sequence);
      Sample& sample = next.emplace_back();
      if (cache.length(sequence) > 0) {
        sample.ids = {result[i].back()};
      } else {
        sample.ids = prompts[i].ids;
        sample.ids.insert(sample.ids.end(), result[i].begin(), result[i].end());
      }
    }
    if (next.empty()) return;
    Batch batch = make_batch(next, step.pool());
    batch.sequences = sequences;
    const Tensor logits = next_logits(batch, cache).to(step.pool().host());
    const auto width = static_cast<size_t>(logits.dim(1));
    for (size_t row = 0; row < sequences.size(); ++row) {
      const auto i = static_cast<size_t>(sequences[row]);
      const int32_t id = sample_token(logits.span<const float>().subspan(row * width, width), options.sampling,
                                      position(i), prompts[i].sequence);
      ended[i] = std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end();
      if (ended[i]) continue;
      result[i].push_back(id);
      ended[i] = !on_token(i, id);
    }
  }
}

}  // namespace

std::vector<std::vector<int32_t>> generate(const Decoder& decoder, const NextLogits& next_logits,
                                           std::span<const Prompt> prompts, const GenerateOptions& options,
                                           const StepContext& step,
                                           const std::function<bool(size_t, int32_t)>& on_token) {
  check(options.sampling);
  for (const Prompt& prompt : prompts) check_prompt(decoder.config(), prompt.ids);
  std::vector<std::vector<int32_t>> result(prompts.size());
  for (size_t begin = 0, end = 0; begin < prompts.size(); begin = end) {
    for (int64_t tokens = 0; end < prompts.size(); ++end) {
      tokens += static_cast<int64_t>(prompts[end].ids.size());
      if (end > begin && tokens > options.tokens_together) break;
    }
    const auto in_order = [&](size_t i, int32_t id) { return !on_token || on_token(begin + i, id); };
    continue_together(decoder, next_logits, prompts.subspan(begin, end - begin), options, step, in_order,
                      std::span(result).subspan(begin, end - begin));
  }
  return result;
}

std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt, const GenerateOptions& options,
                              const StepContext& step, const std::function<bool(int32_t)>& on_token) {
  if (options.max_new_tokens < 0) throw UsageError("max_new_tokens must be 0 or positive");
  const auto next = [&](const Batch& batch, KvCache& cache) { return decoder.next_logits(batch, step, cache); };
  const Prompt only{.ids = {prompt.begin(), prompt.end()}, .max_new_tokens = options.max_new_tokens};
  return generate(decoder, next, {&only, 1}, options, step,
                  [&](size_t, int32_t id) { return !on_token || on_token(id); })
      .front();
}

}  // namespace nibble
