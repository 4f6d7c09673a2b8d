#include "nibble/core/comm/communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "nibble/core/base/philox.h"

namespace nibble {

namespace {

// Name and size of a collective as the ranks compare it.
using OrderRecord = std::array<char, 64>;

OrderRecord order_record(std::string_view operation, size_t bytes) {
  OrderRecord record{};
  const std::string size = std::to_string(bytes);
  std::string text(operation.substr(0, 40));
  text += " of " + size + " bytes";
  std::copy_n(text.begin(), std::min(text.size(), record.size() - 1), record.begin());
  return record;
}

void check_bounds(std::string_view operation, std::span<const size_t> bounds, int size, const Tensor& whole) {
  NIBBLE_CHECK(bounds.size() == static_cast<size_t>(size) + 1 && bounds.front() == 0 && bounds.back() == whole.bytes(),
               std::string(operation) + ": bounds");
}

}  // namespace

std::string Communicator::describe(int rank) const { return "rank " + std::to_string(rank); }

std::vector<size_t> Communicator::equal_bounds(size_t bytes) const {
  const size_t ranks = static_cast<size_t>(size());
  NIBBLE_CHECK(bytes % ranks == 0, "blocks of equal size");
  std::vector<size_t> bounds(ranks + 1);
  for (size_t i = 0; i <= ranks; ++i) bounds[i] = bytes / ranks * i;
  return bounds;
}

void Communicator::compare_order(std::string_view operation, size_t bytes) {
  const OrderRecord mine = order_record(operation, bytes);
  const size_t record = mine.size(), ranks = static_cast<size_t>(size());
  const Tensor part = Tensor::from<uint8_t>(numbers_, {static_cast<int64_t>(record)},
                                            std::span(reinterpret_cast<const uint8_t*>(mine.data()), record));
  Tensor all = Tensor::empty(numbers_, {static_cast<int64_t>(ranks * record)}, DType::u8);
  do_start_all_gather("order of operations", part, all, equal_bounds(ranks * record))->wait();
  for (int other = 0; other < size(); ++other) {
    const char* theirs = reinterpret_cast<const char*>(all.raw()) + static_cast<size_t>(other) * record;
    if (std::memcmp(theirs, mine.data(), record) == 0) continue;
    throw CommError(describe(other), "calls \"" + std::string(theirs) + "\" where rank " + std::to_string(rank()) +
                                         " calls \"" + mine.data() + "\"");
  }
}

void Communicator::begin(std::string_view operation, int64_t sent, int64_t received) {
  CommSettings& settings = *settings_;
  if (settings.max_delay_us > 0) {
    PhiloxStream stream(settings.delay_seed, static_cast<uint32_t>(rank()), settings.operations);
    std::this_thread::sleep_for(
        std::chrono::microseconds(stream.next_below(static_cast<uint64_t>(settings.max_delay_us))));
  }
  ++settings.operations;
  auto found = settings.traffic.find(operation);
  if (found == settings.traffic.end()) found = settings.traffic.emplace(std::string(operation), CommTraffic{}).first;
  ++found->second.calls;
  found->second.sent += sent;
  found->second.received += received;
}

void Communicator::all_gather(std::string_view operation, const Tensor& part, Tensor& out) {
  all_gather(operation, part, out, equal_bounds(out.bytes()));
}

void Communicator::all_gather(std::string_view operation, const Tensor& part, Tensor& out,
                              std::span<const size_t> bounds) {
  start_all_gather(operation, part, out, bounds)->wait();
}

std::unique_ptr<CommRequest> Communicator::start_all_gather(std::string_view operation, const Tensor& part, Tensor& out,
                                                            std::span<const size_t> bounds) {
  check_bounds(operation, bounds, size(), out);
  const size_t me = static_cast<size_t>(rank()), mine = bounds[me + 1] - bounds[me];
  NIBBLE_CHECK(part.bytes() == mine, std::string(operation) + ": bytes of the part");
  begin(operation, static_cast<int64_t>(mine) * (size() - 1), static_cast<int64_t>(out.bytes() - mine));
  if (settings_->check_order && size() > 1) compare_order(operation, out.bytes());
  return do_start_all_gather(std::string(operation), part, out, bounds);
}

void Communicator::all_to_all(std::string_view operation, const Tensor& send, Tensor& receive) {
  all_to_all(operation, send, equal_bounds(send.bytes()), receive, equal_bounds(receive.bytes()));
}

void Communicator::all_to_all(std::string_view operation, const Tensor& send, std::span<const size_t> send_bounds,
                              Tensor& receive, std::span<const size_t> receive_bounds) {
  check_bounds(operation, send_bounds, size(), send);
  check_bounds(operation, receive_bounds, size(), receive);
  const size_t me = static_cast<size_t>(rank());
  const size_t kept = send_bounds[me + 1] - send_bounds[me];
  NIBBLE_CHECK(receive_bounds[me + 1] - receive_bounds[me] == kept, std::string(operation) + ": bytes of the blocks");
  begin(operation, static_cast<int64_t>(send.bytes() - kept), static_cast<int64_t>(receive.bytes() - kept));
  if (settings_->check_order && size() > 1) compare_order(operation, 0);
  do_all_to_all(std::string(operation), send, send_bounds, receive, receive_bounds);
}

void Communicator::all_reduce_sum(std::string_view operation, Tensor& values) {
  const size_t ranks = static_cast<size_t>(size()), count = static_cast<size_t>(values.numel());
  double* sums = values.data<double>();
  if (ranks == 1) return;
  Tensor all = Tensor::empty(numbers_, {static_cast<int64_t>(ranks * count)}, DType::f64);
  all_gather(operation, values, all);
  for (size_t i = 0; i < count; ++i) {
    sums[i] = 0;
    for (size_t r = 0; r < ranks; ++r) sums[i] += all.data<const double>()[r * count + i];
  }
}

double Communicator::all_reduce_sum(std::string_view operation, double value) {
  if (size() == 1) return value;
  Tensor one = Tensor::from<double>(numbers_, {1}, std::span<const double>(&value, 1));
  all_reduce_sum(operation, one);
  return one.data<const double>()[0];
}

void Communicator::broadcast(std::string_view operation, Tensor& value, int root) {
  const int64_t bytes = static_cast<int64_t>(value.bytes());
  begin(operation, rank() == root ? bytes * (size() - 1) : 0, rank() == root ? 0 : bytes);
  if (settings_->check_order && size() > 1) compare_order(operation, value.bytes());
  do_broadcast(std::string(operation), value, root);
}

std::string Communicator::broadcast_text(std::string_view operation, const std::string& text, int root) {
  if (size() == 1) return text;
  MemoryPool pool;
  const int64_t mine = static_cast<int64_t>(text.size());
  Tensor length = Tensor::from<int64_t>(pool, {1}, std::span(&mine, 1));
  broadcast(operation, length, root);
  Tensor bytes = Tensor::zeros(pool, {length.data<const int64_t>()[0]}, DType::u8);
  if (rank() == root && !text.empty()) std::memcpy(bytes.mutable_raw(), text.data(), text.size());
  broadcast(operation, bytes, root);
  return std::string(reinterpret_cast<const char*>(bytes.raw()), bytes.bytes());
}

void Communicator::send(std::string_view operation, const Tensor& value, int to) {
  begin(operation, static_cast<int64_t>(value.bytes()), 0);
  do_send(std::string(operation), value, to);
}

void Communicator::receive(std::string_view operation, Tensor& value, int from) {
  begin(operation, 0, static_cast<int64_t>(value.bytes()));
  do_receive(std::string(operation), value, from);
}

void Communicator::barrier(std::string_view operation) {
  if (size() == 1) return;
  const Tensor nothing = Tensor::empty(numbers_, {0}, DType::u8);
  Tensor out = nothing;
  all_gather(operation, nothing, out);
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  std::unique_ptr<Communicator> part = do_split(color, key);
  part->settings_ = settings_;
  return part;
}

}  // namespace nibble
