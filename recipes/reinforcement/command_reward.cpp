#include "nibble/recipes/reinforcement/command_reward.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/unfinished.h"

namespace nibble {

namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kLongestLine = 4096;

constexpr size_t kShown = 60;
constexpr long long kLongestWaitMs = 50;  // between two looks at whether to stop

std::string shown(const std::string& line) {
  return nlohmann::json(line.substr(0, kShown)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

bool parse_score(const std::string& line, double& score) {
  const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
  if (!value.is_null() && !value.is_number()) return false;
  score = value.is_null() ? kNothing : value.get<double>();
  return value.is_null() || std::isfinite(score);
}

// write(), but for the signal that ends a program where nobody reads: there it fails alone (EPIPE).
ssize_t write_without_signal(int file, const char* bytes, size_t count) {
  sigset_t broken_pipe, before;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
  const ssize_t written = write(file, bytes, count);
  const int reason = errno;
  const timespec none{};
  if (written < 0 && reason == EPIPE && sigismember(&before, SIGPIPE) == 0) sigtimedwait(&broken_pipe, nullptr, &none);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = reason;
  return written;
}

}  // namespace

/// Our ends of the command's streams.
struct CommandReward::Pipes {
  int in = -1, out = -1;
  std::string read;  // behind the last line
  ~Pipes() {
    for (const int end : {in, out}) {
      if (end >= 0) close(end);
    }
  }
};

CommandReward::CommandReward(RewardRecipe recipe, std::string place)
    : recipe_(std::move(recipe)), place_(std::move(place)) {}

CommandReward::~CommandReward() { end(); }

void CommandReward::start() {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) throw IoError(place_, std::strerror(errno));
  if (pipe2(out, O_CLOEXEC) != 0) {
    close(in[0]);
    close(in[1]);
    throw IoError(place_, std::strerror(errno));
  }
  pipes_ = std::make_unique<Pipes>();
  pipes_->in = in[1];
  pipes_->out = out[0];
  fcntl(pipes_->in, F_SETFL, O_NONBLOCK);
  fcntl(pipes_->out, F_SETFL, O_NONBLOCK);
  try {
    const auto held = hold_unfinished();
    child_ = std::make_unique<ChildProcess>(recipe_.argv, ChildProcess::Streams{.in = in[0], .out = out[1]},
                                            "check argv of this reward");
    note_group(child_->id());
  } catch (...) {
    close(in[0]);
    close(out[1]);
    throw;
  }
  close(in[0]);
  close(out[1]);
  if (recipe_.memory_bytes <= 0) return;
  const rlimit limit{static_cast<rlim_t>(recipe_.memory_bytes), static_cast<rlim_t>(recipe_.memory_bytes)};
  prlimit(child_->id(), RLIMIT_AS, &limit, nullptr);
}

void CommandReward::end() {
  if (!child_) return;
  pipes_.reset();
  kill(-child_->id(), SIGKILL);  // its group: what it started as well
  forget_group(child_->id());
  child_->wait();
  child_.reset();
}

// What went wrong, or nothing; nothing as well, with fewer scores than lines, where it is to stop.
std::string CommandReward::exchange(const std::vector<std::string>& lines, const std::function<bool(size_t)>& stop,
                                    std::vector<double>& scores) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(recipe_.timeout_seconds);
  std::string to_write;
  for (const std::string& line : lines) to_write += line + "\n";
  const std::string of_all = " of " + count_text(std::ssize(lines), "answer");
  size_t written = 0;
  pollfd early{pipes_->out, POLLIN, 0};  // what nobody asked for would be taken for the first answer's
  if (poll(&early, 1, 0) > 0 && (early.revents & POLLIN) != 0) {
    char bytes[kShown];
    const ssize_t count = read(pipes_->out, bytes, sizeof bytes);
    if (count > 0) return "wrote " + shown(std::string(bytes, static_cast<size_t>(count))) + " before it was asked";
  }
  const auto after = [&] { return " after " + std::to_string(scores.size()) + of_all; };
  bool closed = false;  // its output: it is about to end, or hangs
  while (scores.size() < lines.size()) {
    if (stop(scores.size())) return {};
    if (const std::optional<int> status = closed ? child_->ended() : std::nullopt) {
      return "ended with exit code " + std::to_string(exit_code_of(*status)) + after();
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      char limit[32];
      std::snprintf(limit, sizeof limit, "%g", recipe_.timeout_seconds);
      return std::string(closed ? "closed its output and did not end in" : "took longer than") + " timeout_seconds (" +
             limit + "), " + std::to_string(scores.size()) + of_all + " were scored";
    }
    pollfd ends[2] = {{closed ? -1 : pipes_->out, POLLIN, 0},
                      {!closed && written < to_write.size() ? pipes_->in : -1, POLLOUT, 0}};
    if (poll(ends, 2, static_cast<int>(std::min<long long>(left, closed ? 1 : kLongestWaitMs))) < 0 && errno != EINTR) {
      return std::strerror(errno);
    }
    if ((ends[1].revents & (POLLOUT | POLLERR)) != 0) {
      const ssize_t count = write_without_signal(pipes_->in, to_write.data() + written, to_write.size() - written);
      if (count > 0) written += static_cast<size_t>(count);
      if (count < 0 && errno == EPIPE) written = to_write.size();  // what it has said so far is read first
    }
    if ((ends[0].revents & (POLLIN | POLLHUP)) == 0) continue;
    char bytes[4096];
    const ssize_t count = read(pipes_->out, bytes, sizeof bytes);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    closed = count <= 0;
    if (closed) continue;
    pipes_->read.append(bytes, static_cast<size_t>(count));
    for (size_t end; scores.size() < lines.size() && (end = pipes_->read.find('\n')) != std::string::npos;) {
      const std::string line = pipes_->read.substr(0, end);
      pipes_->read.erase(0, end + 1);
      double score = kNothing;
      if (!parse_score(line, score)) return "wrote " + shown(line) + after() + ", not a number or null";
      scores.push_back(score);
    }
    if (pipes_->read.size() > kLongestLine) return "wrote " + shown(pipes_->read) + after() + ", not a number or null";
  }
  if (!pipes_->read.empty()) return "wrote " + shown(pipes_->read) + " beyond one line for each answer";
  return {};
}

std::vector<double> CommandReward::score(const std::vector<std::string>& lines,
                                         const std::function<bool(size_t)>& stop) {
  std::vector<double> scores;
  std::string wrong;
  try {
    if (!child_) start();
    wrong = exchange(lines, stop, scores);
  } catch (const IoError& error) {
    if (failure_.empty()) throw;  // it has never been started
    wrong = "is not started again (" + std::string(error.what()) + ")";
  }
  failure_.clear();
  if (wrong.empty() && scores.size() == lines.size()) return scores;
  end();
  if (wrong.empty()) return {};
  const std::string reason = "the command " + recipe_.argv.front() + " " + wrong;
  if (!recipe_.null_on_failure) {
    throw InputError(place_, reason, "mend it, or set null_on_failure to go on without its rewards");
  }
  failure_ = place_ + ": " + reason;
  scores.resize(lines.size(), kNothing);
  return scores;
}

}  // namespace nibble
