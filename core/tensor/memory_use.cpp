#include "nibble/core/tensor/memory_use.h"

#include <iterator>
#include <numeric>

namespace nibble {

const char* memory_use_name(MemoryUse use) {
  constexpr const char* kNames[] = {"base",   "adapters",  "gradients",  "optimizer", "activations", "gathered",
                                    "logits", "workspace", "checkpoint", "program",   "margin"};
  static_assert(std::size(kNames) == kMemoryUses);
  return kNames[static_cast<size_t>(use)];
}

int64_t MemorySplit::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

}  // namespace nibble
