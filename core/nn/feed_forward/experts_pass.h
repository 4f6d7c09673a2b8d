#pragma once
// What a pass of Experts works on and keeps: for experts.cpp and exchanged_experts.cpp.

#include "nibble/core/nn/feed_forward/expert_exchange.h"
#include "nibble/core/nn/feed_forward/experts.h"
#include "nibble/core/ops/embedding.h"

namespace nibble {

// Rows that experts here computed on. What enters `down` is computed again from gate and up, and the experts' inputs
// are read again from x.
struct Experts::Part {
  Tensor x;         // [N, D], of rows that came from a rank; undefined: the sublayer's input
  Tensor chosen;    // [N, 1] i32, the host's: their experts, counted from the first here
  Tensor weights;   // [N, 1] f32
  Tensor gate, up;  // [T * k, F] by expert, then token; gate is undefined when not gated
  ExpertLinearsSaved gate_up_proj, gate_proj, up_proj, down_proj;

  void visit(const TensorVisitor& visitor) {
    for (ExpertLinearsSaved* linears : {&gate_up_proj, &gate_proj, &up_proj, &down_proj}) linears->visit(visitor);
    for (Tensor* tensor : {&x, &weights, &gate, &up}) {
      if (*tensor) visitor(*tensor);
    }
  }
};

struct Experts::Saved final : SavedMembers<Saved> {
  Tensor x;       // the sublayer's input
  Tensor latent;  // [T, latent], what the experts see where they have such a width
  LinearSaved to_latent, from_latent;
  Routed routed;
  ExpertRoute route;        // where rows go to other ranks
  std::vector<Part> parts;  // of the rows of every rank that has some here; else one
  std::unique_ptr<SublayerSaved> shared;
  Tensor shared_out;                     // [T, D] before its gate, where it has one
  Tensor shared_weights, shared_logits;  // [T, 1] f32 of the gate
  LinearSaved shared_gate;

  void each(const auto& use) {
    use(routed, parts, shared, shared_gate, x, latent, to_latent, from_latent, shared_out, shared_weights,
        shared_logits);
  }
  void inputs(const auto& use) { use(x); }
  void set_input(const Tensor& input) override {
    x = input;
    if (shared) shared->set_input(input);
  }
};

// One pass over T tokens: which of them every expert computes. Its N = T * k rows are those of the first expert, then
// of the second, and so on.
struct Experts::Pass {
  /// chosen [T, k] counts from expert `begin`, the first of `experts`; of_chosen [T, k] are their weights.
  Pass(const Tensor& input, const Tensor& choice, const Tensor& of_chosen, size_t experts, int64_t begin,
       const StepContext& context)
      : x(input), step(context), first(begin) {
    const std::span<const int32_t> chosen = choice.span<const int32_t>();
    const auto k = static_cast<size_t>(choice.dim(1));
    std::vector<int64_t> next(experts + 1);
    for (const int32_t e : chosen) ++next[static_cast<size_t>(e) + 1];
    groups.begins = {0};
    for (size_t e = 0; e < experts; ++e) {
      if (next[e + 1] > 0) {
        groups.experts.push_back(e);
        groups.begins.push_back(groups.begins.back() + next[e + 1]);
      }
      next[e + 1] += next[e];
    }
    std::vector<int32_t> tokens(chosen.size()), slot_of(chosen.size());
    for (size_t slot = 0; slot < chosen.size(); ++slot) {
      const auto row = static_cast<size_t>(next[static_cast<size_t>(chosen[slot])]++);
      tokens[row] = static_cast<int32_t>(slot / k);
      slot_of[row] = static_cast<int32_t>(slot);
    }
    MemoryPool& host = context.pool().host();
    groups.rows = Tensor::from<int32_t>(host, {std::ssize(tokens)}, tokens);
    slots = Tensor::from<int32_t>(host, {std::ssize(slot_of)}, slot_of);
    weights = Tensor::empty(context.pool(), {slots.numel(), 1}, DType::f32, "weights of experts");
    ops::gather_rows(of_chosen.reshape({slots.numel(), 1}), slots, weights);
  }

  /// Rows of group g of a tensor of all rows.
  Tensor own(const Tensor& all, int64_t g) const { return all.rows(groups.begin(g), groups.end(g)); }
  /// Its number among all of the layer.
  int64_t expert(int64_t g) const { return first + static_cast<int64_t>(groups.experts[static_cast<size_t>(g)]); }
  Tensor empty(int64_t columns, DType dtype, const char* what) const {
    return Tensor::empty(step.pool(), {groups.size(), columns}, dtype, what);
  }

  const Tensor& x;
  const StepContext& step;
  int64_t first;
  ExpertGroups groups;
  Tensor slots;    // [N] i32: places of the rows among the weights [T, k]
  Tensor weights;  // [N, 1] f32
};

}  // namespace nibble
