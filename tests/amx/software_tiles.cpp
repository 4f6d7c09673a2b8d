#include "nibble/tests/amx/software_tiles.h"

#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "nibble/core/base/tile_grant.h"

namespace nibble {

namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct State {
  bool configured = false;
  uint16_t row_bytes[kTiles] = {};
  uint8_t rows[kTiles] = {};
  uint8_t data[kTiles][kRows][kRowBytes] = {};
};

thread_local State state;
std::atomic<int64_t> instructions = 0, configured_threads = 0;

void configure(bool on) {
  configured_threads += static_cast<int>(on) - static_cast<int>(state.configured);
  state = {};
  state.configured = on;
}

bool load_configuration(const uint8_t* from) {
  if (from[0] != 1 || from[1] != 0) return false;
  configure(true);
  for (int t = 0; t < kTiles; ++t) {
    std::memcpy(&state.row_bytes[t], from + 16 + 2 * t, 2);
    state.rows[t] = from[48 + t];
    if (state.row_bytes[t] > kRowBytes || state.rows[t] > kRows) return false;
  }
  return true;
}

bool usable(int tile) { return state.configured && state.rows[tile] > 0 && state.row_bytes[tile] > 0; }

/// Subnormal numbers are zero.
float flushed(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : value;
}

template <typename T>
T element(int tile, int row, int index) {
  T value;
  std::memcpy(&value, state.data[tile][row] + static_cast<size_t>(index) * sizeof(T), sizeof value);
  return value;
}

float bf16_at(int tile, int row, int index) {
  return flushed(std::bit_cast<float>(uint32_t{element<uint16_t>(tile, row, index)} << 16));
}

template <typename T>
void put(int tile, int row, int index, T value) {
  std::memcpy(state.data[tile][row] + static_cast<size_t>(index) * sizeof(T), &value, sizeof value);
}

/// C += A B for tiles whose shapes fit: sums of groups of 4 bytes.
bool fit(int c, int a, int b) {
  return usable(a) && usable(b) && usable(c) && a != b && a != c && b != c && state.rows[c] == state.rows[a] &&
         state.row_bytes[a] == 4 * state.rows[b] && state.row_bytes[c] == state.row_bytes[b];
}

__attribute__((target("avx2,fma"))) inline __m256 flushed(__m256 values) {
  const __m256i exponents = _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7f800000));
  const __m256 zeros = _mm256_and_ps(values, _mm256_set1_ps(-0.0f));
  return _mm256_blendv_ps(values, zeros, _mm256_castsi256_ps(_mm256_cmpeq_epi32(exponents, _mm256_setzero_si256())));
}

__attribute__((target("avx2,fma"))) bool tdpbf16ps(int c, int a, int b) {
  if (!fit(c, a, b)) return false;
  constexpr int kColumns = kRowBytes / 4, kLanes = 8;
  const int depth = state.rows[b], columns = state.row_bytes[c] / 4;
  float pairs[2][kRows][kColumns] = {};  // of B, the even and the odd rows of what the tile holds interleaved
  for (int k = 0; k < depth; ++k) {
    for (int n = 0; n < columns; ++n) {
      pairs[0][k][n] = bf16_at(b, k, 2 * n);
      pairs[1][k][n] = bf16_at(b, k, 2 * n + 1);
    }
  }
  for (int m = 0; m < state.rows[c]; ++m) {
    float before[kColumns];
    std::memcpy(before, state.data[c][m], sizeof before);
    for (int n = 0; n < columns; n += kLanes) {
      __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
      for (int k = 0; k < depth; ++k) {
        for (int i = 0; i < 2; ++i) {
          const __m256 left = _mm256_set1_ps(bf16_at(a, m, 2 * k + i));
          sums[i] = flushed(_mm256_fmadd_ps(left, _mm256_loadu_ps(pairs[i][k] + n), sums[i]));
        }
      }
      const __m256 sum = flushed(_mm256_add_ps(sums[0], sums[1]));
      _mm256_storeu_ps(before + n, flushed(_mm256_add_ps(flushed(_mm256_loadu_ps(before + n)), sum)));
    }
    std::memcpy(state.data[c][m], before, static_cast<size_t>(columns) * sizeof(float));
  }
  return true;
}

bool tdpbsud(int c, int a, int b) {
  if (!fit(c, a, b)) return false;
  for (int m = 0; m < state.rows[c]; ++m) {
    for (int n = 0; n < state.row_bytes[c] / 4; ++n) {
      int32_t sum = element<int32_t>(c, m, n);
      for (int k = 0; k < 4 * state.rows[b]; ++k) {
        sum += element<int8_t>(a, m, k) * element<uint8_t>(b, k / 4, 4 * n + k % 4);
      }
      put(c, m, n, sum);
    }
  }
  return true;
}

/// An instruction with the prefix VEX.128.0F38.W0, which all those of AMX have.
struct Instruction {
  int opcode, prefix;        // prefix: 0, or 66, F3, F2 as 1, 2, 3
  int first, second, third;  // registers: of the byte ModRM, its reg and r/m; of VEX
  bool memory;
  uint8_t* address;  // without the index
  int64_t index;
  int64_t length;
};

std::optional<Instruction> decode(const uint8_t* at, const greg_t* registers) {
  constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  if (at[0] != 0xc4 || (at[1] & 0x9f) != 0x82 || (at[2] & 0x84) != 0) return std::nullopt;
  const int mod = at[4] >> 6, rm = at[4] & 7, extra_base = (~at[1] >> 2) & 8, extra_index = (~at[1] >> 3) & 8;
  Instruction found = {.opcode = at[3],
                       .prefix = at[2] & 3,
                       .first = (at[4] >> 3) & 7,
                       .second = rm,
                       .third = (~at[2] >> 3) & 15,
                       .memory = mod != 3,
                       .address = nullptr,
                       .index = 0,
                       .length = 5};
  if (!found.memory) return found;
  int base = rm;
  if (rm == 4) {
    const int sib = at[found.length++], index = ((sib >> 3) & 7) | extra_index;
    base = sib & 7;
    if (index != 4) found.index = registers[kOrder[index]] * (int64_t{1} << (sib >> 6));
  }
  if (mod == 0 && base == 5) return std::nullopt;  // an address without a register
  int64_t offset = registers[kOrder[base | extra_base]];
  if (mod == 1) offset += static_cast<int8_t>(at[found.length++]);
  if (mod == 2) {
    int32_t distance;
    std::memcpy(&distance, at + found.length, sizeof distance);
    offset += distance;
    found.length += 4;
  }
  found.address = reinterpret_cast<uint8_t*>(offset);
  return found;
}

bool carry_out(const Instruction& i) {
  const auto is = [&](int opcode, int prefix, bool memory) {
    return i.opcode == opcode && i.prefix == prefix && i.memory == memory;
  };
  if (is(0x49, 0, true) && i.first == 0) return load_configuration(i.address + i.index);
  if (is(0x49, 0, false) && i.first == 0 && i.second == 0) return configure(false), true;
  if (is(0x5c, 2, false)) return tdpbf16ps(i.first, i.second, i.third);
  if (is(0x5e, 2, false)) return tdpbsud(i.first, i.second, i.third);
  if (!usable(i.first)) return false;
  auto& rows = state.data[i.first];
  const auto bytes = static_cast<size_t>(state.row_bytes[i.first]);
  if (is(0x49, 3, false)) {  // tilezero
    std::memset(rows, 0, sizeof rows);
    return true;
  }
  if (is(0x4b, 3, true)) {  // tileloadd
    std::memset(rows, 0, sizeof rows);
    for (int r = 0; r < state.rows[i.first]; ++r) std::memcpy(rows[r], i.address + r * i.index, bytes);
    return true;
  }
  if (is(0x4b, 2, true)) {  // tilestored
    for (int r = 0; r < state.rows[i.first]; ++r) std::memcpy(i.address + r * i.index, rows[r], bytes);
    return true;
  }
  return false;
}

void handle(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto found = decode(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
  if (found && carry_out(*found)) {
    ++instructions;
    registers[REG_RIP] += found->length;
  } else {
    signal(SIGILL, SIG_DFL);  // what is tried again ends the program
  }
}

}  // namespace

bool tiles_granted() {
  request_tiles();  // a CPU that has tiles carries their configuration out itself, so their data must be granted
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGILL, &action, nullptr) == 0;
}

namespace test {

int64_t tile_instructions() { return instructions; }
int64_t threads_with_tiles() { return configured_threads; }

}  // namespace test

}  // namespace nibble
