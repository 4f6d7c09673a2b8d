#pragma once
// Which heads, MLP columns and rows of the vocabulary one of several tensor-parallel ranks has (Shoeybi et al. 2019).

#include <string>

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/nn/shard_spec.h"

namespace nibble {

/// What one rank holds when tp_size ranks compute every layer together. Projections into heads and into the MLP are
/// column-parallel (rows of the weight [out, in]), those back into the residual stream row-parallel (its columns), so
/// that every rank has one term of the sum that a layer adds; embedding and head are sliced by rows of the vocabulary;
/// norms are not sharded. Biases go with the rows; those of projections back into the stream are the first rank's
/// alone. Heads, columns and rows need not divide evenly.
struct TensorShard {
  int tp_rank = 0, tp_size = 1;
  Range kv_heads, heads, mlp, vocabulary;
};

/// The shard of rank tp_rank. Heads are divided at key/value heads, or at groups of a fused projection; a single
/// key/value head that is not fused is on all ranks, and queries are divided. The MLP is divided where 4-bit blocks of
/// 64 end, if its width allows. Throws UsageError naming what the model has too few of, or what cannot be divided
/// (norms over all heads together or with weights for each head, layers of other kinds or sizes).
TensorShard tensor_shard(const DecoderConfig& config, int tp_rank, int tp_size);

/// See LayerSharding::shard.
ShardSpec module_shard(const DecoderConfig& config, const TensorShard& shard, const std::string& module);

/// Of a parameter, as the family stores it.
struct ParameterShard {
  ShardSpec spec;         ///< nothing: not sharded
  bool partial_gradient;  ///< see Parameter
  bool here;              ///< false: it is the first rank's alone
};
ParameterShard parameter_shard(const DecoderConfig& config, const TensorShard& shard, const std::string& name);

}  // namespace nibble
