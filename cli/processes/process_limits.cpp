#include "nibble/cli/processes/process_limits.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>

#include "nibble/cli/command_line/command.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"

namespace nibble::cli {

namespace {

constexpr rlim_t kStack = rlim_t{8} << 20;
constexpr rlim_t kLeastStack = rlim_t{4} << 20;  // chat templates alone may take 3 MiB of it

// The main thread's stack grows up to the limit of the moment it is needed.
void raise_stack_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStack) return;
  rlimit raised = {kStack, std::max(limit.rlim_max, kStack)};
  if (setrlimit(RLIMIT_STACK, &raised) == 0) return;  // beyond the hard limit the administrator's alone
  raised = {limit.rlim_max, limit.rlim_max};
  if (setrlimit(RLIMIT_STACK, &raised) == 0 && raised.rlim_cur >= kLeastStack) return;
  throw IoError("stack",
                "is limited to " + std::to_string(limit.rlim_max >> 10) + " KiB, " + std::to_string(kLeastStack >> 10) +
                    " KiB are needed",
                "raise the limit: ulimit -s 8192");
}

// Threads of OpenMP take the limit that the process started under.
void raise_thread_stacks() {
  pthread_attr_t attributes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  size_t size = 0;
  if (pthread_attr_getstacksize(&attributes, &size) == 0 && size < kStack &&
      pthread_attr_setstacksize(&attributes, kStack) == 0) {
    pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace

void prepare_process() {
  std::signal(SIGPIPE, SIG_IGN);  // a closed terminal must not end a run
  std::signal(SIGCHLD, SIG_DFL);  // whoever started us may have ignored it: then no exit code of a child is kept
  std::signal(SIGXFSZ, SIG_IGN);  // the write says what is wrong, with the file's name
  raise_stack_limit();
  raise_thread_stacks();
  if (threads() > kMostThreads) {
    throw UsageError("asks for " + std::to_string(threads()) + " threads",
                     "use at most " + std::to_string(kMostThreads), "OMP_NUM_THREADS");
  }
}

}  // namespace nibble::cli
