#include "nibble/tests/failing_io/failing_io.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <vector>

namespace nibble::failing_io {

namespace {

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

struct Rename {
  std::string from, to;
  unsigned flags;
};

struct Disk {
  std::recursive_mutex mutex;
  bool armed = false;
  bool full = false;
  Plan plan;
  int64_t count = 0;
  std::map<int, std::string> open_paths;
  std::map<std::pair<dev_t, ino_t>, int> unsynced;  // a descriptor of each file with bytes that were not synced
  std::vector<Rename> unsynced_renames;
};

// Never destroyed: calls come until the very end of the process.
Disk& disk() {
  static Disk* const built = new Disk;
  return *built;
}

// Also counts the calls that the shim makes itself; they must pass.
thread_local int inside = 0;
struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
};

int error_number(const std::string& how) {
  if (how == "ENOSPC" || how == "FULL") return ENOSPC;
  if (how == "EINTR") return EINTR;
  if (how == "EDQUOT") return EDQUOT;
  if (how == "EROFS") return EROFS;
  if (how == "ESTALE") return ESTALE;
  return EIO;
}

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

void lose_power() {
  Disk& state = disk();
  for (const auto& [file, descriptor] : state.unsynced) {
    struct stat status {};
    if (fstat(descriptor, &status) == 0 && ftruncate(descriptor, status.st_size / 2) != 0) abort();
  }
  for (auto r = state.unsynced_renames.rbegin(); r != state.unsynced_renames.rend(); ++r) {
    renameat2(AT_FDCWD, r->to.c_str(), AT_FDCWD, r->from.c_str(), r->flags);
  }
}

// Until somebody removes the file; other calls pass meanwhile. The caller has the lock, once.
void hold() {
  const char* path = std::getenv("NIBBLE_FAULT_HELD");
  if (path == nullptr) return;
  const int built = real<int(int, const char*, int, ...)>("openat")(AT_FDCWD, path, O_WRONLY | O_CREAT, 0666);
  real<int(int)>("close")(built);
  disk().mutex.unlock();
  while (access(path, F_OK) == 0) usleep(1000);
  disk().mutex.lock();
}

bool listed(const std::string& calls, const char* call) {
  if (calls.empty()) return std::strcmp(call, "read") != 0;
  return ("," + calls + ",").find("," + std::string(call) + ",") != std::string::npos;
}

bool needs_space(const char* call) {
  for (const char* other : {"close", "remove", "read", "sync"}) {
    if (std::strcmp(call, other) == 0) return false;
  }
  return true;
}

// open(2), write(2), read(2), fsync(2), close(2) and fallocate(2) have EINTR; the others are not interrupted.
bool can_be_interrupted(const char* call) {
  for (const char* other : {"rename", "mkdir", "remove"}) {
    if (std::strcmp(call, other) == 0) return false;
  }
  return true;
}

enum class Verdict { pass, fail, half };

// Whether this call on `path` fails; errno is set then.
Verdict judge(const char* call, const std::string& path) {
  Disk& state = disk();
  static const char* const part = std::getenv("NIBBLE_FAULT_IN");
  if (part != nullptr && path.find(part) == std::string::npos) return Verdict::pass;
  if (!state.armed || inside > 0 || path.rfind(state.plan.root, 0) != 0 || !listed(state.plan.calls, call)) {
    return Verdict::pass;
  }
  const Inside guard;
  const int64_t number = state.count++;
  const std::string& how = state.plan.how;
  if (state.full && needs_space(call)) {
    errno = ENOSPC;
    return Verdict::fail;
  }
  if (state.plan.at < 0 || number != state.plan.at) return Verdict::pass;
  if (how == "HOLD") {
    hold();
    return Verdict::pass;
  }
  if (how == "KILL" || how == "POWER") {
    if (how == "POWER") lose_power();
    raise(SIGKILL);
  }
  if (how == "STOP") {
    raise(SIGSTOP);
    return Verdict::pass;
  }
  const bool is_write = std::strcmp(call, "write") == 0;
  if (how == "EINTR" && !can_be_interrupted(call)) return Verdict::pass;
  if (how == "SHORT") return is_write ? Verdict::half : Verdict::pass;
  if (how == "ENOSPC" || how == "FULL") {
    state.full = true;
    if (how == "FULL" && is_write) return Verdict::half;
    if (!needs_space(call)) return Verdict::pass;
  }
  errno = error_number(how);
  return Verdict::fail;
}

std::string absolute(int directory, const char* path) {
  if (path[0] == '/') return path;
  std::array<char, 4096> base{};
  if (directory == AT_FDCWD) {
    if (getcwd(base.data(), base.size()) == nullptr) return path;
  } else {
    const std::string link = "/proc/self/fd/" + std::to_string(directory);
    if (readlink(link.c_str(), base.data(), base.size() - 1) < 0) return path;
  }
  return std::string(base.data()) + "/" + path;
}

std::string path_of(int descriptor) {
  const auto found = disk().open_paths.find(descriptor);
  return found == disk().open_paths.end() ? std::string() : found->second;
}

void note_open(int descriptor, const std::string& path) {
  if (descriptor >= 0) disk().open_paths[descriptor] = path;
}

void note_written(int descriptor) {
  Disk& state = disk();
  if (state.plan.how != "POWER") return;
  const Inside guard;
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return;
  int& kept = state.unsynced.try_emplace({status.st_dev, status.st_ino}, -1).first->second;
  if (kept < 0) kept = fcntl(descriptor, F_DUPFD_CLOEXEC, 500);
}

void note_synced(int descriptor, const std::string& path) {
  Disk& state = disk();
  if (state.plan.how != "POWER") return;
  const Inside guard;
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return;
  const auto found = state.unsynced.find({status.st_dev, status.st_ino});
  if (found != state.unsynced.end()) {
    real<int(int)>("close")(found->second);
    state.unsynced.erase(found);
  }
  std::erase_if(state.unsynced_renames, [&](const Rename& r) { return parent_of(r.to) == path; });
}

void start_from_environment() {
  const char* root = std::getenv("NIBBLE_FAULT_ROOT");
  if (root == nullptr) return;
  const auto text = [](const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? otherwise : value);
  };
  arm({root, text("NIBBLE_FAULT_CALLS", ""), std::atoll(text("NIBBLE_FAULT_AT", "-1").c_str()),
       text("NIBBLE_FAULT_HOW", "EIO")});
}

__attribute__((constructor)) void constructed() { start_from_environment(); }

__attribute__((destructor)) void report() {
  const char* path = std::getenv("NIBBLE_FAULT_COUNT");
  if (path == nullptr) return;
  const Inside guard;
  if (FILE* file = std::fopen(path, "w")) {
    std::fprintf(file, "%lld\n", static_cast<long long>(disk().count));
    std::fclose(file);
  }
}

using Lock = std::lock_guard<std::recursive_mutex>;

}  // namespace

void arm(const Plan& plan) {
  const Lock lock(disk().mutex);
  disk().plan = plan;
  disk().count = 0;
  disk().full = false;
  disk().armed = true;
}

int64_t disarm() {
  const Lock lock(disk().mutex);
  disk().armed = false;
  return disk().count;
}

}  // namespace nibble::failing_io

using namespace nibble::failing_io;

namespace {

int open_at(const char* name, int directory, const char* path, int flags, mode_t mode) {
  if (inside > 0) return real<int(int, const char*, int, ...)>(name)(directory, path, flags, mode);
  const Lock lock(disk().mutex);
  const std::string full = absolute(directory, path);
  const bool reads_on_a_full_disk = disk().full && (flags & O_CREAT) == 0;
  if (!reads_on_a_full_disk && judge("open", full) == Verdict::fail) return -1;
  const int descriptor = real<int(int, const char*, int, ...)>(name)(directory, path, flags, mode);
  note_open(descriptor, full);
  return descriptor;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, unsigned)) : 0;
}

template <typename Call>
auto counted(const char* name, const std::string& path, Call call) -> decltype(call()) {
  return judge(name, path) == Verdict::pass ? call() : -1;
}

}  // namespace

extern "C" {

#define NIBBLE_OPEN(NAME, AT)                        \
  int NAME(const char* path, int flags, ...) {       \
    va_list arguments;                               \
    va_start(arguments, flags);                      \
    const mode_t mode = mode_of(flags, arguments);   \
    va_end(arguments);                               \
    return open_at(AT, AT_FDCWD, path, flags, mode); \
  }
#define NIBBLE_OPENAT(NAME)                                   \
  int NAME(int directory, const char* path, int flags, ...) { \
    va_list arguments;                                        \
    va_start(arguments, flags);                               \
    const mode_t mode = mode_of(flags, arguments);            \
    va_end(arguments);                                        \
    return open_at(#NAME, directory, path, flags, mode);      \
  }
NIBBLE_OPEN(open, "openat")
NIBBLE_OPEN(open64, "openat64")
NIBBLE_OPENAT(openat)
NIBBLE_OPENAT(openat64)

ssize_t pread(int file, void* bytes, size_t size, off_t offset) {
  const Lock lock(disk().mutex);
  return counted("read", path_of(file),
                 [&] { return real<ssize_t(int, void*, size_t, off_t)>("pread")(file, bytes, size, offset); });
}

ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  auto* const next = real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  const Lock lock(disk().mutex);
  const Verdict verdict = judge("write", path_of(file));
  if (verdict == Verdict::fail) return -1;
  note_written(file);
  return next(file, bytes, verdict == Verdict::half ? (size + 1) / 2 : size, offset);
}
ssize_t pwrite64(int file, const void* bytes, size_t size, off64_t offset) { return pwrite(file, bytes, size, offset); }

ssize_t write(int file, const void* bytes, size_t size) {
  auto* const next = real<ssize_t(int, const void*, size_t)>("write");
  if (inside > 0) return next(file, bytes, size);
  const Lock lock(disk().mutex);
  const std::string path = path_of(file);
  if (path.empty()) return next(file, bytes, size);
  const Verdict verdict = judge("write", path);
  if (verdict == Verdict::fail) return -1;
  note_written(file);
  return next(file, bytes, verdict == Verdict::half ? (size + 1) / 2 : size);
}

ssize_t read(int file, void* bytes, size_t size) {
  auto* const next = real<ssize_t(int, void*, size_t)>("read");
  if (inside > 0) return next(file, bytes, size);
  const Lock lock(disk().mutex);
  return counted("read", path_of(file), [&] { return next(file, bytes, size); });
}

#define NIBBLE_SYNC(NAME)                                \
  int NAME(int file) {                                   \
    const Lock lock(disk().mutex);                       \
    const std::string path = path_of(file);              \
    if (judge("sync", path) != Verdict::pass) return -1; \
    const int result = real<int(int)>(#NAME)(file);      \
    if (result == 0) note_synced(file, path);            \
    return result;                                       \
  }
NIBBLE_SYNC(fsync)
NIBBLE_SYNC(fdatasync)

int close(int file) {
  auto* const next = real<int(int)>("close");
  if (inside > 0) return next(file);
  const Lock lock(disk().mutex);
  const std::string path = path_of(file);
  const Verdict verdict = judge("close", path);
  const int error = errno;
  disk().open_paths.erase(file);
  const int result = next(file);  // a close that fails closes nevertheless
  if (verdict == Verdict::pass) return result;
  errno = error;
  return -1;
}

int renameat2(int from_directory, const char* from, int to_directory, const char* to, unsigned flags) noexcept {
  auto* const next = real<int(int, const char*, int, const char*, unsigned)>("renameat2");
  if (inside > 0) return next(from_directory, from, to_directory, to, flags);
  const Lock lock(disk().mutex);
  const std::string source = absolute(from_directory, from), target = absolute(to_directory, to);
  if (judge("rename", target) != Verdict::pass) return -1;
  const int result = next(from_directory, from, to_directory, to, flags);
  if (result == 0 && disk().plan.how == "POWER") disk().unsynced_renames.push_back({source, target, flags});
  return result;
}
int rename(const char* from, const char* to) noexcept { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static const bool jumps = std::getenv("NIBBLE_FAULT_CLOCK") != nullptr;
  static std::atomic<int> reads{0};
  static const char* const haste = std::getenv("OMPI_COMM_WORLD_RANK") ? std::getenv("NIBBLE_FAULT_HASTE") : nullptr;
  static std::atomic<int> ahead{0};
  const int result = real<int(clockid_t, timespec*)>("clock_gettime")(clock, time);
  if (jumps && clock == CLOCK_REALTIME) time->tv_sec -= 3600 * ++reads;
  if (haste != nullptr && clock == CLOCK_MONOTONIC) {
    const int error = errno;
    if (ahead > 0 || access(haste, F_OK) == 0) ++ahead;
    errno = error;
    time->tv_sec += ahead;
  }
  return result;
}

int sigaction(int number, const struct sigaction* action, struct sigaction* former) noexcept {
  static const char* const taken = std::getenv("NIBBLE_FAULT_TAKEN");
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  const bool takes = number == SIGUSR1 && action != nullptr && taken != nullptr &&
                     std::strcmp(taken, program_invocation_short_name) == 0;
  return real<int(int, const struct sigaction*, struct sigaction*)>("sigaction")(number, takes ? &nothing : action,
                                                                                 former);
}

int tcsetattr(int terminal, int when, const termios* state) noexcept {
  static const bool ends = std::getenv("NIBBLE_FAULT_RAW") != nullptr;
  const int result = real<int(int, int, const termios*)>("tcsetattr")(terminal, when, state);
  if (ends && (state->c_lflag & IEXTEN) == 0) raise(SIGTERM);
  return result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  const Lock lock(disk().mutex);
  return counted("mkdir", absolute(AT_FDCWD, path),
                 [&] { return real<int(const char*, mode_t)>("mkdir")(path, mode); });
}

int fallocate(int file, int mode, off_t offset, off_t size) {
  const Lock lock(disk().mutex);
  return counted("reserve", path_of(file),
                 [&] { return real<int(int, int, off_t, off_t)>("fallocate")(file, mode, offset, size); });
}

int unlink(const char* path) noexcept {
  const Lock lock(disk().mutex);
  return counted("remove", absolute(AT_FDCWD, path), [&] { return real<int(const char*)>("unlink")(path); });
}

int unlinkat(int directory, const char* path, int flags) noexcept {
  const Lock lock(disk().mutex);
  return counted("remove", absolute(directory, path),
                 [&] { return real<int(int, const char*, int)>("unlinkat")(directory, path, flags); });
}

int rmdir(const char* path) noexcept {
  const Lock lock(disk().mutex);
  return counted("remove", absolute(AT_FDCWD, path), [&] { return real<int(const char*)>("rmdir")(path); });
}

}  // extern "C"
