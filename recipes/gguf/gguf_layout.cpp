#include "nibble/recipes/gguf/gguf_layout.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "nibble/adapters/tuners/init.h"
#include "nibble/core/models/load.h"

namespace nibble {

namespace {

bool keeps_values(const GgufPart& part) { return part.added == 0 && !part.is_log && part.factors.empty(); }

float factor_of(const GgufPart& part, int64_t row) {
  if (part.factors.empty()) return 1;
  return part.factors.size() > 1 ? part.factors[static_cast<size_t>(row)] : part.factors[0];
}

float changed(const GgufPart& part, float value, float factor) {
  value = part.is_log ? -std::exp(value) : value + part.added;
  return part.factors.empty() ? value : value * factor;
}

float restored(const GgufPart& part, float stored, float factor) {
  const double unscaled = static_cast<double>(stored) / static_cast<double>(factor);
  const double exact = part.is_log ? std::log(-unscaled) : unscaled - static_cast<double>(part.added);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto nearest = static_cast<float>(exact);
  for (const float near : {nearest, std::nextafter(nearest, -kInfinity), std::nextafter(nearest, kInfinity)}) {
    if (changed(part, near, factor) == stored) return near;
  }
  return nearest;  // made with another exponential, or rounded to a smaller type since
}

/// become(value, factor of its row) of each element
template <typename Become>
void change_all(const GgufPart& part, int64_t begin, Tensor& rows, const Become& become) {
  if (keeps_values(part)) return;
  const std::span<float> values = rows.span<float>();
  const size_t width = values.size() / static_cast<size_t>(rows.dim(0));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = become(values[i], factor_of(part, begin + static_cast<int64_t>(i / width)));
}

}  // namespace

std::map<std::string, Shape> decoder_shapes(const DecoderConfig& config, RankContext& rank) {
  std::map<std::string, Shape> shapes;
  plan_decoder(config, rank).visit([&](Parameter& planned) { shapes[planned.name] = planned.value.shape(); });
  return shapes;
}

Tensor in_order(const Tensor& rows, const std::vector<int64_t>& order, MemoryPool& pool) {
  Shape shape = rows.shape();
  shape.at(0) = static_cast<int64_t>(order.size());
  Tensor result = Tensor::empty(pool, shape, DType::f32, "tensor in another order");
  const size_t bytes = rows.bytes() / static_cast<size_t>(rows.dim(0));
  for (size_t i = 0; i < order.size(); ++i) {
    std::memcpy(result.mutable_raw() + i * bytes, rows.raw() + static_cast<size_t>(order[i]) * bytes, bytes);
  }
  return result;
}

Tensor columns_in_order(const Tensor& m, const std::vector<int64_t>& order, MemoryPool& pool) {
  return transposed(in_order(transposed(m, pool), order, pool), pool);
}

std::vector<int64_t> inverse_order(const std::vector<int64_t>& order) {
  std::vector<int64_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) result[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return result;
}

void change_values(const GgufPart& part, int64_t begin, Tensor& rows) {
  change_all(part, begin, rows, [&](float value, float factor) { return changed(part, value, factor); });
}

void restore_values(const GgufPart& part, int64_t begin, Tensor& rows) {
  change_all(part, begin, rows, [&](float value, float factor) { return restored(part, value, factor); });
}

}  // namespace nibble
