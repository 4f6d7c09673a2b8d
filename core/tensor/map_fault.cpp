#include "nibble/core/tensor/map_fault.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace nibble {

namespace {

// A signal handler can reach nothing but globals, and may take no lock. A map beyond the table's size has no message.
struct Map {
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<size_t> size{0};
  std::atomic<const char*> path{nullptr};
};
std::array<Map, 1024> maps;

void say(const char* text) { [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text)); }

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Map& map : maps) {
    const uintptr_t begin = map.begin.load();
    if (begin == 0 || address < begin || address - begin >= map.size.load()) continue;
    if (const auto restore = before_exit_by_a_map.load()) restore();
    say("error: ");
    say(map.path.load());
    say(": was shortened or its disk failed while it was in use; restore the file and run again\n");
    _exit(4);
  }
  std::signal(signal, SIG_DFL);  // the faulting instruction runs again and ends the process
}

}  // namespace

std::atomic<void (*)()> before_exit_by_a_map{nullptr};

void exit_when_a_mapped_file_shrinks() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

namespace detail {

void register_map(const void* begin, size_t size, const char* path) {
  for (Map& map : maps) {
    uintptr_t expected = 0;
    if (!map.begin.compare_exchange_strong(expected, reinterpret_cast<uintptr_t>(begin))) continue;
    map.path = path;
    map.size = size;
    return;
  }
}

void forget_map(const void* begin) {
  for (Map& map : maps) {
    if (map.begin.load() != reinterpret_cast<uintptr_t>(begin)) continue;
    map.size = 0;
    map.begin = 0;
    return;
  }
}

}  // namespace detail

}  // namespace nibble
