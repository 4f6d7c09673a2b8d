#pragma once
// Rows of tables that are trained alone: trainable_token_indices.

#include <set>
#include <string>
#include <vector>

#include "nibble/adapters/options.h"
#include "nibble/adapters/tuners/fully_trained.h"
#include "nibble/core/models/decoder.h"

namespace nibble {

/// Rows of one table, the embedding's or the head's.
struct TrainedTokens {
  std::string table;  ///< path of its module
  std::vector<int64_t> ids;
  bool shared_with_head = false;  ///< an embedding to which the head is tied, and sees its rows
};

/// The rows that the options name in the whole model. Throws UsageError for a name that fits no table, for ids outside
/// the table, and for a table that is trained otherwise as well: has an adapter (`targeted`) or is in `fully_trained`.
std::vector<TrainedTokens> find_trained_tokens(Decoder& model, const AdapterOptions& options,
                                               const std::set<std::string>& targeted,
                                               const FullyTrained& fully_trained);

/// Gives the rows of tables that are here values of their own (f32) under their PEFT names
/// ("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"), starting as what the table has. Throws
/// UsageError for a packed head.
void train_tokens(Decoder& decoder, const std::vector<TrainedTokens>& tokens, bool trainable, RankContext& rank);

}  // namespace nibble
