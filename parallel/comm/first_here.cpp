#include "nibble/parallel/comm/first_here.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <utility>

namespace nibble {

FirstHere::FirstHere(uint64_t job, bool creates, const std::function<void()>& barrier) {
  char name[32];
  std::snprintf(name, sizeof name, "/nibble-%016" PRIx64, job);
  int file = creates ? shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
  if (file >= 0 && ftruncate(file, sizeof *asked_) != 0) ::close(std::exchange(file, -1));
  barrier();
  if (!creates) file = shm_open(name, O_RDWR | O_CLOEXEC, 0600);
  barrier();
  if (creates) shm_unlink(name);
  if (file < 0) return;
  void* word = mmap(nullptr, sizeof *asked_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (word != MAP_FAILED) asked_ = static_cast<std::atomic<int>*>(word);
}

FirstHere::~FirstHere() {
  if (asked_) munmap(asked_, sizeof *asked_);
}

}  // namespace nibble
