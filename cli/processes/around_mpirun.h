#pragma once
// A way for what ranks say around mpirun: one that ends a job while another host is cut off may not pass it on. And
// what `nibble launch` sends them: mpirun hides its terminal.

#include <cstddef>
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
void send_to_launch(const std::string& line);

/// From `nibble launch` to the ranks that get its environment, those of its host: a text that ends with '\r' is renewed
/// by the next one on its terminal, of so many columns (0: there is none).
void offer_terminal(size_t columns);
/// What was offered; 0 where nothing was.
size_t offered_columns();

}  // namespace nibble::cli
