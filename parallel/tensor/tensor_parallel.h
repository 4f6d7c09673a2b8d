#pragma once
// Tensor parallelism (Shoeybi et al. 2019): several ranks compute every layer together, each with a shard of its
// weights.

#include <memory>

#include "nibble/core/base/trace.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/nn/layer_sharding.h"
#include "nibble/parallel/tensor/tensor_shard.h"

namespace nibble {

/// The shards of one of the ranks `ranks` and the sums over them. Sums are all_reduce_tree's, the same bits on all.
class TensorParallel final : public LayerSharding {
 public:
  /// trace: gets a span of communication for every sum. Everything must outlive this. Throws what tensor_shard throws.
  TensorParallel(const DecoderConfig& config, Communicator& ranks, MemoryPool& pool, Trace* trace = nullptr);

  AttentionConfig attention(AttentionConfig whole) const override;
  MlpConfig mlp(MlpConfig whole) const override;
  ShardSpec shard(const std::string& module) const override { return module_shard(config_, shard_, module); }
  Makers makers(const Makers& whole, MemoryPool& pool) const override;
  void all_reduce(std::string_view what, Tensor& values) const override;
  void embed(const Embedding& table, const Tensor& ids, float scale, Tensor& x, const StepContext& step) const override;
  void embed_backward(Embedding& table, const Tensor& ids, float scale, const Tensor& gradient,
                      const StepContext& step) const override;
  Tensor gather_logits(const Tensor& logits, const StepContext& step) const override;
  Tensor cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, Tensor& row_max, Tensor& row_sumexp,
                       Tensor& losses, const StepContext& step) const override;

 private:
  DecoderConfig config_;
  TensorShard shard_;
  Communicator& ranks_;
  MemoryPool& pool_;
  Trace* trace_;
};

/// What a Decoder of this rank is made with; null where there is a single one.
std::unique_ptr<TensorParallel> tensor_parallel(const DecoderConfig& config, Communicator& ranks, MemoryPool& pool,
                                                Trace* trace = nullptr);

}  // namespace nibble
