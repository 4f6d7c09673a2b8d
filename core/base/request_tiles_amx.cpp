#include <sys/syscall.h>
#include <unistd.h>

#include "nibble/core/base/cpu_grants.h"

namespace nibble {

bool request_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // the latter: the data's bit in XCR0
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace nibble
