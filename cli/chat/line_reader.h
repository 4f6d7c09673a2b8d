#pragma once
#include <memory>
#include <string>
#include <thread>

namespace nibble::cli {

/// Lines that somebody types, or that standard input has. On a terminal a line is edited as in a shell (arrows, Ctrl-A,
/// Ctrl-R), earlier ones come back, and a pasted text of several lines is one; what is typed before it is asked for
/// waits unseen. The prompt is written to standard error.
class LineReader {
 public:
  explicit LineReader(const char* prompt);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool on_a_terminal() const { return terminal_ != nullptr; }
  /// A thread that takes over what is typed while it runs, for the next lines: the terminal itself keeps 4,095 bytes,
  /// and behind those no Ctrl-C gets through.
  std::jthread take_typed();
  /// The next line without its end, in which a pasted text may have line breaks; false where there are no more.
  bool read(std::string& line);

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;
};

}  // namespace nibble::cli
