#pragma once
// What one rendering may cost, so that a hostile template ends with an error. Values share their parts, so a small list
// may print, compare or hash as 2^40 values: whatever walks through values counts a step for each it meets, whatever
// works on text says how much. For .cpp files of jinja/.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "nibble/core/text/chat/jinja/failure.h"

namespace nibble::jinja {

class Budget {
 public:
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  static constexpr uint64_t kSteps = 2'000;  // reached in no time, thousands of times a second
  static constexpr uint64_t kBytes = 256 << 10;
  static constexpr size_t kLargest = 64 << 10;
#else
  static constexpr uint64_t kSteps = 20'000'000;         ///< nodes of the template that are run, values that are met
  static constexpr uint64_t kBytes = uint64_t{2} << 30;  ///< of all text and lists made on the way
  static constexpr size_t kLargest = size_t{256} << 20;  ///< one value
#endif
  static constexpr std::chrono::seconds kTime{20};
  static constexpr int kCalls = 199;                      ///< macros in macros; Python's stack ends there too
  static constexpr size_t kStackBytes = size_t{3} << 20;  ///< of the thread, below the rendering's start

  explicit Budget(uint64_t steps = kSteps)
      : most_steps_(steps), stack_start_(static_cast<const char*>(__builtin_frame_address(0))) {}

  void step() {
    if (++steps_ % 4096 == 0) check_time();
    if (steps_ > most_steps_) throw Failure("the template takes too many steps");
  }

  /// A value of those that an operation walks through, recursively.
  void visit() {
    step();
    check_stack();
  }

  /// Before work on `bytes` that are there.
  void read(size_t bytes) {
    read_ += bytes;
    if (read_ < (size_t{1} << 20)) return;
    read_ = 0;
    check_time();
  }

  /// Before `bytes` are taken for a value.
  void take(size_t bytes) {
    bytes_ += bytes;
    if (bytes > kLargest || bytes_ > kBytes) throw Failure("the template makes too much text");
    read(bytes);
  }

  /// Before `bytes` more are put behind `text`.
  void grow(const std::string& text, size_t bytes) {
    take(bytes);
    if (text.size() > kLargest) throw Failure("the template makes too much text");
  }

  /// Before going deeper into the template or a value.
  void check_stack() const {
    const auto* here = static_cast<const char*>(__builtin_frame_address(0));
    if (stack_start_ - here > static_cast<ptrdiff_t>(kStackBytes)) throw Failure("the template is nested too deep");
  }

 private:
  void check_time() const {
    if (std::chrono::steady_clock::now() - start_ > kTime) throw Failure("the template takes too long");
  }

  uint64_t most_steps_, steps_ = 0, bytes_ = 0;
  size_t read_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const char* stack_start_;
};

}  // namespace nibble::jinja
