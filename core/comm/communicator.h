#pragma once
// Communication between ranks. One small interface over existing engines; SelfComm runs the same code with one rank.

#include <memory>
#include <string_view>

#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// Collective and point-to-point operations of a group of ranks. Every call carries the name of the operation (for the
/// message that names a silent rank) and obeys the deadline set on the communicator. All throw CommError when a peer is
/// lost or silent. Sums of gradients are made from all_to_all plus a fixed-order f32 sum, never by an engine's
/// reduction.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// out [size * bytes of part] = the parts of all ranks in rank order; parts have equal bytes.
  virtual void all_gather(std::string_view operation, const Tensor& part, Tensor& out) = 0;
  /// Row block i of `send` goes to rank i; row block j of `receive` comes from rank j; equal block bytes.
  virtual void all_to_all(std::string_view operation, const Tensor& send, Tensor& receive) = 0;
  /// Sum over ranks of an f64 tensor (losses, token counts, flags), in rank order, same bits everywhere.
  virtual void all_reduce_sum(std::string_view operation, Tensor& values) = 0;
  virtual void broadcast(std::string_view operation, Tensor& value, int root) = 0;
  virtual void send(std::string_view operation, const Tensor& value, int to) = 0;
  virtual void receive(std::string_view operation, Tensor& value, int from) = 0;
  virtual void barrier(std::string_view operation) = 0;
  /// Ends every rank of the job with `exit_code`.
  [[noreturn]] virtual void abort(int exit_code, std::string_view reason) = 0;
  /// Ranks with equal `color` form a new communicator, ordered by `key`.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
};

/// The communicator of a single rank.
class SelfComm final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_gather(std::string_view operation, const Tensor& part, Tensor& out) override;
  void all_to_all(std::string_view operation, const Tensor& send, Tensor& receive) override;
  void all_reduce_sum(std::string_view, Tensor&) override {}
  void broadcast(std::string_view, Tensor&, int) override {}
  /// A single rank has nobody to talk to: send and receive throw CommError.
  void send(std::string_view operation, const Tensor& value, int to) override;
  void receive(std::string_view operation, Tensor& value, int from) override;
  void barrier(std::string_view) override {}
  /// Throws CommError with `reason`.
  [[noreturn]] void abort(int exit_code, std::string_view reason) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
};

}  // namespace nibble
