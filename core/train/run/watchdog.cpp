#include "nibble/core/train/run/watchdog.h"

#include <algorithm>
#include <cmath>

namespace nibble {

Watchdog::Watchdog(double seconds, std::function<void(const std::string&)> say)
    : seconds_(seconds), say_(std::move(say)) {
  if (seconds_ > 0 && say_) thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// The watchdog's thread need not wake for these: it sleeps no longer than until the earliest line can be due.
void Watchdog::begin(const std::string& activity, const std::string& what) {
  if (!thread_.joinable()) return;
  const std::lock_guard lock(mutex_);
  activities_[activity] = {what, Clock::now(), seconds_};
}

void Watchdog::end(const std::string& activity) {
  if (!thread_.joinable()) return;
  const std::lock_guard lock(mutex_);
  activities_.erase(activity);
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    double wait = seconds_;
    for (auto& [activity, watched] : activities_) {
      const double age = std::chrono::duration<double>(Clock::now() - watched.since).count();
      if (age >= watched.next_seconds) {
        watched.next_seconds = 2 * age;
        say_("warning: " + activity + " has been at " + watched.what + " for " + std::to_string(std::lround(age)) +
             " s; if that is not usual, look at the disk or network file system");
      }
      wait = std::min(wait, watched.next_seconds - age);
    }
    changed_.wait_for(lock, std::chrono::duration<double>(std::max(wait, 0.01)));
  }
}

}  // namespace nibble
