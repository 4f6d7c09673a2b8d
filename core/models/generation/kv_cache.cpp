#include "nibble/core/models/generation/kv_cache.h"

#include <algorithm>

namespace nibble {

std::vector<Continued> KvCache::prepare(std::span<const ops::AttentionSpan> documents,
                                        std::span<const int64_t> sequences) {
  NIBBLE_CHECK(sequences.empty() || sequences.size() == documents.size(), "a sequence for each document");
  std::vector<Continued> continued;
  int64_t longest = 0;
  for (size_t i = 0; i < documents.size(); ++i) {
    const int64_t sequence = sequences.empty() ? static_cast<int64_t>(i) : sequences[i];
    NIBBLE_CHECK(continued.empty() || continued.back().sequence < sequence, "sequences in order, each once");
    continued.push_back({sequence, length(sequence)});
    longest = std::max(longest, length(sequence) + documents[i].q_end - documents[i].q_begin);
  }
  for (const std::unique_ptr<MixerCache>& layer : layers_) {
    if (layer) layer->reserve(longest);
  }
  return continued;
}

void KvCache::copy(int64_t from, int64_t to) {
  for (const std::unique_ptr<MixerCache>& layer : layers_) {
    if (layer) layer->copy(from, to, length(from));
  }
  lengths_.at(static_cast<size_t>(to)) = length(from);
}

void KvCache::forget(int64_t sequence) {
  for (const std::unique_ptr<MixerCache>& layer : layers_) {
    if (layer) layer->forget(sequence);
  }
  lengths_.at(static_cast<size_t>(sequence)) = 0;
}

void KvCache::advance(std::span<const ops::AttentionSpan> documents, std::span<const Continued> continued) {
  for (size_t i = 0; i < continued.size(); ++i) {
    lengths_[static_cast<size_t>(continued[i].sequence)] += documents[i].q_end - documents[i].q_begin;
  }
}

}  // namespace nibble
