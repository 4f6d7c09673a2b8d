#include "nibble/adapters/tuners/init.h"

#include "nibble/adapters/tuners/lora.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/gemm.h"

namespace nibble {

namespace {

LowRankFactors on(MemoryPool& pool, const LowRankFactors& factors) { return {factors.a.to(pool), factors.b.to(pool)}; }

}  // namespace

LowRankFactors initial_factors(const AdapterOptions& options, const std::string& module, const Tensor& w, int64_t r,
                               double scaling, uint64_t seed, MemoryPool& pool) {
  MemoryPool& host = pool.host();
  const Tensor here = w.to(host);
  if (options.init_lora_weights == LoraInit::olora) return on(pool, first_of_qr(here, r, host));
  NIBBLE_CHECK(options.init_lora_weights == LoraInit::pissa, module + ": no start in the weight");
  const int64_t rounds = options.pissa_iterations;
  const TruncatedSvd svd =
      rounds > 0 ? randomized_svd(here, r, rounds, seed, module_key(module), host) : truncated_svd(here, r, host);
  return on(pool, split_evenly(svd, scaling, host));
}

LowRankFactors loftq_factors(const Linear& linear, const Tensor& original, int64_t r, MemoryPool& pool) {
  Tensor lost = original.clone(pool);
  ops::add(linear.weight().dequantize(0, linear.out_features(), pool), lost, -1.0f);
  MemoryPool& host = pool.host();
  return on(pool, split_evenly(truncated_svd(lost.to(host), r, host), 1.0, host));
}

void take_from_base(Linear& linear, const LowRankFactors& factors, double scaling, MemoryPool& pool) {
  auto* dense = dynamic_cast<DenseWeight*>(&linear.weight());
  if (!dense) {
    throw UsageError("init_lora_weights takes from the weight of " + linear.name() + ", which is packed in 4 bits",
                     "use the 16-bit model without model.quantize");
  }
  if (dense->parameter()->name != linear.name() + ".weight") {
    throw UsageError("init_lora_weights takes from the weight of " + linear.name() + ", which is the embedding's too",
                     "leave it out of target_modules");
  }
  Tensor rest = dense->dequantize(0, linear.out_features(), pool);
  ops::matmul_nn(factors.b, factors.a, rest, true, static_cast<float>(-scaling));
  if (dense->transposed()) rest = transposed(rest, pool);
  auto result = std::make_shared<Parameter>(*dense->parameter());
  result->value = Tensor::empty(pool, rest.shape(), dense->parameter()->value.dtype(), result->name);
  ops::cast(rest, result->value);
  release_pages(dense->parameter()->value);
  linear.set_weight(std::make_unique<DenseWeight>(std::move(result), dense->transposed()));
}

Tensor transposed(const Tensor& m, MemoryPool& pool) {
  Tensor result = Tensor::empty(pool, {m.dim(1), m.dim(0)}, m.dtype(), "transpose of a weight");
  ops::transpose(m, result);
  return result;
}

}  // namespace nibble
