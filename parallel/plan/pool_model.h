#pragma once
// A MemoryPool without memory: the same books, kept while a plan walks through what a step allocates and releases.

#include <array>
#include <cstdint>
#include <memory>

#include "nibble/core/tensor/pool_books.h"

namespace nibble {

/// What memory is held for.
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

class PoolModel {
 public:
  /// budget: as MemoryPool.
  explicit PoolModel(int64_t budget = 0) : state_(std::make_shared<State>(budget)) {}

  /// A block that is held as long as the value lives; an empty one holds nothing.
  struct Block;
  using Held = std::shared_ptr<const Block>;
  [[nodiscard]] Held hold(MemoryUse use, int64_t bytes);
  /// Mapped weights, resident as long as the value lives; they are not the pool's.
  [[nodiscard]] Held map(int64_t bytes);

  /// MemoryPool::trim()
  void trim() { state_->books.trim(); }

  /// What was held when most was resident.
  const MemorySplit& most_resident() const { return state_->most; }
  /// Of it, mapped.
  int64_t mapped_when_most() const { return state_->mapped_when_most; }
  /// Largest sum of live blocks: MemoryPool::peak().
  int64_t peak() const { return static_cast<int64_t>(state_->books.peak()); }
  /// Whether every block fitted the budget.
  bool fitted() const { return state_->fitted; }

 private:
  struct State {
    explicit State(int64_t budget) : books(static_cast<size_t>(budget)) {}
    uintptr_t take(size_t size);
    void note();

    PoolBooks books;
    uintptr_t end = PoolBooks::kHugePage;  // of the segments so far, which are only addresses
    MemorySplit now, most;
    int64_t mapped = 0, mapped_when_most = 0;
    int64_t most_bytes = 0;
    bool fitted = true;
  };
  std::shared_ptr<State> state_;
};

struct PoolModel::Block {
  std::shared_ptr<State> owner;
  MemoryUse use = MemoryUse::activations;
  int64_t bytes = 0;      ///< asked for
  uintptr_t address = 0;  ///< in the books; 0: mapped from a file

  Block(std::shared_ptr<State> from, MemoryUse what, int64_t size) : owner(std::move(from)), use(what), bytes(size) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();
  int64_t resident() const;
};

}  // namespace nibble
