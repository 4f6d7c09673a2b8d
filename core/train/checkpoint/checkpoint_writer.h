#pragma once
// Checkpoints written while training goes on.

#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "nibble/core/tensor/memory_pool.h"
#include "nibble/core/train/checkpoint/checkpoint.h"

namespace nibble {

/// Copies what is to be saved and writes the copy on a thread of its own (save_checkpoint). One checkpoint is under way
/// at a time. The copy is kept between saves, so that memory does not grow with their number. Its functions are called
/// from one thread.
class CheckpointWriter {
 public:
  /// Bytes of a copy at most: 1 GiB. More is written by start() itself, from the tensors as they are.
  static constexpr uint64_t kLargestCopy = uint64_t{1} << 30;

  /// make_room: see save_in_room (checkpoint_room.h); it runs where the writing does.
  CheckpointWriter(
      std::filesystem::path directory, MemoryPool& pool, std::function<bool()> make_room = [] { return false; });
  /// Waits for what is under way.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// How a save ended.
  struct Outcome {
    int64_t step = 0;
    std::filesystem::path path;
    std::string failure;  ///< what() of the error; empty: published at `path`
    int exit_code = 0;    ///< of the error: 4, or 5 for a value that is not finite, which is never published
  };

  /// Begins to write; nothing may be under way. `first` runs before, where the writing runs (syncing a log that must be
  /// as far as the checkpoint); its error is the save's.
  /// `last` runs there when the writing has ended, and gets whether a checkpoint is published. behind = false:
  /// nothing trains meanwhile, so start() writes the tensors themselves and takes no memory for a copy.
  void start(const TrainingState& state, const std::vector<CheckpointSlice>& trainable,
             const std::vector<CheckpointSlice>& optimizer, std::function<void()> first = {},
             std::function<void(bool published)> last = {}, bool behind = true);

  /// What start() does first where nothing keeps it from writing behind the training: copies what is to be saved. False
  /// where that is more than kLargestCopy.
  bool copy(const std::vector<CheckpointSlice>& trainable, const std::vector<CheckpointSlice>& optimizer);

  /// Whether a save is under way whose outcome nobody has taken yet.
  bool under_way() const { return outcome_.valid(); }
  /// Whether outcome() would return at once.
  bool done() const;
  /// Waits for the save under way. Throws what is no Error.
  Outcome outcome();

 private:
  /// Values of `slices` into tensors of our own.
  void copy(const std::vector<CheckpointSlice>& slices, std::vector<Tensor>& kept);

  std::filesystem::path directory_;
  MemoryPool& pool_;
  std::function<bool()> make_room_;
  std::vector<Tensor> trainable_, optimizer_;
  std::future<Outcome> outcome_;
};

/// Bytes of all slices together.
uint64_t bytes_of(const std::vector<CheckpointSlice>& slices);

}  // namespace nibble
