#pragma once
// The cache of a mixer that is made of several.

#include <vector>

#include "nibble/core/nn/mixers/mixer.h"

namespace nibble {

struct PartCaches final : MixerCache {
  std::vector<std::unique_ptr<MixerCache>> parts;

  void reserve(int64_t length) override {
    for (const auto& part : parts) part->reserve(length);
  }
  void copy(int64_t from, int64_t to, int64_t length) override {
    for (const auto& part : parts) part->copy(from, to, length);
  }
  void forget(int64_t sequence) override {
    for (const auto& part : parts) part->forget(sequence);
  }
};

}  // namespace nibble
