#pragma once
// Tensor names of each family's checkpoints, as Hugging Face writes them.

#include "nibble/core/models/decoder_config.h"

namespace nibble {

/// Whether a parameter belongs to a norm of queries or keys: f32 like all norms, also where it is a matrix.
bool is_head_norm(const TensorNames& names, std::string_view parameter);
/// Whether a parameter is computed with in f32, whatever dtype the files have: norms and biases, a router's correction
/// [1, E], filters [D, 1, taps] of convolutions that see every column by itself, decays of state spaces.
bool is_f32(const TensorNames& names, std::string_view parameter, const Shape& shape);

/// Projections of their own below a module: "attn.q_proj", ...
AttentionNames attention_below(const std::string& module, const std::string& output = "out_proj");

TensorNames gemma2_names();
/// The same names one module deeper, where a vision tower stands beside the language model.
TensorNames inside_language_model(TensorNames names);
TensorNames phi3_names();
/// norms_after: of what attention and MLP add, too (GLM-4 0414).
TensorNames glm_names(bool norms_after);
TensorNames hunyuan_names();
TensorNames gpt_neox_names();
TensorNames falcon_names();
TensorNames gpt2_names();
TensorNames opt_names();
TensorNames olmo2_names();
TensorNames stablelm_names();
TensorNames starcoder2_names();
TensorNames phi_names();
TensorNames cohere_names();
TensorNames bloom_names();
TensorNames gptj_names();
TensorNames codegen_names();

}  // namespace nibble
