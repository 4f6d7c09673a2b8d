#pragma once
// Mixtures of experts as data.

#include <string>

#include "nibble/core/nn/feed_forward/mlp.h"
#include "nibble/core/ops/experts.h"

namespace nibble {

struct ExpertsConfig {
  int64_t width = 0;    ///< D
  int64_t hidden = 0;   ///< F of one expert
  int64_t experts = 0;  ///< E
  ops::Routing routing;
  bool router_bias = false;
  bool correction_row = false;  ///< the correction is a matrix of one row (ERNIE 4.5)
  ops::Activation activation = ops::Activation::silu;
  bool gated = true;
  float clamp = 0;              ///< bound of gate and up, see ops::clamped_gated_forward; 0 = off
  bool bias = false;            ///< of fused tensors: "..._bias" [E, out]
  bool transposed = false;      ///< fused tensors are [E, in, out]
  bool interleaved = false;     ///< in the fused gate_up, gate and up have every other output; else gate comes first
  bool weighted_input = false;  ///< the weight multiplies an expert's input, not its output (Llama 4)
  int64_t latent = 0;           ///< width that experts work in, between two Linears; 0 = D, without them
  bool latent_bias = false;     ///< of those Linears
  int64_t shared_hidden = 0;    ///< F of the shared MLP, 0 = none
  bool shared_bias = false;     ///< of its Linears
  float shared_scale = 1;       ///< of what it adds

  /// Of an expert's input and output.
  int64_t expert_width() const { return latent > 0 ? latent : width; }
};

/// Module names below the layer's prefix.
struct ExpertNames {
  std::string router = "mlp.gate";
  std::string correction;  ///< empty = none
  /// Full names of parameters, empty = none: what multiplies the normed input of the router [D], and the weights [E].
  std::string router_scale, expert_scale;
  /// Of expert N's Linears: experts + ".N." + gate, ...
  std::string experts = "mlp.experts", gate = "gate_proj", up = "up_proj", down = "down_proj";
  /// Of fused tensors [E, 2 F, D] and [E, D, F], in full; empty = every expert has Linears of its own.
  std::string fused_gate_up, fused_down;
  std::string to_latent, from_latent;  ///< see ExpertsConfig::latent
  MlpNames shared;
  std::string shared_gate;  ///< [1, D]: its sigmoid multiplies what the shared MLP adds; empty = none

  /// What PEFT calls router and tensors of all experts, where Transformers' modules have other names than the files.
  std::string peft_router = "mlp.gate", peft_gate_up = "mlp.experts.gate_up_proj", peft_down = "mlp.experts.down_proj";
  std::string peft_correction;  ///< the same for the correction; empty: as in the files
  /// Whether PEFT takes "all-linear", and the names of an expert's Linears, for these tensors and the router.
  bool peft_translates = true;
};

}  // namespace nibble
