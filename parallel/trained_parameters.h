#pragma once
// The seam between how a step runs and how the ranks of the data axes hold what it trains.

#include <functional>
#include <string>
#include <vector>

#include "nibble/core/nn/parameter.h"
#include "nibble/core/train/checkpoint/checkpoint.h"

namespace nibble {

/// ops::sum_of_squares adds pieces of this many elements in order: whoever has whole pieces can give the same bits.
constexpr int64_t kSquaresPiece = 1 << 15;

/// The trained parameters of a Decoder as a rank of the data axes holds them: unsharded (ddp.h), in shards (fsdp.h), or
/// the experts on some ranks only (spread_experts.h).
class TrainedParameters {
 public:
  virtual ~TrainedParameters() = default;

  /// What this rank's optimizer works on.
  virtual std::vector<Parameter*> parameters() const = 0;
  /// The gradients of parameters() become the sums over the ranks. present[r]: whether rank r of the data axes has
  /// something to add.
  virtual void reduce_gradients(const std::vector<bool>& present) = 0;
  /// Calls visitor(gradients) for what is here of those of which every tensor-parallel rank has one term.
  virtual void visit_partial_gradients(const std::function<void(Tensor&)>& visitor) = 0;
  /// What is here of the gradient of an embedding that two pipeline stages have; both hold the same of it.
  virtual Tensor tied_gradient(const Parameter& embedding) const = 0;
  /// The sums of the squares of the gradients of `counted`, parameters of the Decoder, in their order; among them,
  /// where one rank would have them, those of what only other ranks of the data axes have. By all ranks.
  virtual std::vector<double> gradient_squares(const std::vector<const Parameter*>& counted) const = 0;

  /// Where a tensor of parameters(), or of their optimizer's state, lies in the Decoder's `parameter`.
  virtual std::vector<CheckpointSlice> slices(const Parameter& parameter, const NamedTensor& tensor) const = 0;
  /// Whether no rank of the data axes before this one holds the same of the Decoder's `parameter`.
  virtual bool is_first_copy(const Parameter& parameter) const = 0;
};

}  // namespace nibble
