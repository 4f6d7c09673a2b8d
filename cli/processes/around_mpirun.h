#pragma once
// A way for what ranks say around mpirun: one that ends a job while another host is cut off may not pass it on.

#include <optional>
#include <string>

namespace nibble::cli {

/// Where `nibble launch` hears the ranks of its host: a datagram socket whose name they find in the environment.
class RanksAreHeard {
 public:
  /// Without such a socket (no room for descriptors) nothing is heard.
  RanksAreHeard();
  ~RanksAreHeard();
  RanksAreHeard(const RanksAreHeard&) = delete;
  RanksAreHeard& operator=(const RanksAreHeard&) = delete;

  /// For poll; -1: nothing will come.
  int descriptor() const { return socket_; }
  /// The next line that has come; does not wait.
  std::optional<std::string> next();

 private:
  int socket_;
};

/// From a rank to the `nibble launch` of its host, at once; nothing happens where none listens.
void tell_launch(const std::string& line);

}  // namespace nibble::cli
