#include "nibble/core/base/tile_grant.h"

#include <cpuid.h>

namespace nibble {

bool tiles_granted() {
  unsigned a = 0, b = 0, c = 0, features = 0;
  constexpr unsigned kReadsStates = 1u << 27;  // OSXSAVE
  if (__get_cpuid(1, &a, &b, &c, &features) == 0 || (c & kReadsStates) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &features) == 0) return false;
  uint32_t low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return grants_tiles({.features = features, .saved = uint64_t{high} << 32 | low, .permission = request_tiles});
}

}  // namespace nibble
