#pragma once
// The seam for layers of which only a shard of every weight is here (tensor parallelism): core knows neither how many
// shards there are nor where the others are.

#include <string_view>

#include "nibble/core/nn/embedding.h"
#include "nibble/core/nn/feed_forward/mlp.h"
#include "nibble/core/nn/mixers/attention.h"

namespace nibble {

/// Which shards of a Decoder's weights are here, and what completes what is computed with them. A Decoder without one
/// has unsharded weights.
class LayerSharding {
 public:
  virtual ~LayerSharding() = default;

  /// A layer's sublayers with the heads and columns that are here.
  virtual AttentionConfig attention(AttentionConfig global) const = 0;
  virtual MlpConfig mlp(MlpConfig global) const = 0;
  /// The shard of the weight [out, in] of a Linear or of the table of an embedding; nothing: it is not sharded. One
  /// that has everything says that what is computed with it is one term of its gradient.
  virtual ShardSpec shard(const std::string& module) const = 0;
  /// Makers that ask `unsharded` for global weights and keep the shards: what is mapped stays in the file but for them.
  /// Parameters tell their shard (Parameter::shard); a null parameter is another's.
  virtual Makers makers(const Makers& unsharded, MemoryPool& pool) const = 0;

  /// values, f32, one term of a sum, become the sum. `what` names it.
  virtual void all_reduce(std::string_view what, Tensor& values) const = 0;
  /// Embedding::forward and Embedding::backward of all the table's rows.
  virtual void embed(const Embedding& table, const Tensor& ids, float scale, Tensor& x,
                     const StepContext& step) const = 0;
  virtual void embed_backward(Embedding& table, const Tensor& ids, float scale, const Tensor& gradient,
                              const StepContext& step) const = 0;
  /// Logits [n, V] f32 from the columns here.
  virtual Tensor gather_logits(const Tensor& logits, const StepContext& step) const = 0;
  /// Losses, row_max and row_sumexp [n] f32 over all columns of the logits of which `logits` are those here, see
  /// cross_entropy.h, token_statistics too; returns the targets counted from the first column here, -1 for those of
  /// other shards.
  virtual Tensor cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, Tensor& row_max,
                               Tensor& row_sumexp, Tensor& losses, Tensor& token_statistics,
                               const StepContext& step) const = 0;
};

}  // namespace nibble
