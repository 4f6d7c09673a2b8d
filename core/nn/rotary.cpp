#include "nibble/core/nn/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "nibble/core/base/parallel.h"

namespace nibble {

namespace {

double llama3_frequency(const RopeConfig& config, double frequency) {
  const double length = static_cast<double>(config.original_max_positions);
  const double turns = length * frequency / (2 * std::numbers::pi);  // in the length the model was first trained on
  if (turns < config.low_freq_factor) return frequency / config.factor;
  if (turns > config.high_freq_factor) return frequency;
  const double keep = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return (1 - keep) * frequency / config.factor + keep * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& config) {
  std::vector<float> frequencies(static_cast<size_t>(config.size / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(config.size);
    double frequency = std::pow(config.base, -exponent);
    if (config.scaling == RopeScaling::linear) frequency /= config.factor;
    if (config.scaling == RopeScaling::llama3) frequency = llama3_frequency(config, frequency);
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

void RotaryTable::reserve(int64_t positions, MemoryPool& pool) {
  if (cos_ && cos_.dim(0) >= positions) return;
  int64_t rows = 256;
  while (rows < positions) rows *= 2;
  const std::vector<float> frequencies = rope_frequencies(config_);
  const int64_t pairs = config_.size / 2;
  cos_ = Tensor::empty(pool, {rows, pairs}, DType::f32, "rotary table");
  sin_ = Tensor::empty(pool, {rows, pairs}, DType::f32, "rotary table");
  float* cos = cos_.data<float>();
  float* sin = sin_.data<float>();
  parallel_for(rows, 256, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < pairs; ++i) {
        // Transformers rounds the angle to f32 before it takes cosine and sine.
        const float angle = static_cast<float>(row) * frequencies[static_cast<size_t>(i)];
        cos[row * pairs + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
        sin[row * pairs + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    }
  });
}

}  // namespace nibble
