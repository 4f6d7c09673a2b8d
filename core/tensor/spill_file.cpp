#include "nibble/core/tensor/spill_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/base/uninterrupted.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/tensor/file_space.h"
#include "nibble/core/tensor/nameless_file.h"

namespace nibble {

namespace {

constexpr int64_t kFilePage = 4096;
constexpr size_t kLargestCall = size_t{1} << 30;  // Linux moves at most 2^31 - 4096 bytes in one call
constexpr const char* kRemedy =
    "free space there, name another place (parallel.offload_directory), or do without "
    "parallel.offload_activations";

int64_t pages(size_t bytes) { return (static_cast<int64_t>(bytes) + kFilePage - 1) / kFilePage * kFilePage; }

// A run of bytes of one storage that some of the tensors use.
struct Piece {
  std::shared_ptr<Storage> storage;  // while the bytes are in memory
  size_t begin = 0, end = 0;         // in the storage
  int64_t offset = 0;                // in the file, from the first piece
};

// How a tensor lies in its piece.
struct View {
  size_t piece = 0, offset = 0;
  Shape shape;
  DType dtype = DType::f32;
};

enum class Where : uint8_t { memory, writing, file, reading };

}  // namespace

struct SpillFile::Spilled::State {
  std::vector<Piece> pieces;
  std::vector<View> views;
  int64_t size = 0, offset = -1;  // in the file; no place yet
  Where where = Where::memory;
  bool wanted = false;  // while it is written: stays in memory then
};

// Everything that the thread and the calls share.
struct SpillFile::Core {
  using State = Spilled::State;

  std::string directory;
  MemoryPool& pool;
  int file = -1;
  bool in_memory = false;

  std::mutex mutex;
  std::condition_variable changed;
  FileSpace space;
  int64_t reserved = 0, largest = 0, written = 0;
  std::deque<std::shared_ptr<State>> jobs;
  std::shared_ptr<State> running, staying;
  std::exception_ptr failure;
  bool ends = false;
  std::thread thread;

  Core(const std::string& where, MemoryPool& from) : directory(where), pool(from) {}
  ~Core() {
    if (file >= 0) close(file);
  }

  [[noreturn]] void fail(const std::string& what, int error, int64_t bytes) const {
    struct statvfs status {};
    std::string reason = what + ": " + std::strerror(error);
    if ((error == ENOSPC || error == EDQUOT) && statvfs(directory.c_str(), &status) == 0) {
      reason += " (" + bytes_text(static_cast<double>(bytes)) + " more are needed, " +
                bytes_text(static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize)) + " are free)";
    }
    throw IoError(directory, reason, kRemedy);
  }

  void open_file() {
    file = open_nameless_file(directory);
    if (file < 0) fail("activations cannot be kept here", errno, 0);
    struct statfs status {};
    in_memory = fstatfs(file, &status) == 0 && (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC);
  }

  // The file has room for `bytes`, if the file system can promise that; what it lacks otherwise shows when it is
  // written.
  void reserve(int64_t bytes) {
    if (bytes <= reserved || !has_bytes()) return;
    const int64_t more = bytes - reserved;
    if (uninterrupted([&] { return fallocate(file, FALLOC_FL_KEEP_SIZE, reserved, more); }) == 0) {
      reserved = bytes;
      return;
    }
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) fail("no room for activations", errno, more);
    struct statvfs status {};
    if (statvfs(directory.c_str(), &status) == 0 &&
        static_cast<uint64_t>(status.f_bavail) * status.f_frsize < static_cast<uint64_t>(more)) {
      fail("no room for activations", ENOSPC, more);
    }
    reserved = bytes;
  }

  // ---- under the lock ----

  void throw_failure() const {
    if (failure) std::rethrow_exception(failure);
  }
  bool has_bytes() const { return pool.device().has_bytes(); }
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& until) {
    while (!has_bytes() && !jobs.empty()) run_next(lock);
    changed.wait(lock, [&] { return failure || until(); });
    throw_failure();
  }
  void start_writing(const std::shared_ptr<State>& state) {
    state->offset = space.take(state->size);
    largest = std::max(largest, space.end());
    reserve(space.end());
    state->where = Where::writing;
    jobs.push_back(state);
    changed.notify_all();
  }
  void start_reading(const std::shared_ptr<State>& state) {
    for (Piece& piece : state->pieces) {
      piece.storage = Storage::owned(pool, piece.end - piece.begin, "activations");
      piece.begin = 0;
      piece.end = piece.storage->size();
    }
    state->where = Where::reading;
    jobs.push_back(state);
    changed.notify_all();
  }
  bool is_writing() const {
    const auto writes = [](const auto& job) { return job && job->where == Where::writing; };
    return writes(running) || std::ranges::any_of(jobs, writes);
  }

  // ---- the thread ----

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ends || (!failure && !jobs.empty()); });
      if (ends) return;
      run_next(lock);
    }
  }

  void run_next(std::unique_lock<std::mutex>& lock) {
    running = jobs.front();
    jobs.pop_front();
    const std::shared_ptr<State> job = running;
    const bool writes = job->where == Where::writing;
    lock.unlock();
    std::exception_ptr failed;
    try {
      if (has_bytes()) move(*job, writes);
    } catch (...) {
      failed = std::current_exception();
    }
    lock.lock();
    running.reset();
    failure = failed;
    if (writes && !failed) written += job->size;
    job->where = writes && !job->wanted ? Where::file : Where::memory;
    if (job->where == Where::file) {
      for (Piece& piece : job->pieces) piece.storage.reset();
    }
    changed.notify_all();
  }

  void move(const State& job, bool out) const {
    for (const Piece& piece : job.pieces) {
      std::byte* at = piece.storage->data() + piece.begin;
      off_t offset = job.offset + piece.offset;
      for (size_t left = piece.end - piece.begin; left > 0;) {
        const size_t most = std::min(left, kLargestCall);
        const ssize_t moved =
            uninterrupted([&] { return out ? pwrite(file, at, most, offset) : pread(file, at, most, offset); });
        if (moved <= 0) {
          fail(out ? "activations cannot be written" : "activations cannot be read back", moved < 0 ? errno : EIO,
               static_cast<int64_t>(left));
        }
        at += moved;
        offset += moved;
        left -= static_cast<size_t>(moved);
      }
    }
    // To the device now, so that the kernel can drop the pages when memory runs short.
    if (out) sync_file_range(file, job.offset, job.size, SYNC_FILE_RANGE_WRITE);
  }
};

namespace {

std::shared_ptr<SpillFile::Spilled::State> describe(const std::vector<Tensor>& tensors) {
  auto state = std::make_shared<SpillFile::Spilled::State>();
  const auto begin_of = [](const Tensor& tensor) {
    return static_cast<size_t>(tensor.address() - tensor.storage()->data());
  };
  for (const Tensor& tensor : tensors) {
    auto piece = std::ranges::find(state->pieces, tensor.storage(), &Piece::storage);
    if (piece == state->pieces.end()) {
      state->pieces.push_back({tensor.storage(), tensor.storage()->size(), 0});
      piece = std::prev(state->pieces.end());
    }
    constexpr size_t kAlignment = 64;  // what comes back lies as it lay
    piece->begin = std::min(piece->begin, begin_of(tensor) / kAlignment * kAlignment);
    piece->end = std::max(piece->end, begin_of(tensor) + tensor.bytes());
  }
  for (const Tensor& tensor : tensors) {
    const auto piece = std::ranges::find(state->pieces, tensor.storage(), &Piece::storage);
    state->views.push_back({static_cast<size_t>(piece - state->pieces.begin()), begin_of(tensor) - piece->begin,
                            tensor.shape(), tensor.dtype()});
  }
  for (Piece& piece : state->pieces) {
    piece.offset = state->size;
    state->size += pages(piece.end - piece.begin);
  }
  return state;
}

}  // namespace

SpillFile::SpillFile(const std::string& directory, int64_t bytes, MemoryPool& pool)
    : core_(std::make_shared<Core>(directory, pool)) {
  if (!core_->has_bytes()) return;
  core_->open_file();
  core_->reserve(pages(static_cast<size_t>(bytes)));
  sigset_t all, before;  // signals are the main thread's
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  core_->thread = std::thread([core = core_.get()] { core->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SpillFile::~SpillFile() {
  {
    const std::lock_guard lock(core_->mutex);
    core_->ends = true;
    core_->staying.reset();
  }
  core_->changed.notify_all();
  if (core_->thread.joinable()) core_->thread.join();
  core_->jobs.clear();
}

std::unique_ptr<SpillFile::Spilled> SpillFile::put(std::vector<Tensor> tensors, bool stays) {
  std::shared_ptr<Spilled::State> state = describe(tensors);
  tensors.clear();
  std::unique_lock lock(core_->mutex);
  NIBBLE_CHECK(!core_->staying, "what stays is written before the next is put");
  core_->wait(lock, [&] { return !core_->is_writing(); });
  if (stays) {
    core_->staying = state;
  } else {
    core_->start_writing(state);
  }
  return std::make_unique<Spilled>(core_, std::move(state));
}

void SpillFile::write_what_stays() {
  std::unique_lock lock(core_->mutex);
  if (const auto state = std::exchange(core_->staying, nullptr)) core_->start_writing(state);
}

int64_t SpillFile::file_bytes() const {
  const std::lock_guard lock(core_->mutex);
  return core_->largest;
}

int64_t SpillFile::written_bytes() const {
  const std::lock_guard lock(core_->mutex);
  return core_->written;
}

bool SpillFile::in_memory() const { return core_->in_memory; }

SpillFile::Spilled::Spilled(std::shared_ptr<Core> core, std::shared_ptr<State> state)
    : core_(std::move(core)), state_(std::move(state)) {}

SpillFile::Spilled::~Spilled() {
  std::unique_lock lock(core_->mutex);
  if (core_->staying == state_) core_->staying.reset();
  std::erase(core_->jobs, state_);
  core_->changed.wait(lock, [&] { return core_->running != state_; });
  if (state_->offset >= 0) core_->space.give(state_->offset, state_->size);
}

void SpillFile::Spilled::fetch() {
  std::unique_lock lock(core_->mutex);
  core_->throw_failure();
  if (core_->staying == state_) core_->staying.reset();
  state_->wanted = true;
  if (state_->where == Where::file) core_->start_reading(state_);
}

std::vector<Tensor> SpillFile::Spilled::take() {
  fetch();
  std::unique_lock lock(core_->mutex);
  core_->wait(lock, [&] { return state_->where == Where::memory; });
  std::vector<Tensor> tensors;
  for (const View& view : state_->views) {
    const Piece& piece = state_->pieces[view.piece];
    tensors.push_back(Tensor::view(piece.storage, piece.begin + view.offset, view.shape, view.dtype));
  }
  state_->pieces.clear();
  return tensors;
}

}  // namespace nibble
