#pragma once
#include <chrono>

namespace nibble {

/// Of a clock that never jumps.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace nibble
