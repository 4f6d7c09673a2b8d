#include "nibble/core/io/gguf/gguf_k_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "nibble/core/tensor/dtype.h"

namespace nibble::gguf {

namespace {

constexpr int kGroup = 32, kGroups = kKBlock / kGroup;                 // of Q4_K and Q5_K
constexpr int kSmallGroup = 16, kSmallGroups = kKBlock / kSmallGroup;  // of Q6_K
constexpr float kAllZero = 1e-15f;

float load_f16(const std::byte* from) {
  f16 value;
  std::memcpy(&value, from, sizeof value);
  return static_cast<float>(value);
}

float store_f16(float value, std::byte* to) {
  const f16 rounded(value);
  std::memcpy(to, &rounded, sizeof rounded);
  return static_cast<float>(rounded);
}

uint8_t u8(std::byte byte) { return std::to_integer<uint8_t>(byte); }

// To the nearest whole number, ties to even: the low bits of value + 1.5 * 2^23, whatever they are beyond its range.
int nearest(float value) { return (std::bit_cast<int32_t>(value + 12582912.0f) & 0x7fffff) - 0x400000; }

/// x = scale * code + min
struct Line {
  float scale = 0, min = 0;
};

/// How many lines are tried: the first reaches the largest code + first at the largest element, each next one a tenth
/// more.
struct Tries {
  int most;  ///< largest code
  float first;
  int count;
};

// The line with the least error among those that go through more and more of the range, each mended by least squares;
// errors weigh `weights`. `best` gets its codes.
Line find_line(const Tries& tries, const float* x, const float* weights, uint8_t* best) {
  float low = x[0], high = x[0], sum_w = weights[0], sum_x = sum_w * x[0];
  for (int i = 1; i < kGroup; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  float min = std::min(low, 0.0f), scale = 0;
  std::fill_n(best, kGroup, uint8_t{0});
  if (high == min) return {scale, min};
  const auto most = static_cast<float>(tries.most);
  uint8_t codes[kGroup];
  const auto take_codes = [&](float inverse) {  // from the best line's minimum on
    for (int i = 0; i < kGroup; ++i) {
      codes[i] = static_cast<uint8_t>(std::clamp(nearest(inverse * (x[i] - min)), 0, tries.most));
    }
  };
  const auto error_of = [&](const Line& line) {
    float error = 0;
    for (int i = 0; i < kGroup; ++i) {
      const float difference = line.scale * static_cast<float>(codes[i]) + line.min - x[i];
      error += weights[i] * (difference * difference);
    }
    return error;
  };
  const float inverse = most / (high - min);
  scale = 1 / inverse;
  take_codes(inverse);
  float least = error_of({scale, min});
  std::copy_n(codes, kGroup, best);
  for (int step = 0; step < tries.count; ++step) {
    take_codes((tries.first + 0.1f * static_cast<float>(step) + most) / (high - min));
    float sum_l = 0, sum_l2 = 0, sum_xl = 0;
    for (int i = 0; i < kGroup; ++i) {
      const float l = codes[i], wl = weights[i] * l;
      sum_l += wl;
      sum_l2 += wl * l;
      sum_xl += wl * x[i];
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (!(determinant > 0)) continue;
    Line line{(sum_w * sum_xl - sum_x * sum_l) / determinant, (sum_l2 * sum_x - sum_l * sum_xl) / determinant};
    if (line.min > 0) line = {sum_xl / sum_l2, 0};
    const float error = error_of(line);
    if (!(error < least)) continue;
    least = error;
    scale = line.scale, min = line.min;
    std::copy_n(codes, kGroup, best);
  }
  return {scale, min};
}

// Codes of 6 bits of 8 scales and 8 minima in 12 bytes: the first four of each whole, whose top bits hold the rest of
// the last four.
void store_scales(const uint8_t* scales, const uint8_t* mins, std::byte* to) {
  for (int j = 0; j < 4; ++j) {
    to[j] = static_cast<std::byte>(scales[j] | scales[j + 4] >> 4 << 6);
    to[j + 4] = static_cast<std::byte>(mins[j] | mins[j + 4] >> 4 << 6);
    to[j + 8] = static_cast<std::byte>((scales[j + 4] & 15) | (mins[j + 4] & 15) << 4);
  }
}

void load_scales(const std::byte* from, uint8_t* scales, uint8_t* mins) {
  for (int j = 0; j < 4; ++j) {
    const uint8_t scale = u8(from[j]), min = u8(from[j + 4]), rest = u8(from[j + 8]);
    scales[j] = scale & 63;
    mins[j] = min & 63;
    scales[j + 4] = static_cast<uint8_t>((rest & 15) | scale >> 6 << 4);
    mins[j + 4] = static_cast<uint8_t>(rest >> 4 | min >> 6 << 4);
  }
}

// The header of a block of Q4_K or Q5_K (d, d of the minima, scales), and the codes.
void encode_lines(const Tries& tries, const float* x, std::byte* to, uint8_t* codes) {
  Line lines[kGroups];
  float largest_scale = 0, largest_min = 0;
  for (int j = 0; j < kGroups; ++j) {
    const float* group = x + j * kGroup;
    float squares = 0, weights[kGroup];
    for (int i = 0; i < kGroup; ++i) squares += group[i] * group[i];
    const float typical = std::sqrt(squares / kGroup);
    for (int i = 0; i < kGroup; ++i) weights[i] = typical + std::abs(group[i]);
    lines[j] = find_line(tries, group, weights, codes + j * kGroup);
    lines[j].min = -lines[j].min;  // stored as what is taken away
    largest_scale = std::max(largest_scale, lines[j].scale);
    largest_min = std::max(largest_min, lines[j].min);
  }
  const float inverse_scale = largest_scale > 0 ? 63 / largest_scale : 0;
  const float inverse_min = largest_min > 0 ? 63 / largest_min : 0;
  const auto six_bits = [](float value) {  // of a negative one the low byte counts, which is large
    return std::min<uint8_t>(63, static_cast<uint8_t>(nearest(value)));
  };
  uint8_t scales[kGroups], mins[kGroups];
  for (int j = 0; j < kGroups; ++j) {
    scales[j] = six_bits(inverse_scale * lines[j].scale);
    mins[j] = six_bits(inverse_min * lines[j].min);
  }
  const float d = store_f16(largest_scale / 63, to), d_min = store_f16(largest_min / 63, to + 2);
  store_scales(scales, mins, to + 4);
  for (int j = 0; j < kGroups; ++j) {
    const float scale = d * static_cast<float>(scales[j]), min = d_min * static_cast<float>(mins[j]);
    for (int i = j * kGroup; i < (j + 1) * kGroup; ++i) {
      if (scale != 0) codes[i] = static_cast<uint8_t>(std::clamp(nearest((x[i] + min) / scale), 0, tries.most));
    }
  }
}

// The elements of a block of Q4_K or Q5_K from its header and codes.
void decode_lines(const std::byte* from, const uint8_t* codes, float* x) {
  const float d = load_f16(from), d_min = load_f16(from + 2);
  uint8_t scales[kGroups], mins[kGroups];
  load_scales(from + 4, scales, mins);
  for (int j = 0; j < kGroups; ++j) {
    const float scale = d * static_cast<float>(scales[j]), min = d_min * static_cast<float>(mins[j]);
    for (int i = j * kGroup; i < (j + 1) * kGroup; ++i) x[i] = scale * static_cast<float>(codes[i]) - min;
  }
}

// The low four bits of 64 codes in 32 bytes: the first half low, the second high.
void store_nibbles(const uint8_t* codes, std::byte* to) {
  for (int i = 0; i < kKBlock / 2; ++i) {
    const uint8_t* pair = codes + i / kGroup * 2 * kGroup + i % kGroup;
    to[i] = static_cast<std::byte>((pair[0] & 15) | (pair[kGroup] & 15) << 4);
  }
}

void load_nibbles(const std::byte* from, uint8_t* codes) {
  for (int i = 0; i < kKBlock / 2; ++i) {
    uint8_t* pair = codes + i / kGroup * 2 * kGroup + i % kGroup;
    pair[0] = u8(from[i]) & 15;
    pair[kGroup] = u8(from[i]) >> 4;
  }
}

// The scale of 16 elements x = scale * (code - 32) with the least squared error among some near that of the largest
// element, errors weighted with x * x.
float find_scale(const float* x, int8_t* codes) {
  constexpr int kMost = 32;
  float extreme = 0;
  for (int i = 0; i < kSmallGroup; ++i) {
    if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
  }
  std::fill_n(codes, kSmallGroup, int8_t{0});
  if (std::abs(extreme) < kAllZero) return 0;
  const auto code = [&](float inverse, float value) { return std::clamp(nearest(inverse * value), -kMost, kMost - 1); };
  const auto take_codes = [&](float inverse) {
    for (int i = 0; i < kSmallGroup; ++i) codes[i] = static_cast<int8_t>(kMost + code(inverse, x[i]));
  };
  float sum_xl = 0, sum_l2 = 0;
  const auto sum = [&](float inverse) {
    sum_xl = sum_l2 = 0;
    for (int i = 0; i < kSmallGroup; ++i) {
      const float l = static_cast<float>(code(inverse, x[i])), w = x[i] * x[i];
      sum_xl += w * x[i] * l;
      sum_l2 += w * l * l;
    }
  };
  const float inverse = -static_cast<float>(kMost) / extreme;
  sum(inverse);
  take_codes(inverse);
  float scale = sum_l2 != 0 ? sum_xl / sum_l2 : 0;
  float best = scale * sum_xl;
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    const float tried = -(kMost + 0.1f * static_cast<float>(step)) / extreme;
    sum(tried);
    if (!(sum_l2 > 0 && sum_xl * sum_xl > best * sum_l2)) continue;
    take_codes(tried);
    scale = sum_xl / sum_l2;
    best = scale * sum_xl;
  }
  return scale;
}

// Places in a block of Q6_K: low four bits, high two, scales, d.
constexpr int kQ6High = 128, kQ6Scales = 192, kQ6D = 208;

}  // namespace

void encode_q4_k(const float* x, std::byte* to) {
  uint8_t codes[kKBlock];
  encode_lines({15, -1.0f, 21}, x, to, codes);
  store_nibbles(codes, to + 16);
}

void decode_q4_k(const std::byte* from, float* x) {
  uint8_t codes[kKBlock];
  load_nibbles(from + 16, codes);
  decode_lines(from, codes, x);
}

// Bit 4 of every code lies apart: byte i has those of elements i, i + 32, i + 64, ...
void encode_q5_k(const float* x, std::byte* to) {
  uint8_t codes[kKBlock];
  encode_lines({31, -0.5f, 16}, x, to, codes);
  for (int i = 0; i < kGroup; ++i) {
    int bits = 0;
    for (int j = 0; j < kGroups; ++j) bits |= codes[j * kGroup + i] >> 4 << j;
    to[16 + i] = static_cast<std::byte>(bits);
  }
  store_nibbles(codes, to + 48);
}

void decode_q5_k(const std::byte* from, float* x) {
  uint8_t codes[kKBlock];
  load_nibbles(from + 48, codes);
  for (int i = 0; i < kKBlock; ++i) {
    codes[i] = static_cast<uint8_t>(codes[i] | (u8(from[16 + i % kGroup]) >> i / kGroup & 1) << 4);
  }
  decode_lines(from, codes, x);
}

void encode_q6_k(const float* x, std::byte* to) {
  int8_t codes[kKBlock];
  float scales[kSmallGroups], extreme = 0;
  for (int j = 0; j < kSmallGroups; ++j) {
    scales[j] = find_scale(x + j * kSmallGroup, codes + j * kSmallGroup);
    if (std::abs(scales[j]) > std::abs(extreme)) extreme = scales[j];
  }
  std::fill_n(to, kQ6KBytes, std::byte{0});
  if (std::abs(extreme) < kAllZero) return;
  const float inverse = -128.0f / extreme;
  const float d = store_f16(1 / inverse, to + kQ6D);
  for (int j = 0; j < kSmallGroups; ++j) {
    const auto stored = static_cast<int8_t>(std::min(127, nearest(inverse * scales[j])));
    to[kQ6Scales + j] = static_cast<std::byte>(stored);
    const float scale = d * static_cast<float>(stored);
    for (int i = j * kSmallGroup; i < (j + 1) * kSmallGroup; ++i) {
      if (scale != 0) codes[i] = static_cast<int8_t>(std::clamp(nearest(x[i] / scale), -32, 31) + 32);
    }
  }
  for (int i = 0; i < kKBlock; ++i) {  // halves of 128: four rows of 32
    const int half = i / 128, row = i % 128 / 32, column = i % 32;
    to[half * 64 + row % 2 * 32 + column] |= static_cast<std::byte>((codes[i] & 15) << row / 2 * 4);
    to[kQ6High + half * 32 + column] |= static_cast<std::byte>(codes[i] >> 4 << row * 2);
  }
}

void decode_q6_k(const std::byte* from, float* x) {
  const float d = load_f16(from + kQ6D);
  for (int i = 0; i < kKBlock; ++i) {
    const int half = i / 128, row = i % 128 / 32, column = i % 32;
    const int low = u8(from[half * 64 + row % 2 * 32 + column]) >> row / 2 * 4 & 15;
    const int high = u8(from[kQ6High + half * 32 + column]) >> row * 2 & 3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(from[kQ6Scales + i / kSmallGroup]));
    x[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

}  // namespace nibble::gguf
