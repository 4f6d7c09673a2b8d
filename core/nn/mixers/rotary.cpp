#include "nibble/core/nn/mixers/rotary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>

#include "nibble/core/base/parallel.h"

namespace nibble {

namespace {

double llama3_frequency(const RopeConfig& config, double frequency) {
  const double length = static_cast<double>(config.original_max_positions);
  const double turns = length * frequency / (2 * std::numbers::pi);  // in the length the model was first trained on
  if (turns < config.low_freq_factor) return frequency / config.factor;
  if (turns >= config.high_freq_factor) return frequency;
  const double keep = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return (1 - keep) * frequency / config.factor + keep * frequency;
}

double divisor_of_exponents(const RopeConfig& config) {
  return static_cast<double>(config.exponent_size > 0 ? config.exponent_size : config.size);
}

// Pairs before the first are kept, from the second on divided.
struct YarnRamp {
  explicit YarnRamp(const RopeConfig& config) {
    const double size = divisor_of_exponents(config), length = static_cast<double>(config.original_max_positions);
    const auto pair_that_turns = [&](double turns) {
      return size * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(config.base));
    };
    begin = pair_that_turns(config.beta_fast);
    end = pair_that_turns(config.beta_slow);
    if (config.truncate) {
      begin = std::floor(begin);
      end = std::ceil(end);
    }
    begin = std::max(begin, 0.0);
    end = std::min(end, size - 1);
    if (begin == end) end += 0.001;
  }
  double divided_share(double pair) const { return std::clamp((pair - begin) / (end - begin), 0.0, 1.0); }

  double begin, end;
};

// Texts no longer than the original length share one set of frequencies (0); of longer ones longrope has one more,
// dynamic one for each length.
int64_t set_of_length(const RopeConfig& config, int64_t length) {
  if (length <= config.original_max_positions) return 0;
  return config.scaling == RopeScaling::dynamic ? length : config.original_max_positions + 1;
}

int64_t rows_for(int64_t positions) {
  int64_t rows = 256;
  while (rows < positions) rows *= 2;
  return rows;
}

// Where the host fills it in; on a device without bytes there is nothing to fill.
Tensor empty_table(const RopeConfig& config, int64_t rows, MemoryPool& pool) {
  return Tensor::empty(pool.device().has_bytes() ? pool.host() : pool, {rows, config.size / 2}, DType::f32,
                       "rotary table");
}

// Rows [begin, begin + count) of cos and sin become positions 0 .. count - 1 at these frequencies.
void fill_rows(const RopeConfig& config, const std::vector<float>& frequencies, int64_t begin, int64_t count,
               Tensor& cos, Tensor& sin) {
  if (!cos.device().has_bytes()) return;
  const int64_t pairs = static_cast<int64_t>(frequencies.size());
  const double magnitude = config.magnitude, turn = config.backwards ? -magnitude : magnitude;
  float *cosines = cos.data<float>() + begin * pairs, *sines = sin.data<float>() + begin * pairs;
  parallel_for(count, 256, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < pairs; ++i) {
        // Transformers rounds the angle to f32 before it takes cosine and sine.
        const float angle = static_cast<float>(row) * frequencies[static_cast<size_t>(i)];
        cosines[row * pairs + i] = static_cast<float>(std::cos(static_cast<double>(angle)) * magnitude);
        sines[row * pairs + i] = static_cast<float>(std::sin(static_cast<double>(angle)) * turn);
      }
    }
  });
}

int64_t last_position(std::span<const int32_t> positions) {
  return positions.empty() ? -1 : *std::max_element(positions.begin(), positions.end());
}

}  // namespace

std::vector<float> rope_frequencies(const RopeConfig& config, int64_t length) {
  std::vector<float> frequencies(static_cast<size_t>(config.size / 2));
  const double size = divisor_of_exponents(config), original = static_cast<double>(config.original_max_positions);
  const bool stretched = config.by_length() && length > config.original_max_positions;
  double base = config.base;
  if (config.scaling == RopeScaling::dynamic && stretched) {
    const double stretch = config.factor * static_cast<double>(length) / original - (config.factor - 1);
    base *= std::pow(stretch, size / (size - 2));
  }
  const std::optional<YarnRamp> ramp =
      config.scaling == RopeScaling::yarn ? std::make_optional<YarnRamp>(config) : std::nullopt;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    // Rounded as Transformers' float32 has it: a last bit is 1e-4 of an angle after a thousand positions.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(size);
    double frequency = 1 / std::pow(static_cast<float>(base), exponent);
    if (config.scaling == RopeScaling::linear) frequency /= config.factor;
    if (config.scaling == RopeScaling::proportional) {
      frequency = 2 * static_cast<int64_t>(i) < config.turned ? frequency / config.factor : 0;
    }
    if (config.scaling == RopeScaling::llama3) frequency = llama3_frequency(config, frequency);
    if (config.scaling == RopeScaling::longrope) {
      frequency /= static_cast<double>((stretched ? config.long_factors : config.short_factors).at(i));
    }
    if (ramp) {
      const double share = ramp->divided_share(static_cast<double>(i));
      frequency = frequency / config.factor * share + frequency * (1 - share);
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

RotaryView RotaryTable::by_length(const Tensor& positions, std::span<const ops::AttentionSpan> documents,
                                  MemoryPool& pool) const {
  const std::span<const int32_t> at = positions.span<const int32_t>();
  const auto part = [&](const ops::AttentionSpan& document) {
    return at.subspan(static_cast<size_t>(document.q_begin), static_cast<size_t>(document.q_end - document.q_begin));
  };
  struct Rows {
    int64_t begin = 0, count = 0;
  };
  std::map<int64_t, Rows> sets;
  for (const ops::AttentionSpan& document : documents) {
    const int64_t length = last_position(part(document)) + 1;
    Rows& rows = sets[set_of_length(config_, length)];
    rows.count = std::max(rows.count, length);
  }
  int64_t total = 0;
  for (auto& [set, rows] : sets) {
    rows.begin = total;
    total += rows.count;
  }
  const MemoryPool::Use use(pool, MemoryUse::workspace);
  RotaryView view{.cos = empty_table(config_, total, pool),
                  .sin = empty_table(config_, total, pool),
                  .rows = Tensor::zeros(pool.host(), positions.shape(), DType::i32, "rotary rows"),
                  .pairs = config_.pairs,
                  .begin = config_.begin};
  for (const auto& [set, rows] : sets) {
    fill_rows(config_, rope_frequencies(config_, set), rows.begin, rows.count, view.cos, view.sin);
  }
  view.cos = view.cos.to(pool);
  view.sin = view.sin.to(pool);
  for (const ops::AttentionSpan& document : documents) {
    const int64_t begin = sets.at(set_of_length(config_, last_position(part(document)) + 1)).begin;
    for (int64_t t = document.q_begin; t < document.q_end; ++t) {
      view.rows.data<int32_t>()[t] = static_cast<int32_t>(begin + at[static_cast<size_t>(t)]);
    }
  }
  return view;
}

RotaryView RotaryTable::at(const Tensor& positions, std::span<const ops::AttentionSpan> documents, MemoryPool& pool) {
  const int64_t wanted = last_position(positions.span<const int32_t>()) + 1;
  if (config_.by_length() && wanted > config_.original_max_positions) return by_length(positions, documents, pool);
  if (!cos_ || cos_.dim(0) < wanted) {
    const int64_t rows = rows_for(wanted);
    const MemoryPool::Use use(pool, MemoryUse::workspace);
    cos_ = empty_table(config_, rows, pool);
    sin_ = empty_table(config_, rows, pool);
    fill_rows(config_, rope_frequencies(config_), 0, rows, cos_, sin_);
    cos_ = cos_.to(pool);
    sin_ = sin_.to(pool);
  }
  return {.cos = cos_, .sin = sin_, .rows = positions, .pairs = config_.pairs, .begin = config_.begin};
}

}  // namespace nibble
