#include "nibble/parallel/plan/step_cost.h"

#include <cmath>

namespace nibble {

int64_t Exchange::ranks(const MeshShape& mesh) const {
  switch (axis) {
    case MeshAxis::pipeline:
      return mesh.pipeline;
    case MeshAxis::replicate:
      return mesh.replicate;
    case MeshAxis::shard:
      return mesh.shard;
    case MeshAxis::data:
      return mesh.data();
    case MeshAxis::tensor:
      return mesh.tensor;
    case MeshAxis::experts:
      return mesh.experts;
    case MeshAxis::expert_replicas:
      return mesh.data() / mesh.experts;
  }
  return 1;
}

double Exchange::sent(double bytes, const MeshShape& mesh) const {
  const auto among = static_cast<double>(ranks(mesh));
  return kind == CommKind::send ? bytes : bytes * (among - 1) / among;
}

StepCost StepCost::sum(double a, const StepCost& one, double b, const StepCost& other) {
  StepCost result{
      {}, a * one.zeroed + b * other.zeroed, a * one.copied + b * other.copied, a * one.flops + b * other.flops};
  for (const auto& [cost, times] : {std::pair(&one, a), std::pair(&other, b)}) {
    for (const auto& [exchange, amount] : cost->exchanges) {
      Amount& to = result.exchanges[exchange];
      to.messages += times * amount.messages;
      to.bytes += times * amount.bytes;
    }
  }
  std::erase_if(result.exchanges, [](const auto& entry) { return std::abs(entry.second.messages) < 1e-6; });
  return result;
}

}  // namespace nibble
