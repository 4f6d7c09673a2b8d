#include <algorithm>
#include <cmath>
#include <cstring>

#include "nibble/core/base/error.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/io/gguf/gguf_k_blocks.h"

namespace nibble {

namespace {

constexpr int64_t kBlock = 32;

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void store(f16 value, std::byte* to) { std::memcpy(to, &value, sizeof value); }

// d = largest magnitude / 127, then 32 i8
void encode_q8(const float* x, std::byte* to) {
  float largest = 0;
  for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(x[i]));
  const float d = largest / 127.0f, inverse = d > 0 ? 1.0f / d : 0.0f;
  store(f16(d), to);
  for (int64_t i = 0; i < kBlock; ++i) {
    to[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(x[i] * inverse)));
  }
}

// Writes d = the element of largest magnitude / -half; returns 1 / d, or 0 where all are 0.
float store_scale(const float* x, float half, std::byte* to) {
  float extreme = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
  }
  const float d = extreme / -half;
  store(f16(d), to);
  return d != 0 ? 1.0f / d : 0.0f;
}

// d = the element of largest magnitude / -8, then 16 bytes: element j low, element j + 16 high, both plus 8
void encode_q4(const float* x, std::byte* to) {
  const float inverse = store_scale(x, 8, to);
  const auto code = [&](float value) {
    return static_cast<uint8_t>(std::min(15, static_cast<int>(value * inverse + 8.5f)));
  };
  for (int64_t j = 0; j < kBlock / 2; ++j) {
    to[2 + j] = static_cast<std::byte>(code(x[j]) | code(x[j + kBlock / 2]) << 4);
  }
}

void decode_q8(const std::byte* from, float* x) {
  const auto d = static_cast<float>(load<f16>(from));
  for (int64_t i = 0; i < kBlock; ++i) x[i] = d * static_cast<float>(load<int8_t>(from + 2 + i));
}

void decode_q4(const std::byte* from, float* x) {
  const auto d = static_cast<float>(load<f16>(from));
  for (int64_t j = 0; j < kBlock / 2; ++j) {
    const auto codes = static_cast<uint8_t>(from[2 + j]);
    x[j] = d * static_cast<float>((codes & 15) - 8);
    x[j + kBlock / 2] = d * static_cast<float>((codes >> 4) - 8);
  }
}

// Q5_0 and Q5_1: like Q4_0 with the fifth bits of all codes in 4 bytes; 5_1 counts from the least element on. The other
// forms that llama.cpp gives rows of no multiple of 256 where K-quants were asked for.
void store_fives(const uint8_t* codes, std::byte* to) {
  uint32_t high = 0;
  for (int64_t j = 0; j < kBlock; ++j) high |= static_cast<uint32_t>(codes[j] >> 4) << j;
  std::memcpy(to, &high, sizeof high);
  for (int64_t j = 0; j < kBlock / 2; ++j) {
    to[4 + j] = static_cast<std::byte>((codes[j] & 15) | (codes[j + kBlock / 2] & 15) << 4);
  }
}

void load_fives(const std::byte* from, uint8_t* codes) {
  const auto high = load<uint32_t>(from);
  for (int64_t j = 0; j < kBlock; ++j) {
    const auto pair = static_cast<uint8_t>(from[4 + j % (kBlock / 2)]);
    codes[j] = static_cast<uint8_t>((j < kBlock / 2 ? pair & 15 : pair >> 4) | (high >> j & 1) << 4);
  }
}

void encode_q5_0(const float* x, std::byte* to) {
  const float inverse = store_scale(x, 16, to);
  uint8_t codes[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
    codes[i] = static_cast<uint8_t>(std::min(31, static_cast<int>(x[i] * inverse + 16.5f)));
  }
  store_fives(codes, to + 2);
}

void decode_q5_0(const std::byte* from, float* x) {
  const auto d = static_cast<float>(load<f16>(from));
  uint8_t codes[kBlock];
  load_fives(from + 2, codes);
  for (int64_t i = 0; i < kBlock; ++i) x[i] = d * static_cast<float>(codes[i] - 16);
}

void encode_q5_1(const float* x, std::byte* to) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const float d = (*high - *low) / 31.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
  store(f16(d), to);
  store(f16(*low), to + 2);
  uint8_t codes[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>((x[i] - *low) * inverse + 0.5f);
  store_fives(codes, to + 4);
}

void decode_q5_1(const std::byte* from, float* x) {
  const auto d = static_cast<float>(load<f16>(from)), low = static_cast<float>(load<f16>(from + 2));
  uint8_t codes[kBlock];
  load_fives(from + 4, codes);
  for (int64_t i = 0; i < kBlock; ++i) x[i] = static_cast<float>(codes[i]) * d + low;
}

// MXFP4: the exponent of a scale, then codes as in Q4_0: a sign and the number of a magnitude, which is twice that of
// E2M1 and its scale half. What was MXFP4 before keeps its values.
constexpr int kMagnitudes[] = {0, 1, 2, 3, 4, 6, 8, 12};

float mxfp4_scale(uint8_t exponent) { return std::ldexp(1.0f, static_cast<int>(exponent) - 128); }

void encode_mxfp4(const float* x, std::byte* to) {
  float largest = 0;
  for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(x[i]));
  const int exponent = largest > 0 ? std::clamp(std::ilogb(largest) - 2 + 127, 0, 254) : 0;
  const float d = mxfp4_scale(static_cast<uint8_t>(exponent));
  const auto code = [&](float value) {
    uint8_t nearest = 0;
    for (uint8_t m = 1; m < std::size(kMagnitudes); ++m) {
      const auto error = [&](uint8_t n) { return std::abs(static_cast<float>(kMagnitudes[n]) * d - std::abs(value)); };
      if (error(m) < error(nearest)) nearest = m;
    }
    return static_cast<uint8_t>(value < 0 && nearest > 0 ? nearest | 8 : nearest);
  };
  to[0] = static_cast<std::byte>(exponent);
  for (int64_t j = 0; j < kBlock / 2; ++j)
    to[1 + j] = static_cast<std::byte>(code(x[j]) | code(x[j + kBlock / 2]) << 4);
}

void decode_mxfp4(const std::byte* from, float* x) {
  const float d = mxfp4_scale(static_cast<uint8_t>(from[0]));
  const auto value = [&](int code) {
    const float magnitude = d * static_cast<float>(kMagnitudes[code & 7]);
    return (code & 8) != 0 ? -magnitude : magnitude;
  };
  for (int64_t j = 0; j < kBlock / 2; ++j) {
    const auto codes = static_cast<uint8_t>(from[1 + j]);
    x[j] = value(codes & 15);
    x[j + kBlock / 2] = value(codes >> 4);
  }
}

template <typename T>
void narrow(const float* from, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<T>(from[i]);
    std::memcpy(to + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
  }
}

template <typename T>
void widen(const std::byte* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(load<T>(from + static_cast<size_t>(i) * sizeof(T)));
}

template <void (*block)(const float*, std::byte*), int64_t elements, int64_t bytes>
void encode_blocks(const float* from, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; i += elements, to += bytes) block(from + i, to);
}

template <void (*block)(const std::byte*, float*), int64_t elements, int64_t bytes>
void decode_blocks(const std::byte* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += elements, from += bytes) block(from, to + i);
}

struct Layout {
  GgufType type;
  std::string_view name;
  int64_t elements, bytes;  // of a block
  void (*encode)(const float* from, int64_t count, std::byte* to);
  void (*decode)(const std::byte* from, int64_t count, float* to);
};

template <typename T>
constexpr Layout plain(GgufType type, std::string_view name) {
  return {type, name, 1, sizeof(T), narrow<T>, widen<T>};
}

template <int64_t elements, int64_t bytes, void (*encode)(const float*, std::byte*),
          void (*decode)(const std::byte*, float*)>
constexpr Layout blocks(GgufType type, std::string_view name) {
  return {type, name, elements, bytes, encode_blocks<encode, elements, bytes>, decode_blocks<decode, elements, bytes>};
}

using namespace gguf;
constexpr Layout kLayouts[] = {
    plain<float>(GgufType::f32, "F32"),
    plain<double>(GgufType::f64, "F64"),
    plain<f16>(GgufType::f16, "F16"),
    plain<bf16>(GgufType::bf16, "BF16"),
    blocks<kBlock, 2 + kBlock / 2, encode_q4, decode_q4>(GgufType::q4_0, "Q4_0"),
    blocks<kBlock, 6 + kBlock / 2, encode_q5_0, decode_q5_0>(GgufType::q5_0, "Q5_0"),
    blocks<kBlock, 8 + kBlock / 2, encode_q5_1, decode_q5_1>(GgufType::q5_1, "Q5_1"),
    blocks<kBlock, 2 + kBlock, encode_q8, decode_q8>(GgufType::q8_0, "Q8_0"),
    blocks<kBlock, 1 + kBlock / 2, encode_mxfp4, decode_mxfp4>(GgufType::mxfp4, "MXFP4"),
    blocks<kKBlock, kQ4KBytes, encode_q4_k, decode_q4_k>(GgufType::q4_k, "Q4_K"),
    blocks<kKBlock, kQ5KBytes, encode_q5_k, decode_q5_k>(GgufType::q5_k, "Q5_K"),
    blocks<kKBlock, kQ6KBytes, encode_q6_k, decode_q6_k>(GgufType::q6_k, "Q6_K"),
};

const Layout* find(uint32_t number) {
  const auto found = std::ranges::find(kLayouts, static_cast<GgufType>(number), &Layout::type);
  return found == std::end(kLayouts) ? nullptr : found;
}

const Layout& layout(GgufType type) {
  const Layout* found = find(static_cast<uint32_t>(type));
  NIBBLE_CHECK(found, "a type of GGUF without a layout");
  return *found;
}

}  // namespace

std::optional<GgufType> find_gguf_type(uint32_t number) {
  const Layout* found = find(number);
  return found ? std::optional(found->type) : std::nullopt;
}

std::string_view gguf_type_name(GgufType type) { return layout(type).name; }
int64_t gguf_block_elements(GgufType type) { return layout(type).elements; }
int64_t gguf_block_bytes(GgufType type) { return layout(type).bytes; }

void gguf_encode(GgufType type, const float* from, int64_t count, std::byte* to) {
  layout(type).encode(from, count, to);
}
void gguf_decode(GgufType type, const std::byte* from, int64_t count, float* to) {
  layout(type).decode(from, count, to);
}

}  // namespace nibble
