#pragma once
// What llama.cpp calls a family, and what of it llama.cpp computes (Family::gguf).

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace nibble {

class GgufKeys;

struct GgufForm {
  std::string_view architecture;          ///< general.architecture; "": there is no form of the family
  std::string_view mixture_architecture;  ///< the same with experts, where it is another
  bool attends = true;                    ///< has layers with attention
  bool rope_pairs = false;                ///< rows of queries and keys that turn together are neighbours, or would be
  bool biases = false;                    ///< projections may have them
  bool needs_biases = false;              ///< and must
  bool only_tied = false;                 ///< the head is the embedding
  bool own_head = false;                  ///< a tied head too is a tensor of its own
  bool scales = false;                    ///< Granite's of embedding, residual, scores and logits
  bool logit_scale = false;               ///< of logits alone
  bool says_parallel = false;             ///< has the key use_parallel_residual
  bool only_parallel = false;             ///< attention and MLP read the same input
  bool attn_norm_2 = false;       ///< of two norms of that input the attention's is called so, the MLP's attn_norm
  bool alibi = false;             ///< scores have ALiBi
  bool softcaps = false;          ///< scores and logits are capped
  bool clipped_qkv = false;       ///< queries, keys and values may be clipped
  bool optional_qk_norm = false;  ///< queries and keys may have norms where the row names none
  bool longrope = false;          ///< positions may be stretched by it
  bool local_rope = false;        ///< layers with a window have a rope of their own, without stretching
  bool says_window = false;       ///< has the key attention.sliding_window, for all layers alike
  bool mixture = false;
  bool normalizes_routes = false;  ///< the weights of the chosen experts sum to 1
  bool says_routes = false;        ///< keys for everything about routers, and for the dense layers before the experts
  bool says_expert_width = false;  ///< of these keys the width of an expert alone
  float expert_clamp = 0;          ///< bound of what an expert's activation reads
  bool weighs_inputs = false;      ///< the weight of an expert multiplies what it reads (Llama 4)
  bool bare_mlp_norm = false;      ///< the name of the norm before the MLP does not end in .weight
  bool yarn = false;               ///< positions may be stretched by it
  bool folds_scales = false;       ///< scales of the model are in its weights
  bool splits_mlp = false;         ///< a fused projection to gate and up is two
  bool mixed_layers = false;       ///< any layer may be without experts
  bool lists_windows = false;      ///< any layer may have one, and scores are not scaled (Gemma 4)
  bool no_adapters = false;        ///< products that llama.cpp computes without adapters beside the model
  bool own_mix = false;            ///< llama.cpp's mixes of types have rules of their own for it
  std::string_view final_norm = "output_norm", mlp_norm = "ffn_norm";
  /// The model with so many layers scales its scores by width / heads, not by the size of a head (Gemma).
  int64_t largest_layers = 0;
  int64_t rope_period = 0;  ///< every so many-th layer is without rope; 0: not by number
  /// Adds to config.json what is the family's own; null = nothing is.
  void (*config)(const GgufKeys& keys, nlohmann::ordered_json& config) = nullptr;
};

}  // namespace nibble
