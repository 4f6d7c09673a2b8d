#include "nibble/parallel/comm/meta_comm.h"

#include <algorithm>
#include <cstring>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

class Complete final : public CommRequest {
 public:
  bool done() override { return true; }
  void wait() override {}
};

}  // namespace

MetaComm::Piece::Piece(Communicator& ranks, double share)
    : ranks_(share < 1 ? dynamic_cast<MetaComm*>(&ranks) : nullptr) {
  if (ranks_) ranks_->share_ = share;
}
MetaComm::Piece::~Piece() {
  if (ranks_) ranks_->share_ = 1;
}

std::unique_ptr<CommRequest> MetaComm::do_start_all_gather(const std::string& operation, const Tensor& part,
                                                           Tensor& out, std::span<const size_t> bounds) {
  count(operation, CommKind::gather, out);
  for (size_t r = 0; out.device().host() && part.bytes() > 0 && r + 1 < bounds.size(); ++r) {
    std::memcpy(out.mutable_raw() + bounds[r], part.raw(), std::min(part.bytes(), bounds[r + 1] - bounds[r]));
  }
  return std::make_unique<Complete>();
}

void MetaComm::do_all_to_all(const std::string& operation, const Tensor& send, std::span<const size_t> send_bounds,
                             Tensor& receive, std::span<const size_t> receive_bounds) {
  count(operation, CommKind::scatter, send);
  const auto me = static_cast<size_t>(rank_);
  const size_t kept = send_bounds[me + 1] - send_bounds[me];
  for (size_t r = 0; receive.device().host() && kept > 0 && r + 1 < receive_bounds.size(); ++r) {
    std::memcpy(receive.mutable_raw() + receive_bounds[r], send.raw() + send_bounds[me],
                std::min(kept, receive_bounds[r + 1] - receive_bounds[r]));
  }
}

std::unique_ptr<Communicator> MetaComm::do_split(int, int) {
  throw CommError("", "a planned rank has no others to ask");
}

void MetaComm::abort(int, std::string_view reason) { throw CommError("", std::string(reason)); }

}  // namespace nibble
