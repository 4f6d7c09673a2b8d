#pragma once
#include <cstdint>

namespace nibble::test {

/// Rows, inputs, outputs and rank of the Linear that tuners are tested on.
inline constexpr int64_t kT = 7, kIn = 12, kOut = 10, kR = 3;

}  // namespace nibble::test
