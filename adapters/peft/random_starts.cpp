#include "nibble/adapters/peft/random_starts.h"

#include <cmath>

#include "nibble/adapters/tuners/lora.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

/// The options of an adapter whose pairs B A became B A - B0 A0.
AdapterOptions twice_the_rank(AdapterOptions options) {
  const double alpha = options.use_rslora ? std::sqrt(2.0) : 2.0;
  options.init_lora_weights = LoraInit::standard;
  options.pissa_iterations = 0;
  options.r *= 2;
  options.lora_alpha *= alpha;
  for (auto& [key, r] : options.rank_pattern) r *= 2;
  for (auto& [key, value] : options.alpha_pattern) value *= alpha;
  return options;
}

/// A over A0, and B beside -B0: a plain LoRA on the base as it was.
std::vector<std::pair<std::string, Tensor>> with_starts_subtracted(std::vector<std::pair<std::string, Tensor>> tensors,
                                                                   const std::map<std::string, LowRankFactors>& starts,
                                                                   MemoryPool& pool) {
  for (auto& [name, value] : tensors) {
    for (const auto& [module, start] : starts) {
      if (name == lora_a_name(module)) {
        Tensor both = Tensor::empty(pool, {2 * value.dim(0), value.dim(1)}, DType::f32, name);
        Tensor upper = both.rows(0, value.dim(0)), lower = both.rows(value.dim(0), both.dim(0));
        ops::cast(value, upper);
        ops::cast(start.a, lower);
        value = both;
      } else if (name == lora_b_name(module)) {
        Tensor both = Tensor::empty(pool, {value.dim(0), 2 * value.dim(1)}, DType::f32, name);
        Tensor negative = start.b.clone(pool);
        ops::scale(negative, -1.0f);
        ops::copy_columns_in(value, 0, both);
        ops::copy_columns_in(negative, value.dim(1), both);
        value = both;
      }
    }
  }
  return tensors;
}

}  // namespace

AdapterOptions saved_options(const AttachedAdapter& attached) {
  return attached.options.pissa_iterations > 0 ? twice_the_rank(attached.options) : attached.options;
}

std::vector<std::pair<std::string, Tensor>> saved_tensors(Decoder& decoder, const AttachedAdapter& attached,
                                                          MemoryPool& pool) {
  return with_starts_subtracted(adapter_tensors(decoder), attached.random_starts, pool);
}

}  // namespace nibble
