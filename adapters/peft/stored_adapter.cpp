#include "nibble/adapters/peft/stored_adapter.h"

#include "nibble/adapters/new_adapter.h"
#include "nibble/adapters/peft/stored_tables.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/dora.h"
#include "nibble/adapters/tuners/embedding_lora.h"
#include "nibble/adapters/tuners/lora.h"
#include "nibble/core/base/error.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

Tensor widened(const Tensor& stored, MemoryPool& pool, const std::string& name) {
  Tensor value = Tensor::empty(pool, stored.shape(), DType::f32, name);
  ops::cast(stored, value);
  return value;
}

}  // namespace

Tensor StoredAdapter::take(const std::string& name) {
  Tensor found = file_.find(name);
  if (found) used_.insert(name);
  return found;
}

void StoredAdapter::check_shape(const std::string& name, const Tensor& stored, const Shape& shape) const {
  if (stored.shape() == shape) return;
  throw InputError(file_.file(),
                   name + " has shape " + to_string(stored.shape()) + ", the model needs " + to_string(shape),
                   "use the model that the adapter was trained on");
}

void StoredAdapter::check_magnitude(const std::string& module, const Tensor& magnitude, int64_t count) const {
  if (magnitude.defined() != file_.options.use_dora) {
    throw InputError(file_.file(),
                     module + (magnitude ? " has" : " has no") + std::string(" lora_magnitude_vector, ") +
                         "but use_dora is " + (magnitude ? "false" : "true"),
                     "save the adapter again");
  }
  if (magnitude) check_shape(module + ".lora_magnitude_vector", magnitude, {count});
}

std::shared_ptr<Parameter> StoredAdapter::parameter(const std::string& name, const Tensor& stored) const {
  return make_parameter(name, widened(stored, rank_.pool, name), trainable_, rank_.pool);
}

/// The base that the adapter was trained beside.
void StoredAdapter::check_start(Linear& linear, int64_t r, double scaling) const {
  AdapterOptions options = file_.options;
  if (options.init_lora_weights == LoraInit::loftq && linear.weight().parameter()) {
    throw InputError(file_.file(), "init_lora_weights is \"loftq\", so the adapter stands beside 4-bit weights",
                     "load the model with --quantize nf4 --no-double-quant");
  }
  if (!takes_from_base(options.init_lora_weights)) return;
  options.pissa_iterations = 0;  // its random numbers are gone; the exact values are what it came near to
  const Tensor w = linear.weight().dequantize(0, linear.out_features(), rank_.pool);
  take_from_base(linear, initial_factors(options, linear.name(), w, r, scaling, rank_.seed, rank_.pool), scaling,
                 rank_.pool);
}

std::unique_ptr<Adapter> StoredAdapter::make(Linear& linear) {
  const std::string& module = linear.name();
  Tensor a = take(module + ".lora_A.weight"), b = take(module + ".lora_B.weight");
  check_shape(module + ".lora_A.weight", a, {a.dim(0), linear.global_in_features()});
  check_shape(module + ".lora_B.weight", b, {linear.global_out_features(), a.dim(0)});
  const ShardSpec a_spec = shard_of_a(linear.shard(), a.dim(0)), b_spec = shard_of_b(linear.shard(), a.dim(0));
  a = own_shard(a, a_spec, rank_.pool);
  b = own_shard(b, b_spec, rank_.pool);
  std::shared_ptr<Parameter> bias;
  if (const Tensor stored = take(module + ".lora_B.bias")) {
    check_shape(module + ".lora_B.bias", stored, {linear.out_features()});
    bias = parameter(lora_b_bias_name(module), stored);
  }
  const LoraSettings settings{lora_scaling(file_.options, module, a.dim(0)),
                              static_cast<float>(file_.options.lora_dropout), first_input(linear)};
  check_start(linear, a.dim(0), settings.scaling);
  auto lora = std::make_unique<LoraAdapter>(
      module, settings, sharded_like(parameter(lora_a_name(module), a), a_spec, linear.shard()),
      sharded_like(parameter(lora_b_name(module), b), b_spec, linear.shard()), bias);
  const Tensor magnitude = take(module + ".lora_magnitude_vector");
  check_magnitude(module, magnitude, linear.out_features());
  if (!magnitude) return lora;
  return std::make_unique<DoraAdapter>(module, std::move(lora), parameter(dora_magnitude_name(module), magnitude),
                                       linear.weight(), rank_.pool);
}

std::unique_ptr<EmbeddingAdapter> StoredAdapter::make(const Embedding& embedding) {
  const std::string& module = embedding.name();
  const Tensor& table = embedding.table().value;
  const Tensor a = take(module + ".lora_embedding_A"), b = take(module + ".lora_embedding_B");
  check_shape(module + ".lora_embedding_A", a, {a.dim(0), table.dim(0)});
  check_shape(module + ".lora_embedding_B", b, {table.dim(1), a.dim(0)});
  const Tensor magnitude = take(module + ".lora_magnitude_vector");
  check_magnitude(module, magnitude, table.dim(1));
  return std::make_unique<EmbeddingLora>(lora_scaling(file_.options, module, a.dim(0)),
                                         parameter(embedding_a_name(module), a), parameter(embedding_b_name(module), b),
                                         magnitude ? parameter(dora_magnitude_name(module), magnitude) : nullptr, table,
                                         rank_.pool);
}

void StoredAdapter::fill(Parameter& parameter) {
  const std::string name = parameter.name.substr(std::string(kPeftPrefix).size());
  if (used_.contains(name)) return;
  const Tensor stored = take(name);
  if (!stored) return;
  check_shape(name, stored, parameter.shard ? parameter.shard.global : parameter.value.shape());
  ops::cast(own_shard(stored, parameter.shard, rank_.pool), parameter.value);
}

std::vector<std::string> StoredAdapter::take_tables(Decoder& decoder,
                                                    const std::vector<std::pair<std::string, std::string>>& tables) {
  std::vector<std::string> taken;
  for (const auto& [table, name] : tables) {
    const Tensor stored = file_.find(name);
    decoder.visit_linears([&, table = table, name = name](Linear& linear) {
      if (linear.name() + ".weight" != table || linear.weight().parameter()) return;
      throw InputError(file_.file(), name + " replaces a weight that is packed in 4 bits");
    });
    decoder.visit([&, table = table, name = name](Parameter& parameter) {
      if (parameter.name != table) return;  // or on another stage
      check_shape(name, stored, parameter.shard ? parameter.shard.global : parameter.value.shape());
      const Tensor own = own_shard(stored, parameter.shard, rank_.pool);
      if (same_values(own, parameter.value, rank_.pool)) return;
      parameter.value = widened(own, rank_.pool, table);
      if (taken.empty() || taken.back() != module_of(table)) taken.push_back(module_of(table));
    });
  }
  return taken;
}

}  // namespace nibble
