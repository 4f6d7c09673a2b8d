#include "nibble/core/base/parallel.h"

#include <sys/resource.h>

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/base/numa_nodes.h"
#include "nibble/core/base/parallel_observer.h"
#include "nibble/core/base/piece_progress.h"

namespace nibble {

namespace {

using Clock = std::chrono::steady_clock;

// What passes between two jobs of a step is shorter than this, so on a machine that is free nobody sleeps in one.
constexpr auto kSpin = std::chrono::milliseconds(2);
// Where other processes want the cores: a waiting thread takes time from the one it waits for.
constexpr auto kSpinOnBusyMachine = std::chrono::microseconds(20);
// How long a core that was taken from a thread once speaks of a busy machine.
constexpr auto kBusy = std::chrono::milliseconds(20);

thread_local bool inside = false;  // of a piece
thread_local ParallelObserver* observer = nullptr;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield does nothing on most; this waits for some ten nanoseconds
#else
  std::this_thread::yield();
#endif
}

// Whether the kernel has lately given the caller's core to somebody else while it had work.
bool machine_is_busy(Clock::time_point now) {
  thread_local long taken = 0;
  thread_local Clock::time_point busy_until;
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) == 0 && usage.ru_nivcsw != taken) {
    taken = usage.ru_nivcsw;
    busy_until = now + kBusy;
  }
  return now < busy_until;
}

// Waits while the value is `old`.
template <typename Value>
void wait_while(const std::atomic<Value>& value, Value old) {
  constexpr int kLooks = 64;  // between two looks at the clock
  const auto begin = Clock::now();
  for (bool asked = false;;) {
    for (int look = 0; look < kLooks; ++look) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
    const auto now = Clock::now();
    if (now - begin < kSpinOnBusyMachine) continue;
    if (now - begin > kSpin || (!asked && machine_is_busy(now))) break;
    asked = true;
  }
  value.wait(old, std::memory_order_acquire);
}

// The threads that help one thread. Pieces are taken one by one; who comes after the last was taken stays out, so the
// caller waits for pieces that are being computed and never for a thread.
//
// On a machine with several NUMA nodes every helper stays on one, filled in their order, and the threads of a node
// share a range of pieces, so that pieces of equal numbers, which write and read the same rows, are computed beside the
// same memory. Who finds no more in its node's range takes from the next. The caller is of the first node and takes
// ranges in order: what a piece waits for (PieceProgress) has then been taken, or is taken by the caller.
class Team {
 public:
  Team() : state_(std::make_shared<State>()), nodes_(numa_nodes()) {
    if (nodes_.size() > kMostNodes) nodes_.resize(kMostNodes);
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  // Nobody joins: after a fork there is nobody to wait for.
  ~Team() {
    state_->ended.store(true, std::memory_order_release);
    state_->call();
  }

  void run(int helpers, int64_t pieces, void (*piece)(const void*, int64_t), const void* context) {
    while (size_ < helpers) {
      const int node = node_of(size_ + 1);
      std::thread([state = state_, index = size_, node, cores = cores_of(node)] {
        bind_thread(cores);
        help(*state, index, node);
      }).detach();
      ++size_;
    }
    State& state = *state_;
    state.helpers = helpers;
    state.piece = piece;
    state.context = context;
    state.failure = nullptr;
    share_out(helpers + 1, pieces);
    state.helping.store(0, std::memory_order_release);
    state.call();
    state.work(0);
    state.helping.fetch_add(kClosed, std::memory_order_acq_rel);
    for (int32_t now; (now = state.helping.load(std::memory_order_acquire)) != kClosed;) {
      wait_while(state.helping, now);
    }
    if (state.failure) std::rethrow_exception(state.failure);
  }

 private:
  static constexpr int32_t kClosed = INT32_MIN / 2;
  static constexpr size_t kMostNodes = 16;

  // The pieces of the threads of one node.
  struct alignas(64) Share {
    std::atomic<int64_t> next = 0;
    int64_t end = 0;
  };

  struct State {
    int helpers = 0, nodes = 1;
    void (*piece)(const void*, int64_t) = nullptr;
    const void* context = nullptr;
    std::mutex failing;
    std::exception_ptr failure;
    std::atomic<bool> ended = false;
    std::array<Share, kMostNodes> shares;
    alignas(64) std::atomic<int32_t> helping =
        kClosed;                                  // threads at pieces besides the caller; negative: none may come
    alignas(64) std::atomic<uint32_t> calls = 0;  // jobs so far: what helpers wait for

    void call() {
      calls.fetch_add(1, std::memory_order_acq_rel);
      calls.notify_all();
    }
    void work(int node) {
      inside = true;
      for (int passed = 0; passed < nodes; ++passed) {
        Share& share = shares[static_cast<size_t>((node + passed) % nodes)];
        for (int64_t k; (k = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
          try {
            piece(context, k);
          } catch (...) {
            const std::lock_guard lock(failing);
            if (!failure) failure = std::current_exception();
          }
        }
      }
      inside = false;
    }
    bool enter() {
      int32_t now = helping.load(std::memory_order_acquire);
      while (now >= 0) {
        if (helping.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) return true;
      }
      return false;
    }
    void leave() {
      if (helping.fetch_sub(1, std::memory_order_acq_rel) == kClosed + 1) helping.notify_one();
    }
  };

  static void help(State& state, int index, int node) {
    for (uint32_t seen = 0;;) {
      wait_while(state.calls, seen);
      seen = state.calls.load(std::memory_order_acquire);
      if (state.ended.load(std::memory_order_acquire)) return;
      if (!state.enter()) continue;
      if (index < state.helpers) state.work(node < state.nodes ? node : 0);
      state.leave();
    }
  }

  // Where a worker runs; the caller is number 0.
  int node_of(int worker) const {
    size_t node = 0;
    for (int before = 0; node + 1 < nodes_.size(); ++node) {
      before += static_cast<int>(nodes_[node].size());
      if (worker < before) break;
    }
    return static_cast<int>(node);
  }
  NumaNode cores_of(int node) const { return nodes_.size() > 1 ? nodes_[static_cast<size_t>(node)] : NumaNode(); }

  // To every node as many pieces as it has of the workers.
  void share_out(int workers, int64_t pieces) {
    state_->nodes = node_of(workers - 1) + 1;
    int64_t begin = 0;
    for (int node = 0, before = 0; node < state_->nodes; ++node) {
      before += static_cast<int>(nodes_[static_cast<size_t>(node)].size());
      Share& share = state_->shares[static_cast<size_t>(node)];
      share.end = node + 1 == state_->nodes ? pieces : pieces * std::min(before, workers) / workers;
      share.next.store(std::exchange(begin, share.end), std::memory_order_relaxed);
    }
  }

  std::shared_ptr<State> state_;
  std::vector<NumaNode> nodes_;
  int size_ = 0;
};

}  // namespace

ParallelObserver::ParallelObserver(int workers) : workers_(workers) {
  NIBBLE_CHECK(observer == nullptr && workers > 0, "an observer of parallel sections");
  observer = this;
}

ParallelObserver::~ParallelObserver() { observer = nullptr; }

ParallelObserver* ParallelObserver::active() { return observer; }

void set_threads(int threads) { omp_set_num_threads(std::max(1, threads)); }

int threads() { return observer ? observer->workers() : omp_get_max_threads(); }

bool in_parallel() { return inside; }

void detail::run_pieces(int64_t pieces, void (*piece)(const void*, int64_t), const void* context) {
  thread_local Team team;
  if (observer == nullptr) {
    return team.run(static_cast<int>(std::min<int64_t>(threads(), pieces)) - 1, pieces, piece, context);
  }
  const auto observed = [&](int64_t k) {
    piece(context, k);
    observer->end_piece();
  };
  using Observed = decltype(observed);
  observer->begin_section(pieces, reinterpret_cast<const void*>(piece));
  team.run(
      0, pieces, [](const void* of, int64_t k) { (*static_cast<const Observed*>(of))(k); }, &observed);
  observer->end_section();
}

void PieceProgress::reach(int64_t stage) {
  reached_.store(stage, std::memory_order_release);
  if (observer) observer->step(this, stage, false);
}

void PieceProgress::wait_for(int64_t stage) const {
  while (reached_.load(std::memory_order_acquire) < stage) std::this_thread::yield();
  if (observer) observer->step(this, stage, true);
}

}  // namespace nibble
