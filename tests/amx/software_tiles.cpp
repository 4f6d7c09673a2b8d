#include "nibble/tests/amx/software_tiles.h"

#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstring>
#include <optional>

#include "nibble/core/base/cpu_grants.h"

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

/// C += A B for tiles whose shapes fit: sums of groups of 4 bytes.
bool fit(int c, int a, int b) {
  return usable(a) && usable(b) && usable(c) && a != b && a != c && b != c && state.rows[c] == state.rows[a] &&
         state.row_bytes[a] == 4 * state.rows[b] && state.row_bytes[c] == state.row_bytes[b];
}

/// Rows of a tile; what lies beyond its bytes is 0.
inline __m512i row_of(int tile, int row) { return _mm512_loadu_si512(state.data[tile][row]); }

inline void put_row(int tile, int row, __m512i values) {
  const auto mask = static_cast<__mmask16>((1u << (state.row_bytes[tile] / 4)) - 1);
  _mm512_mask_storeu_epi32(state.data[tile][row], mask, values);
}

/// Subnormal numbers are zero for as long as it lives.
struct FlushesSubnormals {
  FlushesSubnormals() { _mm_setcsr(before | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON); }
  ~FlushesSubnormals() { _mm_setcsr(before); }
  const unsigned before = _mm_getcsr();
};

/// Of a row of pairs of bf16 the first elements and the second ones.
struct Pairs {
  __m512 values[2];
  explicit Pairs(__m512i row)
      : values{_mm512_castsi512_ps(_mm512_slli_epi32(row, 16)),
               _mm512_castsi512_ps(_mm512_and_si512(row, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))} {}
};

bool tdpbf16ps(int c, int a, int b) {
  if (!fit(c, a, b)) return false;
  const FlushesSubnormals flushes;
  __m512 right[2][kRows];
  const int depth = state.rows[b];
  for (int k = 0; k < depth; ++k) {
    const Pairs row(row_of(b, k));
    for (int i = 0; i < 2; ++i) right[i][k] = row.values[i];
  }
  for (int m = 0; m < state.rows[c]; ++m) {
    const Pairs row(row_of(a, m));
    float left[2][kRows];
    for (int i = 0; i < 2; ++i) _mm512_storeu_ps(left[i], row.values[i]);
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int k = 0; k < depth; ++k) {
      for (int i = 0; i < 2; ++i) sums[i] = _mm512_fmadd_ps(_mm512_set1_ps(left[i][k]), right[i][k], sums[i]);
    }
    const __m512 sum = _mm512_add_ps(sums[0], sums[1]);
    put_row(c, m, _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(row_of(c, m)), sum)));
  }
  return true;
}

bool tdpbsud(int c, int a, int b) {
  if (!fit(c, a, b)) return false;
  for (int m = 0; m < state.rows[c]; ++m) {
    __m512i sum = row_of(c, m);
    for (int k = 0; k < state.rows[b]; ++k) {
      int four;
      std::memcpy(&four, state.data[a][m] + 4 * k, sizeof four);
      const __m512i left = _mm512_set1_epi32(four), right = row_of(b, k);
      // The first and the third elements of the fours as 16 bits, then the second and the fourth.
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_srai_epi16(_mm512_slli_epi16(left, 8), 8),
                                                    _mm512_and_si512(right, _mm512_set1_epi16(0xff))));
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_srai_epi16(left, 8), _mm512_srli_epi16(right, 8)));
    }
    put_row(c, m, sum);
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

/// Carries out the instruction that the thread stands at, and those of tiles right behind it: every signal costs
/// microseconds.
void handle(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  bool any = false;
  for (;;) {
    const auto found = decode(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
    if (!found || !carry_out(*found)) break;
    any = true;
    ++instructions;
    registers[REG_RIP] += found->length;
  }
  if (!any) signal(SIGILL, SIG_DFL);  // what is tried again ends the program
}

}  // namespace

bool tiles_granted() {
  request_tiles();  // a CPU that has tiles carries their configuration out itself, so their data must be granted
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGILL, &action, nullptr) == 0;
}

Avx512Grant avx512_granted() { return {.common = true, .bf16 = true, .vbmi = true, .vnni = true}; }

namespace test {

int64_t tile_instructions() { return instructions; }
int64_t threads_with_tiles() { return configured_threads; }

}  // namespace test

}  // namespace nibble
