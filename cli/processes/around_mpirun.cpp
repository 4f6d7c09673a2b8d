#include "nibble/cli/processes/around_mpirun.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace nibble::cli {

namespace {

constexpr const char* kName = "NIBBLE_LAUNCH";
constexpr const char* kColumns = "NIBBLE_LAUNCH_COLUMNS";
constexpr size_t kLongest = 64 << 10;  // bytes of a line

// In Linux's abstract namespace: no file that could be left behind.
struct Address {
  explicit Address(const std::string& name) {
    path.sun_family = AF_UNIX;
    const size_t taken = std::min(name.size(), sizeof path.sun_path - 1);
    std::copy_n(name.data(), taken, path.sun_path + 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + taken);
  }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&path); }

  sockaddr_un path{};
  socklen_t size = 0;
};

}  // namespace

RanksAreHeard::RanksAreHeard() : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  uint64_t secret = 0;
  if (socket_ < 0 || getrandom(&secret, sizeof secret, 0) != sizeof secret) return;
  const std::string name = "nibble-launch-" + std::to_string(getpid()) + "-" + std::to_string(secret);
  const Address here(name);
  if (bind(socket_, here.address(), here.size) == 0) setenv(kName, name.c_str(), 1);
}

RanksAreHeard::~RanksAreHeard() {
  if (socket_ >= 0) close(socket_);
}

std::optional<std::string> RanksAreHeard::next() {
  std::string line(kLongest, '\0');
  const ssize_t got = socket_ < 0 ? -1 : recv(socket_, line.data(), line.size(), 0);
  if (got < 0) return std::nullopt;
  line.resize(static_cast<size_t>(got));
  return line;
}

void send_to_launch(const std::string& line) {
  const char* const name = std::getenv(kName);
  const int from = name ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
  if (from < 0) return;
  const Address launch(name);
  sendto(from, line.data(), std::min(line.size(), kLongest), MSG_NOSIGNAL, launch.address(), launch.size);
  close(from);
}

void offer_terminal(size_t columns) { setenv(kColumns, std::to_string(columns).c_str(), 1); }

size_t offered_columns() {
  const char* const columns = std::getenv(kColumns);
  return columns ? std::strtoul(columns, nullptr, 10) : 0;
}

}  // namespace nibble::cli
