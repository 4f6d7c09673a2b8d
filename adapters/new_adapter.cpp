#include "nibble/adapters/new_adapter.h"

#include <cmath>

#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/dora.h"
#include "nibble/adapters/tuners/embedding_lora.h"
#include "nibble/adapters/tuners/lora.h"
#include "nibble/core/base/error.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

std::shared_ptr<Parameter> make_parameter(const std::string& name, Tensor value, bool trainable, MemoryPool& pool) {
  auto result = std::make_shared<Parameter>();
  result->name = name;
  result->value = std::move(value);
  result->trainable = trainable;
  const MemoryPool::Use use(pool, MemoryUse::gradients);
  if (trainable) result->gradient = Tensor::zeros(pool, result->value.shape(), DType::f32, name);
  return result;
}

Tensor own_shard(const Tensor& global, const ShardSpec& spec, MemoryPool& pool) {
  if (!spec) return global;
  const Tensor shard = slice_shard(global, spec, pool);
  return shard.storage() == global.storage() ? shard.clone(pool) : shard;
}

std::shared_ptr<Parameter> sharded_like(std::shared_ptr<Parameter> factor, ShardSpec spec, const ShardSpec& base) {
  factor->partial_gradient = base && !spec;
  factor->shard = std::move(spec);
  return factor;
}

int64_t first_input(const Linear& linear) {
  return linear.shard().slices_columns() ? linear.shard().columns.front().begin : 0;
}

/// Uniform in +-bound; zero for bound 0.
void NewAdapter::fill(Tensor& value, const std::string& name, double bound) const {
  const auto limit = static_cast<float>(bound);
  if (bound > 0) ops::fill_uniform(value, -limit, limit, rank_.seed, module_key(name));
  if (bound <= 0) value.zero();
}

LowRankFactors NewAdapter::plain_start(const Linear& linear, int64_t r) const {
  const std::string a_name = lora_a_name(linear.name()), b_name = lora_b_name(linear.name());
  // Drawn for the global matrix, whatever shard of it this rank has.
  const int64_t in = linear.global_in_features(), out = linear.global_out_features();
  LowRankFactors result{Tensor::empty(rank_.pool, {r, in}, DType::f32, a_name),
                        Tensor::empty(rank_.pool, {out, r}, DType::f32, b_name)};
  if (options_.init_lora_weights == LoraInit::gaussian) {
    ops::fill_normal(result.a, static_cast<float>(1 / static_cast<double>(r)), rank_.seed, module_key(a_name));
  } else {
    fill(result.a, a_name, 1 / std::sqrt(static_cast<double>(in)));
  }
  const bool random_b = options_.init_lora_weights == LoraInit::random;
  fill(result.b, b_name, random_b ? 1 / std::sqrt(static_cast<double>(r)) : 0);
  result.a = own_shard(result.a, shard_of_a(linear.shard(), r), rank_.pool);
  result.b = own_shard(result.b, shard_of_b(linear.shard(), r), rank_.pool);
  return result;
}

std::unique_ptr<Adapter> NewAdapter::make(Linear& linear) {
  const std::string& module = linear.name();
  const int64_t r = rank_of(options_, module);
  const double scaling = lora_scaling(options_, module, r);
  MemoryPool& pool = rank_.pool;
  LowRankFactors start;
  if (takes_from_base(options_.init_lora_weights)) {
    const Tensor w = linear.weight().dequantize(0, linear.out_features(), pool);
    // Of a device without bytes, as plans have it, values are none.
    start = pool.device().has_bytes() ? initial_factors(options_, module, w, r, scaling, rank_.seed, pool)
                                      : plain_start(linear, r);
    take_from_base(linear, start, scaling, pool);
    if (options_.pissa_iterations > 0) random_starts_[module] = {start.a.clone(pool), start.b.clone(pool)};
  } else if (options_.init_lora_weights == LoraInit::loftq) {
    if (linear.weight().parameter() || !original_) {
      throw UsageError("init_lora_weights \"loftq\" starts from what rounding to 4 bits lost, and " + module +
                           " was not rounded here",
                       "give the 16-bit model with model.quantize nf4", "adapter");
    }
    start = loftq_factors(linear, original_(module), r, pool);
  } else {
    start = plain_start(linear, r);
  }
  std::shared_ptr<Parameter> bias;
  if (options_.lora_bias) {
    const std::string name = lora_b_bias_name(module);
    Tensor value = Tensor::empty(pool, {linear.out_features()}, DType::f32, name);
    fill(value, name, options_.init_lora_weights == LoraInit::random ? 1 / std::sqrt(static_cast<double>(r)) : 0);
    bias = make_parameter(name, value, true, pool);
  }
  const LoraSettings settings{scaling, static_cast<float>(options_.lora_dropout), first_input(linear)};
  auto lora = std::make_unique<LoraAdapter>(module, settings,
                                            sharded_like(make_parameter(lora_a_name(module), start.a, true, pool),
                                                         shard_of_a(linear.shard(), r), linear.shard()),
                                            sharded_like(make_parameter(lora_b_name(module), start.b, true, pool),
                                                         shard_of_b(linear.shard(), r), linear.shard()),
                                            bias);
  if (!options_.use_dora) return lora;
  const Tensor magnitude = Tensor::planned({linear.out_features()}, DType::f32);
  return std::make_unique<DoraAdapter>(module, std::move(lora),
                                       make_parameter(dora_magnitude_name(module), magnitude, true, pool),
                                       linear.weight(), pool);
}

std::unique_ptr<EmbeddingAdapter> NewAdapter::make(const Embedding& embedding) const {
  const std::string& module = embedding.name();
  const Tensor& table = embedding.table().value;
  MemoryPool& pool = rank_.pool;
  const int64_t r = rank_of(options_, module);
  const std::string a_name = embedding_a_name(module), b_name = embedding_b_name(module);
  Tensor a = Tensor::zeros(pool, {r, table.dim(0)}, DType::f32, a_name);
  Tensor b = Tensor::empty(pool, {table.dim(1), r}, DType::f32, b_name);
  ops::fill_normal(b, 1.0f, rank_.seed, module_key(b_name));
  if (options_.init_lora_weights == LoraInit::random) ops::fill_normal(a, 1.0f, rank_.seed, module_key(a_name));
  std::shared_ptr<Parameter> magnitude;
  if (options_.use_dora) {
    magnitude = make_parameter(dora_magnitude_name(module), Tensor::planned({table.dim(1)}, DType::f32), true, pool);
  }
  return std::make_unique<EmbeddingLora>(lora_scaling(options_, module, r), make_parameter(a_name, a, true, pool),
                                         make_parameter(b_name, b, true, pool), magnitude, table, pool);
}

}  // namespace nibble
