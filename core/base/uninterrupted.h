#pragma once
// System calls that a signal interrupts.

#include <cerrno>

namespace nibble {

/// Repeats `call` (which returns a negative number and sets errno, or another number) while a signal interrupts it.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace nibble
