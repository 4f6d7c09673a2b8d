#pragma once
// Notices what hangs: a disk or network file system that does not answer, data that does not come.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace nibble {

/// Watches activities from a thread of its own. It ends nothing: a call that hangs in the system cannot be taken back,
/// but whoever watches the run learns where it stands.
class Watchdog {
 public:
  /// Calls `say` on the watchdog's thread with a line when an activity has lasted `seconds`, and again each time that
  /// has doubled. 0 seconds: never, and there is no thread.
  Watchdog(double seconds, std::function<void(const std::string& line)> say);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// `activity` ("training") does `what` ("step 12") from now on.
  void begin(const std::string& activity, const std::string& what);
  void end(const std::string& activity);

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    std::string what;
    Clock::time_point since;
    double next_seconds;  // of age
  };
  void run();

  double seconds_;
  std::function<void(const std::string&)> say_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Watched> activities_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace nibble
