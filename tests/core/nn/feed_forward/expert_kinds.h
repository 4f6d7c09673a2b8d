#pragma once
// Small models with experts of every form.

#include "nibble/core/nn/feed_forward/experts.h"
#include "nibble/tests/core/nn/new_kind.h"

namespace nibble::test {

inline ExpertsConfig mixtral_like() {
  ExpertsConfig experts = {.width = 16, .hidden = 10, .experts = 5};
  experts.routing = {.k = 2, .normalize = true};
  return experts;
}

/// The Llama of new_kind.h with experts in layers 1 and 3.
inline DecoderConfig with_experts(const ExpertsConfig& experts, const ExpertNames& names = {}) {
  DecoderConfig config = with_kind([](LayerConfig&) {});
  config.experts = experts;
  config.names.block.experts = names;
  config.use_experts(1);
  config.use_experts(3);
  return config;
}

inline DecoderConfig mixtral() { return with_experts(mixtral_like()); }

/// A shared expert with a gate, sigmoid scores in groups.
inline DecoderConfig with_shared() {
  ExpertsConfig experts = mixtral_like();
  experts.experts = 6;
  experts.routing = {.k = 2,
                     .score = ops::RouterScore::sigmoid,
                     .groups = 3,
                     .top_groups = 2,
                     .group_score = ops::GroupScore::two_best,
                     .normalize = true,
                     .epsilon = 1e-20f,
                     .scale = 2.5f};
  experts.shared_hidden = 12;
  ExpertNames names;
  names.shared = {.gate = "mlp.shared.gate_proj", .up = "mlp.shared.up_proj", .down = "mlp.shared.down_proj"};
  names.shared_gate = "mlp.shared_gate";
  return with_experts(experts, names);
}

/// Fused tensors with biases, transposed, gate and up interleaved and clamped; the router has a bias.
inline DecoderConfig gpt_oss_like() {
  ExpertsConfig experts = mixtral_like();
  experts.routing = {.k = 2, .score = ops::RouterScore::chosen_softmax};
  experts.activation = ops::Activation::gelu_sigmoid;
  experts.clamp = 1;
  experts.bias = experts.router_bias = experts.transposed = experts.interleaved = true;
  ExpertNames names;
  names.fused_gate_up = "mlp.experts.gate_up_proj";
  names.fused_down = "mlp.experts.down_proj";
  return with_experts(experts, names);
}

/// Weights on the input, no gate, gate and up of all experts one after another.
inline DecoderConfig llama4_like() {
  ExpertsConfig experts = mixtral_like();
  experts.routing = {.k = 1, .score = ops::RouterScore::sigmoid};
  experts.weighted_input = true;
  ExpertNames names;
  names.fused_gate_up = "mlp.experts.gate_up_proj";
  names.fused_down = "mlp.experts.down_proj";
  return with_experts(experts, names);
}

inline std::vector<DecoderConfig> all_kinds() {
  DecoderConfig no_gate = mixtral();
  no_gate.experts->gated = false;
  no_gate.experts->activation = ops::Activation::relu_squared;
  return {mixtral(), with_shared(), gpt_oss_like(), llama4_like(), no_gate};
}

}  // namespace nibble::test
