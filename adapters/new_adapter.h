#pragma once
// Adapters that start from nothing but the options and the base.

#include <functional>
#include <map>
#include <memory>

#include "nibble/adapters/options.h"
#include "nibble/adapters/tuners/init.h"
#include "nibble/core/models/decoder.h"

namespace nibble {

/// The 16- or 32-bit weight [out, in] f32 of a module that the decoder holds in 4 bits.
using OriginalWeight = std::function<Tensor(const std::string& module)>;

/// A parameter with its gradient, if it is to be trained.
std::shared_ptr<Parameter> make_parameter(const std::string& name, Tensor value, bool trainable, MemoryPool& pool);

/// The shard of a tensor that stands beside a shard of a matrix: itself where the spec is nothing, else a copy.
Tensor own_shard(const Tensor& global, const ShardSpec& spec, MemoryPool& pool);
/// A or B as it stands beside the shard `base` of a matrix: an unsharded factor has a partial gradient there.
std::shared_ptr<Parameter> sharded_like(std::shared_ptr<Parameter> factor, ShardSpec spec, const ShardSpec& base);
/// Where the input of a linear begins in that of the global matrix.
int64_t first_input(const Linear& linear);

/// Makes new adapters; their numbers are functions of (rank.seed, module path) and, for some kinds of start, the base.
class NewAdapter {
 public:
  /// `original` is asked for LoftQ only. All must outlive this.
  NewAdapter(const AdapterOptions& options, const OriginalWeight& original, RankContext& rank)
      : options_(options), original_(original), rank_(rank) {}

  /// LoRA or DoRA; for pissa and olora the linear's weight becomes what is left.
  std::unique_ptr<Adapter> make(Linear& linear);
  std::unique_ptr<EmbeddingAdapter> make(const Embedding& embedding) const;

  /// What the modules started from where that cannot be computed again from the base alone (pissa_iterations).
  std::map<std::string, LowRankFactors> take_random_starts() { return std::move(random_starts_); }

 private:
  LowRankFactors plain_start(const Linear& linear, int64_t r) const;
  void fill(Tensor& value, const std::string& name, double bound) const;

  const AdapterOptions& options_;
  const OriginalWeight& original_;
  RankContext& rank_;
  std::map<std::string, LowRankFactors> random_starts_;
};

}  // namespace nibble
