#pragma once
// Several LoRA adapters made into one, as PEFT's add_weighted_adapter does it (peft/tuners/lora/model.py,
// peft/utils/merge_utils.py).

#include <string>
#include <utility>
#include <vector>

#include "nibble/adapters/peft/peft_directory.h"

namespace nibble {

enum class CombineMethod : uint8_t {
  linear,           ///< A = sum of sign(w s) sqrt|w s| A_i, B = sum of sqrt|w s| B_i: not the sum of the changes
  cat,              ///< exactly the weighted sum, rank by rank
  ties,             ///< as linear, but trimmed, and where the sources disagree in sign the majority counts (Yadav 2023)
  dare_linear,      ///< as linear, random elements dropped and the rest scaled up (Yu et al. 2023)
  dare_ties,        ///< the same with the majority's sign
  magnitude_prune,  ///< as linear, small elements dropped
};

struct CombineOptions {
  CombineMethod method = CombineMethod::linear;
  bool svd = false;     ///< on the changes s B A instead of A and B, the result brought to a rank by SVD (not with cat)
  double density = -1;  ///< share of elements kept; for ties, dare and magnitude_prune
  int64_t rank = 0;     ///< with svd; 0: the largest of the sources
  bool by_count = false;  ///< the majority is of signs ("frequency"), not of sums ("total")
  uint64_t seed = 0;      ///< of what dare drops
};

struct CombineSource {
  const PeftAdapter* adapter;
  double weight;
};

/// linear, cat, svd, ties, ties_svd, dare_linear, dare_linear_svd, dare_ties, dare_ties_svd, magnitude_prune,
/// magnitude_prune_svd. Throws UsageError for another name.
void set_combine_method(const std::string& name, CombineOptions& options);

/// A combined adapter, ready for write_peft_directory.
struct CombinedAdapter {
  AdapterOptions options;
  std::vector<std::pair<std::string, Tensor>> tensors;
};

/// The result has one rank for all modules, filled up with zeros where a module has less, and scaling 1 (lora_alpha =
/// r, no rsLoRA: where the sources use it PEFT keeps the flag, and its result is sqrt(r) times too large). A module
/// that only some sources have takes those. One source alone is taken linearly. Throws UsageError for ranks that differ
/// where they must be equal, for a density that is missing or cannot be, for options that the method does not look at,
/// and for adapters with more than plain LoRA in them (DoRA, PiSSA, trained biases, modules or tokens); NumericError
/// for a sum that is not finite.
CombinedAdapter combine_adapters(const std::vector<CombineSource>& sources, const CombineOptions& options,
                                 MemoryPool& pool);

}  // namespace nibble
