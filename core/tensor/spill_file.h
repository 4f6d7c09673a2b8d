#pragma once
// Tensors that wait in a file: a thread writes their bytes out and reads them back before they are needed.

#include <memory>
#include <string>
#include <vector>

#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// A file without a name, so that nothing of it is left however the process ends, and the thread that writes and reads
/// it. On a device without bytes there are neither: what is on its way is there with the next call that waits for it.
/// What is put is written while the caller goes on; its blocks go back to their pool after that. One put is on its
/// way at a time: the next waits for it. The kernel is asked to write to the device at once, and keeps what it likes of
/// the file in its cache, which is not memory of this process.
///
/// Whatever fails on the way (a full disk, an I/O error) is an IoError that names the directory, thrown by the next
/// call. Calls are made by one thread.
class SpillFile {
 public:
  class Spilled;

  /// In `directory`, with room for `bytes` reserved; it grows beyond that. Tensors that come back take their blocks
  /// from `pool`. Throws IoError when the directory cannot be written to or has less room.
  SpillFile(const std::string& directory, int64_t bytes, MemoryPool& pool);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Takes tensors away from whoever moves them here; tensors that share bytes are written once and share them again
  /// when they come back. stays: they are likely to be wanted before the next put() and wait for it in memory.
  std::unique_ptr<Spilled> put(std::vector<Tensor> tensors, bool stays);
  /// Starts to write what stays. For a caller that is about to compute what it will put next.
  void write_what_stays();

  /// Largest size the file had so far, and all bytes written to it.
  int64_t file_bytes() const;
  int64_t written_bytes() const;
  /// Whether the file lies in memory after all (tmpfs).
  bool in_memory() const;

 private:
  struct Core;
  std::shared_ptr<Core> core_;
};

/// Tensors in the file, or on their way. Destroyed, it gives its place in the file free.
class SpillFile::Spilled {
 public:
  struct State;
  Spilled(std::shared_ptr<Core> core, std::shared_ptr<State> state);
  ~Spilled();
  Spilled(const Spilled&) = delete;
  Spilled& operator=(const Spilled&) = delete;

  /// Starts to read them, into blocks that are held from now on. Again: nothing.
  void fetch();
  /// The tensors in the order put() had them, with the bytes they had; waits for them. Once.
  std::vector<Tensor> take();

 private:
  std::shared_ptr<Core> core_;
  std::shared_ptr<State> state_;
};

}  // namespace nibble
