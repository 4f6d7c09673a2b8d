// One program a target: NIBBLE_FUZZ_TARGET is the function in targets.h.

#include <cstddef>

#include "nibble/tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nibble::fuzz::NIBBLE_FUZZ_TARGET({data, size});
  return 0;
}
