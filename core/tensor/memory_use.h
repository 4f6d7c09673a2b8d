#pragma once
// What memory is held for.

#include <array>
#include <cstddef>
#include <cstdint>

namespace nibble {

enum class MemoryUse : uint8_t {
  base,         ///< weights that are not adapters', as they are held between steps
  adapters,     ///< values of adapters
  gradients,    ///< and their partial sums
  optimizer,    ///< its state
  activations,  ///< kept for the backward pass, and what passes compute on
  gathered,     ///< blocks of weights and gradients that are whole while they are used
  logits,       ///< of one chunk of the head, with what goes with them
  workspace,    ///< buffers of kernels, communication and loading
  checkpoint,   ///< copies that a checkpoint is written from behind the training
  program,      ///< the process itself, tokenizer, data
  margin,       ///< of the pool's pages, what no block fills
};
constexpr size_t kMemoryUses = 11;

/// "base", "adapters", ...
const char* memory_use_name(MemoryUse use);

/// Bytes by use.
struct MemorySplit {
  std::array<int64_t, kMemoryUses> bytes{};

  int64_t& operator[](MemoryUse use) { return bytes[static_cast<size_t>(use)]; }
  int64_t operator[](MemoryUse use) const { return bytes[static_cast<size_t>(use)]; }
  int64_t total() const;
};

}  // namespace nibble
