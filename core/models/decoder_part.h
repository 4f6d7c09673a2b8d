#pragma once
// Tensor parallelism (Shoeybi et al. 2019): which heads, MLP columns and rows of the vocabulary one of several ranks
// has.

#include <string>

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/nn/cut.h"

namespace nibble {

/// What one rank holds when `count` ranks compute every layer together. Projections into heads and into the MLP are cut
/// by rows, those back into the residual stream by columns, so that every rank has a part of the sum that a layer adds;
/// embedding and head are cut by rows of the vocabulary; norms are whole everywhere. Biases are cut with the rows;
/// those of projections back into the stream are the first rank's alone. Heads, columns and rows need not divide
/// evenly.
struct DecoderPart {
  int index = 0, count = 1;
  Range kv_heads, heads, mlp, vocabulary;

  bool cut() const { return count > 1; }
};

/// The part of rank `index`; nothing is cut for a single one. Heads are cut at key/value heads, or at groups of a fused
/// projection; a single key/value head that is not fused is on all ranks, and queries are cut. The MLP is cut where
/// 4-bit blocks of 64 end, if its width allows. Throws UsageError naming what the model has too few of, or what cannot
/// be cut (norms over all heads together or with weights for each head, layers of other kinds or sizes).
DecoderPart decoder_part(const DecoderConfig& config, int index, int count);

/// A layer's sublayers as this part has them.
AttentionConfig part_of(AttentionConfig whole, const DecoderPart& part);
MlpConfig part_of(MlpConfig whole, const DecoderPart& part);

/// How the weight [out, in] of a Linear or the table of an embedding is cut; nothing for modules that are whole on all
/// ranks. A cut that leaves all of it (the only key/value head) says that every rank computes a part of its gradient.
Cut module_cut(const DecoderConfig& config, const DecoderPart& part, const std::string& module);

/// Makers that ask `whole` for whole weights and keep the part: what is mapped stays in the file but for the part.
/// Parameters tell their part (Parameter::cut); a null parameter is another rank's.
Makers part_makers(const DecoderConfig& config, const DecoderPart& part, const Makers& whole, MemoryPool& pool);

}  // namespace nibble
