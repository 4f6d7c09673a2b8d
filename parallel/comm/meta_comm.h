#pragma once
#include <string>

#include "nibble/core/comm/communicator.h"

namespace nibble {

/// One rank of a plan, without the others: what it sends and receives is counted (CommSettings::traffic), and every
/// call returns at once. What the host reads is as if all ranks had what this one has.
class MetaComm final : public Communicator {
 public:
  MetaComm(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  /// Throws CommError with `reason`.
  [[noreturn]] void abort(int exit_code, std::string_view reason) override;

 private:
  std::unique_ptr<CommRequest> do_start_all_gather(const std::string& operation, const Tensor& part, Tensor& out,
                                                   std::span<const size_t> bounds) override;
  void do_all_to_all(const std::string&, const Tensor&, std::span<const size_t>, Tensor&,
                     std::span<const size_t>) override {}
  void do_broadcast(const std::string&, Tensor&, int) override {}
  void do_send(const std::string&, const Tensor&, int) override {}
  void do_receive(const std::string&, Tensor&, int) override {}
  /// A rank alone does not know what the others say: groups are made by whoever plans them.
  std::unique_ptr<Communicator> do_split(int color, int key) override;

  int rank_, size_;
};

}  // namespace nibble
