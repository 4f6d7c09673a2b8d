#pragma once
#include <functional>
#include <string>

#include "nibble/core/comm/communicator.h"

namespace nibble {

/// A rank's part in an exchange: every rank has what all had; every rank has a block of each; another rank has its own.
enum class CommKind : uint8_t { gather, scatter, send };

/// One rank of a plan, without the others: what it sends and receives is counted (CommSettings::traffic), and every
/// call returns at once. What the host reads is as if all ranks had what this one has.
class MetaComm final : public Communicator {
 public:
  /// Gets every operation with its bytes, those that stay where they are included.
  using Counter = std::function<void(const std::string& operation, CommKind kind, double bytes)>;
  MetaComm(int rank, int size, Counter counter = {}) : rank_(rank), size_(size), counter_(std::move(counter)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  /// Throws CommError with `reason`.
  [[noreturn]] void abort(int exit_code, std::string_view reason) override;

  /// While it lives a plan's rank runs one of several pieces of an exchange, and counts all of them as one message.
  class Piece {
   public:
    /// Of other ranks nothing. share: of the whole.
    Piece(Communicator& ranks, double share);
    ~Piece();
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

   private:
    MetaComm* const ranks_;
  };

 private:
  std::unique_ptr<CommRequest> do_start_all_gather(const std::string& operation, const Tensor& part, Tensor& out,
                                                   std::span<const size_t> bounds) override;
  void do_all_to_all(const std::string& operation, const Tensor& send, std::span<const size_t> send_bounds,
                     Tensor& receive, std::span<const size_t> receive_bounds) override;
  void do_broadcast(const std::string&, Tensor&, int) override {}
  void do_send(const std::string& operation, const Tensor& value, int) override {
    count(operation, CommKind::send, value);
  }
  void do_receive(const std::string&, Tensor&, int) override {}
  /// A rank alone does not know what the others say: groups are made by whoever plans them.
  std::unique_ptr<Communicator> do_split(int color, int key) override;

  void count(const std::string& operation, CommKind kind, const Tensor& of) const {
    if (counter_ && size_ > 1) counter_(operation, kind, static_cast<double>(of.bytes()) / share_);
  }

  int rank_, size_;
  Counter counter_;
  double share_ = 1;
};

}  // namespace nibble
