#pragma once
// What a rank of a plan does in a step besides computing its layers, as it was counted while the step ran.

#include <map>
#include <string>

#include "nibble/parallel/comm/meta_comm.h"
#include "nibble/parallel/mesh.h"

namespace nibble {

enum class MeshAxis : uint8_t { pipeline, replicate, shard, data, tensor, experts, expert_replicas };
/// Of a step: around a layer's forward or backward pass, or between passes.
enum class StepPart : uint8_t { forward, backward, between };

struct Exchange {
  MeshAxis axis;
  StepPart part;
  std::string operation;  ///< "gather weights", "sum gradients", ...
  CommKind kind;

  auto operator<=>(const Exchange&) const = default;
  int64_t ranks(const MeshShape& mesh) const;
  /// What of its bytes every rank sends.
  double sent(double bytes, const MeshShape& mesh) const;
};

struct StepCost {
  struct Amount {
    double messages = 0, bytes = 0;
  };
  std::map<Exchange, Amount> exchanges;
  double zeroed = 0, copied = 0;  ///< bytes, outside layers: of gradients, and aside while others are summed
  double flops = 0;               ///< of everything

  /// a times the one, b times the other.
  static StepCost sum(double a, const StepCost& one, double b, const StepCost& other);
};

/// Of a microbatch, what comes once a step, and a step's share of what is exchanged over a block of answers.
struct StepCosts {
  StepCost pass, once, block;
  double updated = 0;  ///< values
  /// Before the steps that use a block of answers (PlannedBlock): what is drawn, in so many passes, and judged.
  double draw_passes = 0, draw_flops = 0, judge_flops = 0;

  StepCost step(double passes) const { return StepCost::sum(1, StepCost::sum(passes, pass, 1, once), 1, block); }
};

}  // namespace nibble
