#pragma once
// Programs that this one starts and watches.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace nibble {

/// A program in a process group of its own, so that what a terminal sends (Ctrl-C) reaches it only through us. It gets
/// SIGTERM when this process dies.
class ChildProcess {
 public:
  /// Descriptors that become its streams; -1: it has ours.
  struct Streams {
    int in = -1, out = -1, err = -1;
  };
  /// words: program (looked for on PATH) and arguments. Throws IoError where it cannot be started; remedy: what then.
  ChildProcess(const std::vector<std::string>& words, const Streams& streams, const std::string& remedy = "");

  pid_t id() const { return id_; }
  /// Nothing once it has ended.
  void send(int signal) const;
  /// How it ended, as waitpid says it; nothing while it runs. Exit code 127 where this process ignores SIGCHLD.
  std::optional<int> ended();
  int wait();

 private:
  void look(int options);

  pid_t id_ = -1;
  std::optional<int> status_;
};

/// Whether a program of this name can be started: a path, or a name that is on PATH.
bool is_program(const std::string& name);

/// Exit code of such a status, or 128 and the signal that ended it.
int exit_code_of(int status);

}  // namespace nibble
