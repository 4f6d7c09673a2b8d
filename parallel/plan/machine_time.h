#pragma once
// The time of a step on the machine at hand, put together from parts that were measured on it
// (recipes/plan/machine_speed.h).

#include <map>
#include <vector>

#include "nibble/parallel/plan/step_time.h"

namespace nibble {

/// Seconds of something that moves bytes, at some sizes; between them in a straight line.
class ByteCost {
 public:
  ByteCost() = default;
  /// points: (bytes, seconds) by size.
  explicit ByteCost(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {}

  /// Of one message; beyond the largest that was measured in proportion.
  double seconds(double bytes) const;
  /// Of `bytes` in so many messages of equal size.
  double seconds(double bytes, double messages) const {
    return messages > 0 ? messages * seconds(bytes / messages) : 0;
  }
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;
};

/// What a rank takes, with the model sharded over a tensor axis (their sums included), while as many ranks work
/// as have cores of their own. Of one microbatch where nothing else is said.
struct PartSeconds {
  std::vector<double> forward, backward;  ///< [L]
  /// [L] of blocks that recompute: forward once more, backward
  std::vector<double> forward_recompute, backward_recompute;
  double embed = 0, embed_backward = 0;
  double head = 0;       ///< forward and backward
  double operation = 0;  ///< of forward passes, each
  /// Of a pass that draws a token for each answer, beside its operations: what reading [L] weights takes, and choosing.
  std::vector<double> draw;
  double draw_once = 0;
  double zero_grad = 0;   ///< of one trained value: its gradient is set to zero,
  double accumulate = 0;  ///< is copied aside and added to that of another microbatch,
  double update = 0;      ///< is part of the norm, and updates its value
};

/// Exchanges in groups of so many ranks while all ranks of the run do the same, by bytes before they are sharded.
struct GroupExchanges {
  ByteCost sum;     ///< all_reduce_tree
  ByteCost reduce;  ///< reduce_scatter_tree
  ByteCost gather;
};

struct MachineSpeed {
  double cores = 1;
  int threads = 1;                             ///< of a rank
  std::map<int64_t, PartSeconds> parts;        ///< by tensor degree
  std::map<int64_t, PartSeconds> offloaded;    ///< the same with activations in a file; empty: not measured
  std::map<int64_t, GroupExchanges> exchange;  ///< by the ranks of a group
  ByteCost pass_on;                            ///< from one stage to the next

  /// Those of the largest group measured stand for larger ones.
  const GroupExchanges& among(int64_t ranks) const;
};

/// One step: passes of every stage in the order of its schedule, waiting for each other; stages that work at the same
/// time share the cores where there are fewer of them than threads. layout.mesh.tensor is a key of speed.parts. What a
/// file of activations adds is counted where speed.offloaded has it.
StepTime step_time_here(const PlanJob& job, const PlanLayout& layout, const MemoryPlan& plan,
                        const MachineSpeed& speed);

}  // namespace nibble
