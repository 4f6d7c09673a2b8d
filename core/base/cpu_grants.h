#pragma once
// Whether AVX-512 and the tiles of AMX may be used. Linux lets a process use tiles only after it has asked.

#include <cstdint>

namespace nibble {

/// What a CPU and an operating system say of tiles.
struct TileGrant {
  uint32_t features;     ///< cpuid, leaf 7, edx
  uint64_t saved;        ///< XCR0: the states that the operating system saves
  bool (*permission)();  ///< asks the operating system for the data of tiles; called where the rest is there
};

/// Whether there are tiles, their products of bf16 and of 8 bits, and leave to use them.
inline bool grants_tiles(const TileGrant& grant) {
  constexpr uint32_t kFeatures = 1u << 22 | 1u << 24 | 1u << 25;  // amx-bf16, amx-tile, amx-int8
  constexpr uint64_t kStates = uint64_t{3} << 17;                 // configuration and data
  return (grant.features & kFeatures) == kFeatures && (grant.saved & kStates) == kStates && grant.permission();
}

/// Asks Linux (since 5.16, <asm/prctl.h>) for the data of tiles; false where it refuses or knows none.
bool request_tiles();

/// grants_tiles of this process. In a file of its own with the next one: tests/amx has all of this in software, and
/// defines them instead.
bool tiles_granted();

/// What of AVX-512 the CPU and the operating system have.
struct Avx512Grant {
  bool common;  ///< its parts F, BW, VL and DQ
  bool bf16, vbmi, vnni;
};
Avx512Grant avx512_granted();

}  // namespace nibble
