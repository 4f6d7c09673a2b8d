#include "nibble/core/models/resize.h"

#include <cstring>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

/// table [V, ...] with rows up to `count`, the new ones `row`.
Tensor grown(const Tensor& table, int64_t count, const Tensor& row, MemoryPool& pool, const std::string& name) {
  Shape shape = table.shape();
  shape[0] = count;
  Tensor result = Tensor::empty(pool, shape, table.dtype(), name);
  std::memcpy(result.mutable_raw(), table.raw(), table.bytes());
  for (int64_t i = table.dim(0); i < count; ++i) {
    std::memcpy(result.mutable_raw() + static_cast<size_t>(i) * row.bytes(), row.raw(), row.bytes());
  }
  return result;
}

void grow(Parameter& parameter, int64_t count, MemoryPool& pool, bool with_zeros = false) {
  NIBBLE_CHECK(!parameter.trainable, parameter.name + " is resized before it is trained");
  const Tensor old = parameter.value;
  const auto rows = [&](int64_t begin, int64_t end) { return old.rows(begin, end); };
  Tensor row = mean_row(old.dim(0), old.dtype(), rows, pool);
  if (with_zeros) row.zero();
  parameter.value = grown(old, count, row, pool, parameter.name);
  release_pages(old);
}

}  // namespace

Tensor mean_row(int64_t count, DType dtype, const std::function<Tensor(int64_t, int64_t)>& rows, MemoryPool& pool) {
  std::vector<double> sums;
  Shape shape;
  for (int64_t begin = 0; begin < count; begin += 1024) {
    const Tensor part = rows(begin, std::min(begin + 1024, count));
    Tensor wide = Tensor::empty(pool, part.shape(), DType::f32, "mean of rows");
    ops::cast(part, wide);
    shape.assign(part.shape().begin() + 1, part.shape().end());
    sums.resize(static_cast<size_t>(element_count(shape)));
    const std::span<const float> values = wide.span<const float>();
    for (size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += values[i];
  }
  Tensor mean = Tensor::empty(pool, shape, DType::f32, "mean of rows"), row = Tensor::empty(pool, shape, dtype);
  for (size_t i = 0; i < sums.size(); ++i) {
    mean.data<float>()[i] = static_cast<float>(sums[i] / static_cast<double>(count));
  }
  ops::cast(mean, row);
  return row;
}

void check_growth(const DecoderConfig& config, int64_t rows) {
  if (config.output_vocab_size == 0 || rows <= config.vocab_size) return;
  throw UsageError("the head has rows for " + std::to_string(config.output_vocab_size) + " of the " +
                       std::to_string(config.vocab_size) + " tokens, and further ones get none",
                   "use the model's own tokenizer, without added tokens");
}

void resize_vocabulary(Decoder& decoder, int64_t rows, RankContext& rank) {
  const int64_t old = decoder.config().vocab_size;
  if (rows == old) return;
  if (rows < old) {
    throw UsageError("the vocabulary cannot shrink from " + std::to_string(old) + " to " + std::to_string(rows),
                     "leave the embedding as it is; it may be larger than the tokenizer");
  }
  check_growth(decoder.config(), rows);
  if (decoder.sharding()) {
    throw UsageError("further tokens need full tables, which parallel.tensor shards",
                     "use parallel.shard or parallel.pipeline", "parallel.tensor");
  }
  const std::string head = decoder.config().names.head;
  Parameter* table = nullptr;
  decoder.visit_embeddings([&](Embedding& embedding) {
    if (!table) table = &embedding.table();
  });
  decoder.visit_linears([&](Linear& linear) {
    if (linear.name() != head || decoder.config().score_labels > 0) return;
    Parameter* weight = linear.weight().parameter();
    if (!weight) {
      throw UsageError("the head is packed in 4 bits and cannot get more rows", "keep it in 16 bits (skip_modules)");
    }
    if (weight != table) grow(*weight, rows, rank.pool);
    if (linear.bias()) grow(*linear.bias(), rows, rank.pool, decoder.config().tied_head);
  });
  if (table) grow(*table, rows, rank.pool);
  decoder.set_vocab_size(rows);
}

}  // namespace nibble
