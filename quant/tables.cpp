#include "nibble/quant/tables.h"

#include <algorithm>
#include <numeric>

namespace nibble {

using ops::cpu::CodeRule;

namespace {

constexpr std::array<float, 16> kNf4 = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};

constexpr std::array<float, 16> kFp4 = {0.0f,       0.0625f / 12, 8.0f / 12,  12.0f / 12,    4.0f / 12,  6.0f / 12,
                                        2.0f / 12,  3.0f / 12,    0.0f,       -0.0625f / 12, -8.0f / 12, -12.0f / 12,
                                        -4.0f / 12, -6.0f / 12,   -2.0f / 12, -3.0f / 12};

constexpr std::array<float, 16> kMxfp4 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

CodeRule make_rule(const std::array<float, 16>& table) {
  CodeRule rule;
  std::iota(rule.codes.begin(), rule.codes.end(), uint8_t{0});
  // Stable: of the two zeros of FP4 code 0 comes first, so a scaled zero becomes code 0.
  std::stable_sort(rule.codes.begin(), rule.codes.end(), [&](uint8_t a, uint8_t b) { return table[a] < table[b]; });
  for (size_t i = 0; i < 15; ++i) rule.thresholds[i] = (table[rule.codes[i]] + table[rule.codes[i + 1]]) / 2;
  return rule;
}

}  // namespace

std::string_view quant_type_name(QuantType type) {
  return type == QuantType::nf4 ? "nf4" : type == QuantType::fp4 ? "fp4" : "mxfp4";
}

std::optional<QuantType> find_quant_type(std::string_view name) {
  if (name == "nf4") return QuantType::nf4;
  if (name == "fp4") return QuantType::fp4;
  return std::nullopt;
}

const std::array<float, 16>& quant_table(QuantType type) {
  return type == QuantType::nf4 ? kNf4 : type == QuantType::fp4 ? kFp4 : kMxfp4;
}

const CodeRule& code_rule(QuantType type) {
  static const CodeRule nf4 = make_rule(kNf4), fp4 = make_rule(kFp4);
  return type == QuantType::nf4 ? nf4 : fp4;
}

}  // namespace nibble
