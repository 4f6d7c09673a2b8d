#include "nibble/parallel/comm/mpi_comm.h"

#define OMPI_SKIP_MPICXX 1  // the C++ bindings are gone from MPI 3 and do not compile without warnings
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/base/seconds_now.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/parallel/comm/first_here.h"
#include "nibble/parallel/comm/group_members.h"

namespace nibble {

namespace {

constexpr size_t kChunk = size_t{256} << 20;  // counts beyond 2^30 are not safe in every MPI
constexpr int kMessageTag = 1;                // of send and receive; collectives use the tags above
constexpr int kTags = 32000;                  // MPI guarantees 32767
constexpr int kLivenessQuery = 1, kLivenessReply = 2;
constexpr size_t kNameBytes = 64;

class Progress;

// What all communicators of the process share: who is where, and the liveness check.
struct Job {
  Job();
  ~Job();
  std::unique_ptr<Progress> progress;  // null where MPI allows one thread only
  MPI_Comm control = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::vector<std::string> hosts;
  std::optional<FirstHere> first_here;
  std::string current = "start";  // operation this rank is in
  double last_poll = seconds_now();
  std::mutex mpi;             // MPI is called by one thread at a time
  std::exception_ptr broken;  // what the liveness check found: nobody waits once more

  std::string describe(int r) const {
    return "rank " + std::to_string(r) + " on host " + hosts[static_cast<size_t>(r)];
  }

  void answer_liveness_queries() {
    for (;;) {
      int waiting = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, kLivenessQuery, control, &waiting, &status);
      if (!waiting) return;
      char query[kNameBytes];
      MPI_Recv(query, kNameBytes, MPI_CHAR, status.MPI_SOURCE, kLivenessQuery, control, MPI_STATUS_IGNORE);
      post(status.MPI_SOURCE, kLivenessReply);
    }
  }

  // Small and eager: leaves at once, whatever the receiver does. The buffers live as long as the process.
  void post(int to, int tag) {
    char* text = posted.emplace_back(kNameBytes, '\0').data();
    current.copy(text, kNameBytes - 1);
    MPI_Request request;
    MPI_Isend(text, kNameBytes, MPI_CHAR, to, tag, control, &request);
    MPI_Request_free(&request);
  }

  void poll() {
    if (seconds_now() - last_poll < 0.02) return;
    last_poll = seconds_now();
    answer_liveness_queries();
  }

  CommError check_liveness(double waited);

  std::deque<std::string> posted;
};

CommError Job::check_liveness(double waited) {
  std::set<int> silent;
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    silent.insert(r);
    post(r, kLivenessQuery);
  }
  std::string seen;
  const double start = seconds_now();
  const double grace = std::clamp(waited / 2, 1.0, 5.0);
  while (!silent.empty() && seconds_now() - start < grace) {
    answer_liveness_queries();
    int waiting = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kLivenessReply, control, &waiting, &status);
    if (!waiting) {
      usleep(1000);
      continue;
    }
    char text[kNameBytes];
    MPI_Recv(text, kNameBytes, MPI_CHAR, status.MPI_SOURCE, kLivenessReply, control, MPI_STATUS_IGNORE);
    silent.erase(status.MPI_SOURCE);
    seen += ", rank " + std::to_string(status.MPI_SOURCE) + " is in \"" + text + "\"";
  }
  const std::string names = joined(silent, ", ", [this](int r) { return describe(r); });
  int leader = 0;
  while (silent.contains(leader)) ++leader;
  // The first one who answers speaks, and its abort ends the others before they do.
  if (leader != rank) usleep(3'000'000);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.0f s", waited);
  if (silent.empty()) {
    return CommError("", "no progress in \"" + current + "\" for " + seconds + " though every rank answers" + seen,
                     "set parallel.timeout_seconds higher if a step takes longer");
  }
  return CommError(names,
                   "silent for " + std::string(seconds) + " while rank " + std::to_string(rank) + " waited in \"" +
                       current + "\"" + seen,
                   "look at that process or host; the same command continues from the last checkpoint");
}

// MPI moves messages only while it is called; this thread does so while some are under way and the rank computes, every
// 400 us: layers take several times as long, and calls every 100 us took a tenth of two ranks' steps on two cores.
class Progress {
 public:
  explicit Progress(Job& job) : job_(job) {
    sigset_t all, before;  // signals are the main thread's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Progress() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void add(int messages) {
    {
      const std::lock_guard lock(mutex_);
      under_way_ += messages;
    }
    if (messages > 0) changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || under_way_ > 0; });
      if (ends_) return;
      lock.unlock();
      if (job_.mpi.try_lock()) {
        job_.answer_liveness_queries();
        job_.mpi.unlock();
      }
      usleep(400);
      lock.lock();
    }
  }

  Job& job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  int under_way_ = 0;
  std::thread thread_;
};

Job::Job() = default;
Job::~Job() = default;

// Messages under way, with the tensors they use.
struct Messages {
  std::vector<MPI_Request> requests;
  std::vector<Tensor> kept;

  bool done() {
    if (requests.empty()) return true;
    int flag = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE);
    if (flag) requests.clear();
    return flag != 0;
  }

  void send(const std::byte* bytes, size_t size, int to, int tag, MPI_Comm comm) {
    for (size_t at = 0; at == 0 || at < size; at += kChunk) {
      const int count = static_cast<int>(std::min(kChunk, size - at));
      MPI_Isend(bytes + at, count, MPI_BYTE, to, tag, comm, &requests.emplace_back());
    }
  }
  void receive(std::byte* bytes, size_t size, int from, int tag, MPI_Comm comm) {
    for (size_t at = 0; at == 0 || at < size; at += kChunk) {
      const int count = static_cast<int>(std::min(kChunk, size - at));
      MPI_Irecv(bytes + at, count, MPI_BYTE, from, tag, comm, &requests.emplace_back());
    }
  }
};

// Polls; gives the core away when nothing comes, because ranks may share it. A pause is a sixteenth of the wait so far,
// which takes little from ranks that compute.
void wait_for(Messages& messages, Job& job, const std::string& operation, double seconds) {
  const double start = seconds_now();
  const auto pause = [start] { return std::clamp((seconds_now() - start) * 1e6 / 16, 20.0, 1000.0); };
  std::unique_lock lock(job.mpi);
  job.current = operation;
  for (int round = 0; !messages.done(); ++round) {
    lock.unlock();
    round < 100 ? void(sched_yield()) : void(usleep(static_cast<useconds_t>(pause())));
    lock.lock();
    if (round < 100) continue;
    job.poll();
    if (!job.broken && seconds_now() - start > seconds) {
      job.broken = std::make_exception_ptr(job.check_liveness(seconds));
    }
    if (job.broken) std::rethrow_exception(job.broken);
  }
}

class MpiRequest final : public CommRequest {
 public:
  MpiRequest(std::shared_ptr<Job> job, std::string operation, double seconds, Messages messages)
      : job_(std::move(job)), operation_(std::move(operation)), seconds_(seconds), messages_(std::move(messages)) {
    if (job_->progress) job_->progress->add(1);
  }
  bool done() override {
    const std::lock_guard lock(job_->mpi);
    return messages_.done();
  }
  void wait() override {
    if (job_->progress && std::exchange(counted_, false)) job_->progress->add(-1);
    wait_for(messages_, *job_, operation_, seconds_);
  }
  ~MpiRequest() override {
    try {
      wait();
    } catch (const Error&) {               // the job is broken, and whoever asks next hears of it
      new Messages(std::move(messages_));  // MPI may still write there
    }
  }

 private:
  std::shared_ptr<Job> job_;
  std::string operation_;
  double seconds_;
  Messages messages_;
  bool counted_ = true;
};

// A launcher that is told to abort may end before it has passed on what its ranks said (MPICH's hydra): a moment first.
[[noreturn]] void abort_job(int exit_code) {
  std::fflush(nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

class MpiComm final : public Communicator {
 public:
  MpiComm(std::shared_ptr<Job> job, MPI_Comm comm) : job_(std::move(job)), comm_(comm) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_ARE_FATAL);
    MPI_Group mine, all;
    MPI_Comm_group(comm_, &mine);
    MPI_Comm_group(job_->control, &all);
    for (int r = 0; r < size_; ++r) MPI_Group_translate_ranks(mine, 1, &r, all, &world_.emplace_back());
    MPI_Group_free(&mine);
    MPI_Group_free(&all);
  }

  ~MpiComm() override {
    const std::lock_guard lock(job_->mpi);
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && sent_.done()) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string describe(int rank) const override { return job_->describe(world_[static_cast<size_t>(rank)]); }

  void abort(int exit_code, std::string_view) override { abort_job(exit_code); }

 private:
  int next_tag() { return kMessageTag + 1 + static_cast<int>(collectives_++ % kTags); }
  // The ranks in turn, beginning after this one, so that not all send to the same rank first.
  int peer(int i) const { return (rank_ + i) % size_; }

  std::unique_ptr<CommRequest> do_start_all_gather(const std::string& operation, const Tensor& part, Tensor& out,
                                                   std::span<const size_t> bounds) override {
    const int tag = next_tag();
    const auto size_of = [&](int r) { return bounds[static_cast<size_t>(r) + 1] - bounds[static_cast<size_t>(r)]; };
    std::byte* to = out.bytes() > 0 ? out.mutable_raw() : nullptr;
    const std::byte* from = part.bytes() > 0 ? part.raw() : nullptr;
    Messages messages{{}, {part, out}};
    {
      const std::lock_guard lock(job_->mpi);
      for (int i = 1; i < size_; ++i) {
        const int other = peer(size_ - i);
        messages.receive(to + bounds[static_cast<size_t>(other)], size_of(other), other, tag, comm_);
      }
      for (int i = 1; i < size_; ++i) messages.send(from, size_of(rank_), peer(i), tag, comm_);
    }
    std::byte* mine = to + bounds[static_cast<size_t>(rank_)];
    if (size_of(rank_) > 0 && mine != from) std::memcpy(mine, from, size_of(rank_));
    return std::make_unique<MpiRequest>(job_, operation, settings().timeout_seconds, std::move(messages));
  }

  void do_all_to_all(const std::string& operation, const Tensor& send, std::span<const size_t> send_bounds,
                     Tensor& receive, std::span<const size_t> receive_bounds) override {
    const int tag = next_tag();
    const std::byte* from = send.bytes() > 0 ? send.raw() : nullptr;
    std::byte* to = receive.bytes() > 0 ? receive.mutable_raw() : nullptr;
    Messages messages;
    std::unique_lock lock(job_->mpi);
    for (int i = 1; i < size_; ++i) {
      const size_t other = static_cast<size_t>(peer(size_ - i));
      messages.receive(to + receive_bounds[other], receive_bounds[other + 1] - receive_bounds[other],
                       static_cast<int>(other), tag, comm_);
    }
    for (int i = 1; i < size_; ++i) {
      const size_t other = static_cast<size_t>(peer(i));
      messages.send(from + send_bounds[other], send_bounds[other + 1] - send_bounds[other], static_cast<int>(other),
                    tag, comm_);
    }
    lock.unlock();
    const size_t me = static_cast<size_t>(rank_), kept = send_bounds[me + 1] - send_bounds[me];
    if (kept > 0) std::memcpy(to + receive_bounds[me], from + send_bounds[me], kept);
    wait_for(messages, *job_, operation, settings().timeout_seconds);
  }

  void do_broadcast(const std::string& operation, Tensor& value, int root) override {
    const int tag = next_tag();
    Messages messages;
    std::unique_lock lock(job_->mpi);
    if (rank_ == root) {
      for (int i = 1; i < size_; ++i) messages.send(value.raw(), value.bytes(), peer(i), tag, comm_);
    } else {
      messages.receive(value.mutable_raw(), value.bytes(), root, tag, comm_);
    }
    lock.unlock();
    wait_for(messages, *job_, operation, settings().timeout_seconds);
  }

  void do_send(const std::string&, const Tensor& value, int to) override {
    const std::lock_guard lock(job_->mpi);
    forget_sent();
    sent_.kept.push_back(value);
    sent_.send(value.raw(), value.bytes(), to, kMessageTag, comm_);
    if (job_->progress && !std::exchange(sending_, true)) job_->progress->add(1);
  }

  // Under the lock.
  void forget_sent() {
    if (!sent_.done()) return;
    sent_.kept.clear();
    if (job_->progress && std::exchange(sending_, false)) job_->progress->add(-1);
  }

  void do_receive(const std::string& operation, Tensor& value, int from) override {
    Messages messages;
    {
      const std::lock_guard lock(job_->mpi);
      messages.receive(value.mutable_raw(), value.bytes(), from, kMessageTag, comm_);
    }
    wait_for(messages, *job_, operation, settings().timeout_seconds);
    const std::lock_guard lock(job_->mpi);
    forget_sent();
  }

  // MPI_Comm_split takes a core until the last rank is there and waits for ever for a lost one. Here the ranks wait as
  // in every operation; then the members of a group, all of them there, make it, and a rank alone needs nobody.
  std::unique_ptr<Communicator> do_split(int color, int key) override {
    const std::vector<int> members = group_members(*this, color, key);
    if (members.size() == 1) return std::make_unique<SelfComm>();
    const std::lock_guard lock(job_->mpi);
    MPI_Group all, group;
    MPI_Comm part;
    MPI_Comm_group(comm_, &all);
    MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &group);
    MPI_Comm_create_group(comm_, group, kMessageTag, &part);
    MPI_Group_free(&group);
    MPI_Group_free(&all);
    return std::make_unique<MpiComm>(job_, part);
  }

  std::shared_ptr<Job> job_;
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  std::vector<int> world_;  // numbers in the job
  uint64_t collectives_ = 0;
  Messages sent_;  // messages that were sent and may not have arrived
  bool sending_ = false;
};

}  // namespace

struct MpiSession::Impl {
  std::shared_ptr<Job> job = std::make_shared<Job>();
  std::unique_ptr<MpiComm> world;
  bool finished = false;
};

MpiSession::MpiSession() : impl_(std::make_unique<Impl>()) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  NIBBLE_CHECK(!initialized, "one MpiSession in a process");
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    throw CommError("MPI", "cannot be started", "start the ranks with nibble launch, mpirun or srun");
  }
  Job& job = *impl_->job;
  MPI_Comm_dup(MPI_COMM_WORLD, &job.control);
  MPI_Comm_rank(job.control, &job.rank);
  MPI_Comm_size(job.control, &job.size);
  std::string mine(kNameBytes, '\0');
  gethostname(mine.data(), kNameBytes - 1);
  std::string all(kNameBytes * static_cast<size_t>(job.size), '\0');
  MPI_Allgather(mine.data(), kNameBytes, MPI_CHAR, all.data(), kNameBytes, MPI_CHAR, job.control);
  for (int r = 0; r < job.size; ++r) job.hosts.emplace_back(all.c_str() + kNameBytes * static_cast<size_t>(r));
  std::random_device random;
  uint64_t id = (uint64_t{random()} << 32) | random();
  MPI_Bcast(&id, 1, MPI_UINT64_T, 0, job.control);
  job.first_here.emplace(id, place_here() == 0, [&] { MPI_Barrier(job.control); });
  MPI_Comm everyone;
  MPI_Comm_dup(MPI_COMM_WORLD, &everyone);
  impl_->world = std::make_unique<MpiComm>(impl_->job, everyone);
  if (provided >= MPI_THREAD_SERIALIZED) job.progress = std::make_unique<Progress>(job);
}

MpiSession::~MpiSession() {
  if (!impl_->finished) static_cast<void>(impl_->world.release());  // MPI may be in any state
}

Communicator& MpiSession::world() { return *impl_->world; }

int MpiSession::ranks_here() const {
  const Job& job = *impl_->job;
  return static_cast<int>(std::count(job.hosts.begin(), job.hosts.end(), job.hosts[static_cast<size_t>(job.rank)]));
}

int MpiSession::place_here() const {
  const Job& job = *impl_->job;
  const std::string& host = job.hosts[static_cast<size_t>(job.rank)];
  return static_cast<int>(std::count(job.hosts.begin(), job.hosts.begin() + job.rank, host));
}

std::string MpiSession::description() const {
  const std::string library = mpi_library();
  const Job& job = *impl_->job;
  const size_t hosts = std::set<std::string>(job.hosts.begin(), job.hosts.end()).size();
  return library + ", " + std::to_string(job.size) + " ranks on " + std::to_string(hosts) +
         (hosts == 1 ? " host" : " hosts") + mpi_transport(library) +
         (job.progress ? "" : ", which moves messages only while a rank waits");
}

void MpiSession::finish() {
  impl_->job->progress.reset();
  impl_->world.reset();
  MPI_Comm_free(&impl_->job->control);
  MPI_Finalize();
  impl_->finished = true;
}

void MpiSession::abort(int exit_code, const std::function<void()>& say) {
  const Job& job = *impl_->job;
  const auto mine = std::find(job.hosts.begin(), job.hosts.end(), job.hosts[static_cast<size_t>(job.rank)]);
  // Between hosts there is only time to tell who was first.
  const size_t hosts_before = std::set<std::string>(job.hosts.begin(), mine).size();
  std::this_thread::sleep_for(std::chrono::milliseconds(300) * std::min<size_t>(hosts_before, 10));
  // Whoever does not speak waits to be ended by the one who does, which may itself be lost before.
  if (impl_->job->first_here->ask()) {
    say();
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(30));
  }
  if (job.size == 1) {  // there is nobody to end, and MPI_Abort prints a page
    finish();
    std::exit(exit_code);
  }
  abort_job(exit_code);
}

}  // namespace nibble
