#pragma once
// What one rendering may cost, so that a hostile template ends with an error. For .cpp files of this folder.

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "nibble/core/text/jinja/failure.h"

namespace nibble::jinja {

class Budget {
 public:
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  static constexpr uint64_t kSteps = 2'000;  // reached in no time, thousands of times a second
  static constexpr uint64_t kBytes = 256 << 10;
  static constexpr size_t kLargest = 64 << 10;
#else
  static constexpr uint64_t kSteps = 20'000'000;         ///< nodes of the template that are run
  static constexpr uint64_t kBytes = uint64_t{2} << 30;  ///< of all text and lists made on the way
  static constexpr size_t kLargest = size_t{256} << 20;  ///< one value
#endif
  static constexpr std::chrono::seconds kTime{20};
  static constexpr int kCalls = 199;                      ///< macros in macros; Python's stack ends there too
  static constexpr size_t kStackBytes = size_t{3} << 20;  ///< of the thread, below the rendering's start

  Budget() : stack_start_(static_cast<const char*>(__builtin_frame_address(0))) {}

  void step() {
    if (++steps_ % 4096 == 0) check_time();
    if (steps_ > kSteps) throw Failure("the template takes too many steps");
  }

  /// Before `bytes` are taken for a value.
  void take(size_t bytes) {
    bytes_ += bytes;
    if (bytes > kLargest || bytes_ > kBytes) throw Failure("the template makes too much text");
  }

  /// Before going deeper into the template.
  void check_stack() const {
    const auto* here = static_cast<const char*>(__builtin_frame_address(0));
    if (stack_start_ - here > static_cast<ptrdiff_t>(kStackBytes)) throw Failure("the template is nested too deep");
  }

 private:
  void check_time() const {
    if (std::chrono::steady_clock::now() - start_ > kTime) throw Failure("the template takes too long");
  }

  uint64_t steps_ = 0, bytes_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const char* stack_start_;
};

}  // namespace nibble::jinja
