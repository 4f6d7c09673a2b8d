#include "nibble/core/base/parallel.h"

#include <sys/resource.h>

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

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
class Team {
 public:
  Team() : state_(std::make_shared<State>()) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  // Nobody joins: after a fork there is nobody to wait for.
  ~Team() {
    state_->ended.store(true, std::memory_order_release);
    state_->call();
  }

  void run(int helpers, int64_t pieces, void (*piece)(const void*, int64_t), const void* context) {
    while (size_ < helpers) {
      std::thread([state = state_, index = size_] { help(*state, index); }).detach();
      ++size_;
    }
    State& state = *state_;
    state.helpers = helpers;
    state.pieces = pieces;
    state.piece = piece;
    state.context = context;
    state.failure = nullptr;
    state.next.store(0, std::memory_order_relaxed);
    state.helping.store(0, std::memory_order_release);
    state.call();
    state.work();
    state.helping.fetch_add(kClosed, std::memory_order_acq_rel);
    for (int32_t now; (now = state.helping.load(std::memory_order_acquire)) != kClosed;) {
      wait_while(state.helping, now);
    }
    if (state.failure) std::rethrow_exception(state.failure);
  }

 private:
  static constexpr int32_t kClosed = INT32_MIN / 2;

  struct State {
    int helpers = 0;
    int64_t pieces = 0;
    void (*piece)(const void*, int64_t) = nullptr;
    const void* context = nullptr;
    std::mutex failing;
    std::exception_ptr failure;
    std::atomic<bool> ended = false;
    alignas(64) std::atomic<int64_t> next = 0;  // piece
    alignas(64) std::atomic<int32_t> helping =
        kClosed;                                  // threads at pieces besides the caller; negative: none may come
    alignas(64) std::atomic<uint32_t> calls = 0;  // jobs so far: what helpers wait for

    void call() {
      calls.fetch_add(1, std::memory_order_acq_rel);
      calls.notify_all();
    }
    void work() {
      inside = true;
      for (int64_t k; (k = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
        try {
          piece(context, k);
        } catch (...) {
          const std::lock_guard lock(failing);
          if (!failure) failure = std::current_exception();
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

  static void help(State& state, int index) {
    for (uint32_t seen = 0;;) {
      wait_while(state.calls, seen);
      seen = state.calls.load(std::memory_order_acquire);
      if (state.ended.load(std::memory_order_acquire)) return;
      if (!state.enter()) continue;
      if (index < state.helpers) state.work();
      state.leave();
    }
  }

  std::shared_ptr<State> state_;
  int size_ = 0;
};

}  // namespace

void set_threads(int threads) { omp_set_num_threads(std::max(1, threads)); }

int threads() { return omp_get_max_threads(); }

bool in_parallel() { return inside; }

void detail::run_pieces(int64_t pieces, void (*piece)(const void*, int64_t), const void* context) {
  thread_local Team team;
  team.run(static_cast<int>(std::min<int64_t>(threads(), pieces)) - 1, pieces, piece, context);
}

}  // namespace nibble
