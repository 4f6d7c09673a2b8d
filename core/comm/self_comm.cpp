#include <cstring>
#include <string>

#include "nibble/core/comm/communicator.h"

namespace nibble {

namespace {

void copy(std::string_view operation, const Tensor& from, Tensor& to) {
  NIBBLE_CHECK(from.bytes() == to.bytes(), std::string(operation) + ": sizes differ");
  if (from.bytes() > 0 && from.raw() != to.raw()) std::memcpy(to.mutable_raw(), from.raw(), from.bytes());
}

}  // namespace

void SelfComm::all_gather(std::string_view operation, const Tensor& part, Tensor& out) { copy(operation, part, out); }

void SelfComm::all_to_all(std::string_view operation, const Tensor& send, Tensor& receive) {
  copy(operation, send, receive);
}

void SelfComm::send(std::string_view operation, const Tensor&, int to) {
  throw CommError(std::string(operation), "no rank " + std::to_string(to) + " in a run with one rank");
}

void SelfComm::receive(std::string_view operation, Tensor&, int from) {
  throw CommError(std::string(operation), "no rank " + std::to_string(from) + " in a run with one rank");
}

void SelfComm::abort(int, std::string_view reason) { throw CommError("", std::string(reason)); }

std::unique_ptr<Communicator> SelfComm::split(int, int) { return std::make_unique<SelfComm>(); }

}  // namespace nibble
