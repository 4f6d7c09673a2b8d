#pragma once
// The tiles of AMX in software: the instructions as compiled, which a CPU without them refuses (SIGILL), are decoded
// and carried out as Intel's manual says. Programs linked with it, and with the kernels for AVX-512 in software, have
// Isa::amx where the CPU has Isa::avx2.

#include <cstdint>

namespace nibble::test {

/// Instructions that were carried out in software; 0 on a CPU that grants tiles.
int64_t tile_instructions();

/// Threads whose tiles are configured.
int64_t threads_with_tiles();

}  // namespace nibble::test
