#pragma once
// Merging where adapters and quantization meet.

#include <string>
#include <vector>

#include "nibble/adapters/merging/merge.h"
#include "nibble/core/base/rank_context.h"

namespace nibble {

struct MergeRequest {
  std::string adapter;         ///< PEFT directory
  std::string model;           ///< base; empty: the one that the adapter names
  std::string out;             ///< directory to write
  std::string base;            ///< "dequantized" or "original"; empty: what the base is
  std::string dtype = "bf16";  ///< bf16, f16, f32, nf4
  Replace replace = Replace::nothing;
};

/// Refuses a place or a base that merge_model() would refuse. For before the base is read.
void check_merge(const MergeRequest& request);

/// What to know before a merge: that the adapter was trained on another base, or on this one in 4 bits (other_base),
/// and nobody asked for it. Empty where all is well or the adapter keeps no record of its base.
std::string merge_warning(const MergeRequest& request);

/// The same of any merge of a PEFT directory into the model directory `base`.
std::string merge_warning(const std::string& adapter, const std::string& base);

/// Where the result gets tokenizer or chat template from the adapter, and they are not the base's (find_text_source).
std::vector<std::string> merge_notes(const MergeRequest& request);

/// Merges into a model directory without adapter, block of rows by block of rows. `dequantized` takes the weights of a
/// 4-bit base (what the adapter was trained against), `original` asks for a 16/32-bit one: UsageError when the base is
/// the other kind. nf4 rounds the merged weights to 4 bits again, which loses what is smaller than a step; it makes a
/// copy in the base's dtype beside `out` on the way.
MergeReport merge_model(const MergeRequest& request, RankContext& rank);

}  // namespace nibble
