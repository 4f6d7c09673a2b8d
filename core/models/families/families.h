#pragma once
// The families nibble knows, one row each: what config.json leaves unsaid, and how the family spells what it says.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/models/decoder_config.h"

namespace nibble {

class ConfigReader;

/// How a family says which layers see only the last `sliding_window` positions.
enum class WindowRule : uint8_t {
  none,        ///< no window, whatever the file says
  every,       ///< all layers, when sliding_window is a number (Mistral)
  from_layer,  ///< with use_sliding_window, the layers from max_window_layers on (Qwen2)
  even,        ///< layers 0, 2, 4, ... (Gemma 2)
  period,      ///< all but every `sliding_window_pattern`-th (Gemma 3, Cohere 2)
  nope,        ///< with use_sliding_window, the layers without rope (SmolLM3)
};

/// Spelling of config.json keys where families differ.
struct ConfigKeys {
  std::string_view width = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads";
  std::string_view mlp_width = "intermediate_size", max_positions = "max_position_embeddings";
  std::string_view head_size = "head_dim";  ///< "" here and below: the family does not look for such a key
  std::string_view kv_heads = "num_key_value_heads", norm_eps = "rms_norm_eps", activation = "hidden_act";
  std::string_view rotary_share = "partial_rotary_factor", rope_base = "rope_theta";
};

/// One row. Values are those of the family's configuration class in Transformers when the key is absent.
struct Family {
  std::string_view model_type;
  std::string_view architecture;
  TensorNames names;
  ConfigKeys keys;

  NormConfig norm = {.kind = NormKind::rms, .eps = 1e-6f};
  std::string_view activation = "silu";  ///< when absent
  bool gated_mlp = true;
  bool parallel_residual = false;
  std::optional<HeadNormKind> qk_norm;  ///< with the family's norm
  bool biases = false;                  ///< every Linear but the head
  bool qkv_bias = false;                ///< always; `attention_bias` in the file adds all four
  bool tied_head = false;               ///< when absent
  bool scaled_embedding = false;        ///< embeddings times sqrt(D)
  int64_t kv_heads = 0;                 ///< when absent; 0 = as many as heads
  int64_t mlp_share = 0;                ///< F / D when absent; 0 = the file must say F
  int64_t head_size = 0;                ///< when absent; 0 = D / H
  int64_t max_positions = 2048;         ///< when absent
  int64_t position_offset = 0;          ///< of learned positions
  bool rope = true;
  double rope_base = 10000;    ///< when absent
  double rotary_share = 1;     ///< when absent
  double local_rope_base = 0;  ///< of layers with a window when absent; 0 = all layers turn alike
  /// The length that stretched rope starts from: what the configuration class says when the key beside rope_scaling is
  /// absent, which then wins over the one inside (Phi-3); 0 = the inner one, or else max_positions
  int64_t original_max_positions = 0;
  ops::RopePairs rope_pairs = ops::RopePairs::halves;
  WindowRule window_rule = WindowRule::none;
  int64_t window = 0;         ///< when sliding_window is absent (null means none)
  int64_t window_period = 0;  ///< when sliding_window_pattern is absent
  /// Beside a vision tower: config.json keeps the keys under text_config, and this JSON object has those that may be
  /// absent there ("" = not beside one). The tower's tensors are passed over.
  std::string_view text_defaults;
  /// What depends on flags of the family's own; null = nothing does.
  void (*finish)(const ConfigReader& file, DecoderConfig& config) = nullptr;
};

/// All of them.
std::span<const Family> families();

/// The row for a config.json. Throws InputError naming what was asked for, with the list of known families; `place` is
/// the file. Either argument may be empty.
const Family& find_family(std::string_view model_type, std::string_view architecture, const std::string& place);

/// Whether the files of the model hold a vision tower too, which a Decoder is without.
bool has_vision_tower(const DecoderConfig& config);

}  // namespace nibble
