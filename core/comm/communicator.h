#pragma once
// Communication between ranks. One small interface over existing engines; SelfComm runs the same code with one rank.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/tensor/tensor.h"

namespace nibble {

/// What the operations of one name have moved on this rank. Bytes between a rank and itself are not counted.
struct CommTraffic {
  int64_t calls = 0;
  int64_t sent = 0, received = 0;  ///< bytes
};

/// What a communicator and all that were split from it share.
struct CommSettings {
  double timeout_seconds = 600;  ///< deadline of every operation
  uint64_t delay_seed = 0;       ///< tests: sleeps a random time of up to max_delay_us before every operation
  int max_delay_us = 0;
  /// Before every collective the ranks compare its name and size; a difference is a CommError naming both.
  bool check_order = false;
  std::map<std::string, CommTraffic, std::less<>> traffic;  ///< by name of the operation
  uint64_t operations = 0;                                  ///< begun so far
};

/// An operation under way. The tensors it was given are kept alive; destroying it waits for the end.
class CommRequest {
 public:
  virtual ~CommRequest() = default;
  /// Pushes the operation on; whether it is complete.
  virtual bool done() = 0;
  /// Returns when it is complete; throws CommError at the deadline.
  virtual void wait() = 0;
};

/// Collective and point-to-point operations of a group of ranks. Every call carries the name of the operation (for the
/// message that names a silent rank) and obeys settings().timeout_seconds. All throw CommError when a peer is lost or
/// silent. Collectives are called by all ranks of the group in the same order. Sums of gradients are made from
/// all_to_all plus a fixed-order f32 sum, never by an engine's reduction.
///
/// `bounds` [size + 1] split a tensor's bytes into the blocks of the ranks: block i is [bounds[i], bounds[i + 1]).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "rank 2 on host alpha"
  virtual std::string describe(int rank) const;

  /// out = the parts of all ranks in rank order. Without bounds all parts have equal bytes.
  void all_gather(std::string_view operation, const Tensor& part, Tensor& out);
  void all_gather(std::string_view operation, const Tensor& part, Tensor& out, std::span<const size_t> bounds);
  /// The same, not waited for: neither tensor may be touched before the request is complete.
  std::unique_ptr<CommRequest> start_all_gather(std::string_view operation, const Tensor& part, Tensor& out,
                                                std::span<const size_t> bounds);
  /// Block i of `send` goes to rank i; block j of `receive` comes from rank j. Without bounds all blocks are equal.
  void all_to_all(std::string_view operation, const Tensor& send, Tensor& receive);
  void all_to_all(std::string_view operation, const Tensor& send, std::span<const size_t> send_bounds, Tensor& receive,
                  std::span<const size_t> receive_bounds);
  /// Sum over ranks of an f64 tensor (losses, token counts, flags), in rank order, same bits everywhere.
  void all_reduce_sum(std::string_view operation, Tensor& values);
  /// The same of one number.
  double all_reduce_sum(std::string_view operation, double value);
  void broadcast(std::string_view operation, Tensor& value, int root);
  /// The text of rank `root`.
  std::string broadcast_text(std::string_view operation, const std::string& text, int root);
  /// Starts to send and returns: the bytes must not change until the receiver has them.
  void send(std::string_view operation, const Tensor& value, int to);
  void receive(std::string_view operation, Tensor& value, int from);
  void barrier(std::string_view operation);
  /// Ends every rank of the job with `exit_code`.
  [[noreturn]] virtual void abort(int exit_code, std::string_view reason) = 0;
  /// Ranks with equal `color` form a new communicator, ordered by `key`. It shares this one's settings.
  std::unique_ptr<Communicator> split(int color, int key);

  CommSettings& settings() const { return *settings_; }

 protected:
  Communicator() : settings_(std::make_shared<CommSettings>()) {}

 private:
  virtual std::unique_ptr<CommRequest> do_start_all_gather(const std::string& operation, const Tensor& part,
                                                           Tensor& out, std::span<const size_t> bounds) = 0;
  virtual void do_all_to_all(const std::string& operation, const Tensor& send, std::span<const size_t> send_bounds,
                             Tensor& receive, std::span<const size_t> receive_bounds) = 0;
  virtual void do_broadcast(const std::string& operation, Tensor& value, int root) = 0;
  virtual void do_send(const std::string& operation, const Tensor& value, int to) = 0;
  virtual void do_receive(const std::string& operation, Tensor& value, int from) = 0;
  virtual std::unique_ptr<Communicator> do_split(int color, int key) = 0;

  /// Delay, order check, count.
  void begin(std::string_view operation, int64_t sent, int64_t received);
  void compare_order(std::string_view operation, size_t bytes);
  std::vector<size_t> equal_bounds(size_t bytes) const;

  std::shared_ptr<CommSettings> settings_;
  MemoryPool numbers_;  // of sums and orders, a few bytes each: a pool for every one of them costs more than itself
};

/// The communicator of a single rank.
class SelfComm final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  /// Throws CommError with `reason`.
  [[noreturn]] void abort(int exit_code, std::string_view reason) override;

 private:
  std::unique_ptr<CommRequest> do_start_all_gather(const std::string& operation, const Tensor& part, Tensor& out,
                                                   std::span<const size_t> bounds) override;
  void do_all_to_all(const std::string& operation, const Tensor& send, std::span<const size_t> send_bounds,
                     Tensor& receive, std::span<const size_t> receive_bounds) override;
  void do_broadcast(const std::string&, Tensor&, int) override {}
  /// A single rank has nobody to talk to: send and receive throw CommError.
  void do_send(const std::string& operation, const Tensor& value, int to) override;
  void do_receive(const std::string& operation, Tensor& value, int from) override;
  std::unique_ptr<Communicator> do_split(int color, int key) override;
};

}  // namespace nibble
