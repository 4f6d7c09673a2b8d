#include "nibble/core/models/generate.h"

#include <algorithm>

namespace nibble {

namespace {

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

}  // namespace

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

std::vector<int32_t> generate(Decoder& decoder, std::span<const int32_t> prompt, const GenerateOptions& options,
                              const StepContext& step, const std::function<bool(int32_t)>& on_token) {
  const auto next = [&](const Batch& batch, KvCache& cache) { return decoder.next_logits(batch, step, cache); };
  return generate(decoder, next, prompt, options, step, on_token);
}

std::vector<int32_t> generate(const Decoder& decoder, const NextLogits& next_logits, std::span<const int32_t> prompt,
                              const GenerateOptions& options, const StepContext& step,
                              const std::function<bool(int32_t)>& on_token) {
  const DecoderConfig& config = decoder.config();
  check(options.sampling);
  check_prompt(config, prompt);
  KvCache cache = decoder.make_cache(step);
  std::vector<int32_t> made;
  Sample next{.ids = {prompt.begin(), prompt.end()}, .labels = {}};
  while (static_cast<int64_t>(made.size()) < options.max_new_tokens) {
    const int64_t position = static_cast<int64_t>(prompt.size() + made.size());
    if (position >= text_limit(config)) break;
    if (!config.cache_holds(cache.length(), position)) {
      cache.truncate(0);
      next.ids.assign(prompt.begin(), prompt.end());
      next.ids.insert(next.ids.end(), made.begin(), made.end());
    }
    const Tensor logits = next_logits(make_batch({&next, 1}, step.pool()), cache);
    const int32_t id = sample_token(logits.to(step.pool().host()).span<const float>(), options.sampling, position);
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end()) break;
    made.push_back(id);
    if (on_token && !on_token(id)) break;
    next.ids = {id};
  }
  return made;
}

}  // namespace nibble
