#include <algorithm>
#include <cmath>
#include <cstring>

#include "nibble/core/io/gguf/gguf.h"

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

// d = the element of largest magnitude / -8, then 16 bytes: element j low, element j + 16 high, both plus 8
void encode_q4(const float* x, std::byte* to) {
  float extreme = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
  }
  const float d = extreme / -8.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
  store(f16(d), to);
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

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return "F32";
    case GgufType::f16:
      return "F16";
    case GgufType::q4_0:
      return "Q4_0";
    case GgufType::q8_0:
      return "Q8_0";
    case GgufType::bf16:
      return "BF16";
  }
  return "?";
}

int64_t gguf_block_elements(GgufType type) { return type == GgufType::q4_0 || type == GgufType::q8_0 ? kBlock : 1; }

int64_t gguf_block_bytes(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return 4;
    case GgufType::q4_0:
      return 2 + kBlock / 2;
    case GgufType::q8_0:
      return 2 + kBlock;
    case GgufType::f16:
    case GgufType::bf16:
      break;
  }
  return 2;
}

void gguf_encode(GgufType type, const float* from, int64_t count, std::byte* to) {
  switch (type) {
    case GgufType::f32:
      return narrow<float>(from, count, to);
    case GgufType::f16:
      return narrow<f16>(from, count, to);
    case GgufType::bf16:
      return narrow<bf16>(from, count, to);
    case GgufType::q8_0:
    case GgufType::q4_0:
      break;
  }
  const bool eight = type == GgufType::q8_0;
  for (int64_t i = 0; i < count; i += kBlock, to += gguf_block_bytes(type)) {
    eight ? encode_q8(from + i, to) : encode_q4(from + i, to);
  }
}

void gguf_decode(GgufType type, const std::byte* from, int64_t count, float* to) {
  switch (type) {
    case GgufType::f32:
      return widen<float>(from, count, to);
    case GgufType::f16:
      return widen<f16>(from, count, to);
    case GgufType::bf16:
      return widen<bf16>(from, count, to);
    case GgufType::q8_0:
    case GgufType::q4_0:
      break;
  }
  const bool eight = type == GgufType::q8_0;
  for (int64_t i = 0; i < count; i += kBlock, from += gguf_block_bytes(type)) {
    eight ? decode_q8(from, to + i) : decode_q4(from, to + i);
  }
}

}  // namespace nibble
