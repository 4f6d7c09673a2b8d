#include "nibble/parallel/comm/thread_comm.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace nibble {

namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

Bytes bytes_of(const Tensor& tensor) {
  Bytes bytes(tensor.bytes());
  if (!bytes.empty()) tensor.device().copy(tensor.address(), bytes.data(), bytes.size());
  return bytes;
}

void put(const std::byte* from, size_t count, const Tensor& to, size_t begin = 0) {
  if (count > 0) to.device().copy(from, to.address() + begin, count);
}

// What threads of one process share, whatever group they are in.
struct Process {
  std::mutex mutex;
  std::deque<std::condition_variable> groups;  // who waits in each
  bool broken = false;
  std::string reason;

  void break_off(const std::string& why) {
    const std::lock_guard lock(mutex);
    break_locked(why);
  }
  void break_locked(const std::string& why) {
    if (!broken) reason = why;
    broken = true;
    for (std::condition_variable& group : groups) group.notify_all();
  }
};

// One group of ranks. A collective is a table into which every rank puts what it gives and from which it takes what it
// needs; the table goes when all have taken.
struct Hub {
  Hub(std::shared_ptr<Process> in, std::vector<int> world)
      : process(std::move(in)),
        changed(process->groups.emplace_back()),
        ranks(std::move(world)),
        last(ranks.size(), "nothing yet") {}

  struct Table {
    std::string operation;
    std::vector<std::shared_ptr<const Bytes>> given;
    size_t arrived = 0, taken = 0;
  };
  std::shared_ptr<Process> process;
  std::condition_variable& changed;
  std::vector<int> ranks;         // numbers in the whole process, for messages
  std::vector<std::string> last;  // operation each rank began last
  std::map<uint64_t, Table> tables;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<const Bytes>>> mail;  // (from, to)
  std::map<std::pair<uint64_t, int>, std::shared_ptr<Hub>> parts;                // of split, by its number and color

  size_t size() const { return ranks.size(); }
  std::string name(size_t rank) const { return "rank " + std::to_string(ranks[rank]); }

  void give(uint64_t number, const std::string& operation, size_t rank, Bytes bytes) {
    const std::lock_guard lock(process->mutex);
    Table& table = tables[number];
    table.given.resize(size());
    table.given[rank] = std::make_shared<const Bytes>(std::move(bytes));
    if (table.operation.empty()) table.operation = operation;
    ++table.arrived;
    last[rank] = operation;
    if (table.arrived == size()) changed.notify_all();  // nobody waits for less
  }

  // Waits until `holds`, at most until the deadline; `missing` says who is waited for.
  template <typename Holds, typename Missing>
  void wait(std::unique_lock<std::mutex>& lock, const std::string& operation, double seconds, const Holds& holds,
            const Missing& missing) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
    while (!holds()) {
      if (process->broken) throw CommError(operation, process->reason);
      if (changed.wait_until(lock, deadline) == std::cv_status::timeout && !holds()) {
        if (process->broken) throw CommError(operation, process->reason);
        process->break_locked(missing());
        throw CommError(operation, process->reason, "look at that rank");
      }
    }
  }

  std::string silent(const Table& table, double seconds) const {
    std::string names;
    for (size_t r = 0; r < size(); ++r) {
      if (table.given[r]) continue;
      names += (names.empty() ? "" : ", ") + name(r) + " (last seen in \"" + last[r] + "\")";
    }
    return "silent for " + std::to_string(seconds) + " s: " + names;
  }

  std::vector<std::shared_ptr<const Bytes>> take(uint64_t number, double seconds) {
    std::unique_lock lock(process->mutex);
    Table& table = tables[number];
    wait(
        lock, table.operation, seconds, [&] { return table.arrived == size(); },
        [&] { return silent(table, seconds); });
    std::vector<std::shared_ptr<const Bytes>> given = table.given;
    if (++table.taken == size()) tables.erase(number);
    return given;
  }

  bool ready(uint64_t number) {
    const std::lock_guard lock(process->mutex);
    return process->broken || tables[number].arrived == size();
  }
};

class ThreadComm final : public Communicator {
 public:
  ThreadComm(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->size()); }
  std::string describe(int rank) const override { return hub_->name(static_cast<size_t>(rank)); }

  void abort(int, std::string_view reason) override {
    hub_->process->break_off(std::string(reason));
    throw CommError("", std::string(reason));
  }

 private:
  class Gather;

  std::vector<std::shared_ptr<const Bytes>> exchange(const std::string& operation, Bytes bytes) {
    const uint64_t number = next_++;
    hub_->give(number, operation, static_cast<size_t>(rank_), std::move(bytes));
    return hub_->take(number, settings().timeout_seconds);
  }

  std::unique_ptr<CommRequest> do_start_all_gather(const std::string& operation, const Tensor& part, Tensor& out,
                                                   std::span<const size_t> bounds) override;

  void do_all_to_all(const std::string& operation, const Tensor& send, std::span<const size_t> send_bounds,
                     Tensor& receive, std::span<const size_t> receive_bounds) override {
    // The bounds travel in front of the bytes, because senders may cut unequally.
    Bytes bytes(send_bounds.size_bytes());
    std::memcpy(bytes.data(), send_bounds.data(), send_bounds.size_bytes());
    const Bytes body = bytes_of(send);
    bytes.insert(bytes.end(), body.begin(), body.end());
    const auto given = exchange(operation, std::move(bytes));
    for (size_t from = 0; from < given.size(); ++from) {
      size_t cut[2];
      std::memcpy(cut, given[from]->data() + static_cast<size_t>(rank_) * sizeof(size_t), sizeof cut);
      const size_t size = receive_bounds[from + 1] - receive_bounds[from];
      NIBBLE_CHECK(cut[1] - cut[0] == size, operation + ": bytes of the blocks");
      put(given[from]->data() + send_bounds.size_bytes() + cut[0], size, receive, receive_bounds[from]);
    }
  }

  void do_broadcast(const std::string& operation, Tensor& value, int root) override {
    const auto given = exchange(operation, rank_ == root ? bytes_of(value) : Bytes());
    const Bytes& sent = *given[static_cast<size_t>(root)];
    NIBBLE_CHECK(sent.size() == value.bytes(), operation + ": sizes differ");
    if (rank_ != root) put(sent.data(), sent.size(), value);
  }

  void do_send(const std::string& operation, const Tensor& value, int to) override {
    const std::lock_guard lock(hub_->process->mutex);
    hub_->last[static_cast<size_t>(rank_)] = operation;
    hub_->mail[{rank_, to}].push_back(std::make_shared<const Bytes>(bytes_of(value)));
    hub_->changed.notify_all();
  }

  void do_receive(const std::string& operation, Tensor& value, int from) override {
    std::shared_ptr<const Bytes> sent;
    {
      std::unique_lock lock(hub_->process->mutex);
      hub_->last[static_cast<size_t>(rank_)] = operation;
      auto& box = hub_->mail[{from, rank_}];
      const size_t sender = static_cast<size_t>(from);
      hub_->wait(
          lock, operation, settings().timeout_seconds, [&] { return !box.empty(); },
          [&] {
            return "silent for " + std::to_string(settings().timeout_seconds) + " s: " + hub_->name(sender) +
                   " (last seen in \"" + hub_->last[sender] + "\")";
          });
      sent = std::move(box.front());
      box.pop_front();
    }
    NIBBLE_CHECK(sent->size() == value.bytes(), operation + ": sizes differ");
    put(sent->data(), sent->size(), value);
  }

  std::unique_ptr<Communicator> do_split(int color, int key) override {
    const int mine[2] = {color, key};
    const uint64_t number = next_++;
    const std::byte* raw = reinterpret_cast<const std::byte*>(mine);
    hub_->give(number, "split", static_cast<size_t>(rank_), Bytes(raw, raw + sizeof mine));
    const auto given = hub_->take(number, settings().timeout_seconds);
    std::vector<std::pair<int, int>> members;  // key, rank here
    for (size_t r = 0; r < given.size(); ++r) {
      int theirs[2];
      std::memcpy(theirs, given[r]->data(), sizeof theirs);
      if (theirs[0] == color) members.emplace_back(theirs[1], static_cast<int>(r));
    }
    std::sort(members.begin(), members.end());
    const std::lock_guard lock(hub_->process->mutex);
    std::shared_ptr<Hub>& result = hub_->parts[{number, color}];
    if (!result) {  // the first of them here makes it
      std::vector<int> world;
      for (const auto& [key_of, r] : members) world.push_back(hub_->ranks[static_cast<size_t>(r)]);
      result = std::make_shared<Hub>(hub_->process, world);
    }
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i].second == rank_) return std::make_unique<ThreadComm>(result, static_cast<int>(i));
    }
    NIBBLE_CHECK(false, "a rank is in the group it asked for");
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  uint64_t next_ = 0;  // collectives begun; equal on all ranks
};

class ThreadComm::Gather final : public CommRequest {
 public:
  Gather(ThreadComm& comm, uint64_t number, Tensor out, std::span<const size_t> bounds)
      : hub_(comm.hub_),
        seconds_(comm.settings().timeout_seconds),
        number_(number),
        out_(std::move(out)),
        bounds_(bounds.begin(), bounds.end()) {}

  bool done() override { return taken_ || hub_->ready(number_); }

  void wait() override {
    if (std::exchange(taken_, true)) return;
    const auto given = hub_->take(number_, seconds_);
    for (size_t r = 0; r < given.size(); ++r) {
      NIBBLE_CHECK(given[r]->size() == bounds_[r + 1] - bounds_[r], "bytes of a part");
      put(given[r]->data(), given[r]->size(), out_, bounds_[r]);
    }
  }

  ~Gather() override {
    try {
      wait();
    } catch (const std::exception&) {  // the group is broken, and whoever asks next hears of it
    }
  }

 private:
  std::shared_ptr<Hub> hub_;
  double seconds_;
  uint64_t number_;
  Tensor out_;
  std::vector<size_t> bounds_;
  bool taken_ = false;
};

std::unique_ptr<CommRequest> ThreadComm::do_start_all_gather(const std::string& operation, const Tensor& part,
                                                             Tensor& out, std::span<const size_t> bounds) {
  const uint64_t number = next_++;
  hub_->give(number, operation, static_cast<size_t>(rank_), bytes_of(part));
  return std::make_unique<Gather>(*this, number, out, bounds);
}

}  // namespace

void run_on_threads(int ranks, const std::function<void(Communicator&)>& body) {
  std::vector<int> world;
  for (int r = 0; r < ranks; ++r) world.push_back(r);
  const auto process = std::make_shared<Process>();
  const auto hub = std::make_shared<Hub>(process, world);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        ThreadComm comm(hub, r);
        body(comm);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        process->break_off("rank " + std::to_string(r) + " failed");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace nibble
