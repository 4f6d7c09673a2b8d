#include <cstring>
#include <string>

#include "nibble/core/comm/communicator.h"

namespace nibble {

namespace {

void copy(const std::string& operation, const Tensor& from, Tensor& to) {
  NIBBLE_CHECK(from.bytes() == to.bytes(), operation + ": sizes differ");
  if (from.bytes() > 0 && from.raw() != to.raw()) std::memcpy(to.mutable_raw(), from.raw(), from.bytes());
}

class Complete final : public CommRequest {
 public:
  bool done() override { return true; }
  void wait() override {}
};

}  // namespace

std::unique_ptr<CommRequest> SelfComm::do_start_all_gather(const std::string& operation, const Tensor& part,
                                                           Tensor& out, std::span<const size_t>) {
  copy(operation, part, out);
  return std::make_unique<Complete>();
}

void SelfComm::do_all_to_all(const std::string& operation, const Tensor& send, std::span<const size_t>, Tensor& receive,
                             std::span<const size_t>) {
  copy(operation, send, receive);
}

void SelfComm::do_send(const std::string& operation, const Tensor&, int to) {
  throw CommError(operation, "no rank " + std::to_string(to) + " in a run with one rank");
}

void SelfComm::do_receive(const std::string& operation, Tensor&, int from) {
  throw CommError(operation, "no rank " + std::to_string(from) + " in a run with one rank");
}

void SelfComm::abort(int, std::string_view reason) { throw CommError("", std::string(reason)); }

std::unique_ptr<Communicator> SelfComm::do_split(int, int) { return std::make_unique<SelfComm>(); }

}  // namespace nibble
