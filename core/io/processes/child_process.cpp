#include "nibble/core/io/processes/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr int kUnknownStatus = 127 << 8;

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& words, const Streams& streams, const std::string& remedy) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int failure[2];  // closed without a word when the program starts
  if (pipe2(failure, O_CLOEXEC) != 0) throw IoError(words.front(), std::strerror(errno));
  const pid_t parent = getpid();
  id_ = fork();
  if (id_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(76);  // it died before it could be watched
    const int given[] = {streams.in, streams.out, streams.err};
    for (int stream = 0; stream <= 2; ++stream) {
      if (given[stream] >= 0) dup2(given[stream], stream);
    }
    execvp(arguments[0], arguments.data());
    [[maybe_unused]] const ssize_t written = write(failure[1], &errno, sizeof errno);
    _exit(127);
  }
  int error = id_ < 0 ? errno : 0;
  close(failure[1]);
  if (error == 0) {
    ssize_t got = 0;
    while ((got = read(failure[0], &error, sizeof error)) < 0 && errno == EINTR) {
    }
    if (got > 0) wait();
  }
  close(failure[0]);
  if (error != 0) throw IoError(words.front(), std::string("cannot be started: ") + std::strerror(error), remedy);
}

void ChildProcess::send(int signal) const {
  if (!status_) kill(id_, signal);
}

std::optional<int> ChildProcess::ended() {
  look(WNOHANG);
  return status_;
}

int ChildProcess::wait() {
  while (!status_) look(0);
  return *status_;
}

void ChildProcess::look(int options) {
  if (status_) return;
  int status = 0;
  const pid_t found = waitpid(id_, &status, options);
  if (found == id_) status_ = status;
  if (found < 0 && errno == ECHILD) status_ = kUnknownStatus;  // where SIGCHLD is ignored, nobody keeps it
}

bool is_program(const std::string& name) {
  const auto runs = [](const std::string& file) {
    std::error_code error;
    return access(file.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(file, error);
  };
  if (name.find('/') != std::string::npos) return runs(name);
  const char* path = std::getenv("PATH");
  std::istringstream directories(path ? path : "/bin:/usr/bin");
  for (std::string directory; std::getline(directories, directory, ':');) {
    if (runs(directory + "/" + name)) return true;
  }
  return false;
}

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace nibble
