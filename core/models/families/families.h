#pragma once
// The families nibble knows, one row each: what config.json leaves unsaid, and how the family spells what it says.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/families/gguf/gguf_form.h"

namespace nibble {

class ConfigReader;

/// How a family says which layers see only the last `sliding_window` positions.
enum class WindowRule : uint8_t {
  none,        ///< no window, whatever the file says
  every,       ///< all layers, when sliding_window is a number (Mistral)
  from_layer,  ///< with use_sliding_window, the layers from max_window_layers on (Qwen2)
  after,       ///< the same without that flag (dots.llm1)
  even,        ///< layers 0, 2, 4, ... (Gemma 2)
  period,      ///< all but every `sliding_window_pattern`-th (Gemma 3, Cohere 2)
  but_first,   ///< all but the first of every `window_period` (CWM)
  types,       ///< as layer_types says, all without it (Ministral)
  listed,      ///< the same, none without it (Mellum)
  nope,        ///< as layer_types says; without it and with use_sliding_window, the layers without rope (SmolLM3)
};

/// How a family says which layers have rope.
enum class RopeRule : uint8_t {
  none,
  every,
  own,              ///< every layer, and Family::finish says how (GPT-J)
  listed,           ///< no_rope_layers, or all but every no_rope_layer_interval-th (SmolLM3)
  windowed,         ///< those with a window (Cohere 2)
  windowed_or_all,  ///< the same; all where the model has no window at all (EXAONE 4)
};

/// Spelling of config.json keys where families differ. Without a key for heads the family has no attention.
struct ConfigKeys {
  std::string_view width = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads";
  std::string_view mlp_width = "intermediate_size", max_positions = "max_position_embeddings";
  std::string_view head_size = "head_dim";  ///< "" here and below: the family does not look for such a key
  std::string_view kv_heads = "num_key_value_heads", norm_eps = "rms_norm_eps", activation = "hidden_act";
  std::string_view rotary_share = "partial_rotary_factor", rope_base = "rope_theta";
  std::string_view qkv_bias = "attention_bias", output_bias = "attention_bias", mlp_bias = "mlp_bias";
  std::string_view window = "sliding_window", window_period = "sliding_window_pattern";
};

/// GPT-2's, whose activation and F some of its descendants spell otherwise.
ConfigKeys gpt2_keys(std::string_view mlp_width = "n_inner", std::string_view activation = "activation_function");

/// LayerNorm as most families have it that have one.
inline constexpr NormConfig kRms5 = {.kind = NormKind::rms, .eps = 1e-5f};
inline constexpr NormConfig kLayerNorm = {.kind = NormKind::layer, .eps = 1e-5f, .bias = true};

/// One row. Values are those of the family's configuration class in Transformers when the key is absent.
struct Family {
  std::string_view model_type;
  std::string_view architecture;  ///< several spellings: "InternLM3ForCausalLM|LlamaForCausalLM"
  int32_t pad_id = -1;            ///< when absent
  bool padded_table = true;       ///< pad_token_id is the padding_idx of the tables of tokens
  TensorNames names;
  ConfigKeys keys;

  NormConfig norm = {.kind = NormKind::rms, .eps = 1e-6f};
  std::string_view activation = "silu";  ///< when absent
  bool gated_mlp = true;
  bool parallel_residual = false;
  std::optional<HeadNormKind> qk_norm;  ///< with the family's norm
  bool qk_norm_after_rope = false;
  bool qk_norm_weight = true;
  bool sublayer_norms = false;                                   ///< see DecoderConfig
  bool biases = false;                                           ///< every Linear but the head, whatever the file says
  bool qkv_bias = false, output_bias = false, mlp_bias = false;  ///< when absent
  bool tied_head = false;                                        ///< when absent
  bool scaled_embedding = false;                                 ///< embeddings times sqrt(D)
  int64_t kv_heads = 0;                                          ///< when absent; 0 = as many as heads
  int64_t mlp_share = 0;                                         ///< F / D when absent; 0 = the file must say F
  int64_t head_size = 0;                                         ///< when absent; 0 = attention_share D / H
  int64_t attention_share = 1;                                   ///< of D, all heads together (Zamba 2: 2)
  int64_t max_positions = 2048;                                  ///< when absent
  int64_t position_offset = 0;                                   ///< of learned positions
  RopeRule rope = RopeRule::every;
  double rope_base = 10000;    ///< when absent
  double rotary_share = 1;     ///< when absent
  double local_rope_base = 0;  ///< of layers with a window when absent; 0 = all layers turn alike
  /// JSON object, when the file has neither rope_parameters nor rope_scaling; empty = positions are not stretched.
  std::string_view rope_parameters;
  /// The length that stretched rope starts from: what the configuration class says when the key beside rope_scaling is
  /// absent, which then wins over the one inside (Phi-3); 0 = the inner one, or else max_positions
  int64_t original_max_positions = 0;
  ops::RopePairs rope_pairs = ops::RopePairs::halves;
  bool rope_backwards = false;
  bool rope_alpha = false;  ///< dynamic rope with `alpha` is a larger base (Hunyuan)
  /// Where, beside the rope's type, the file says how queries are scaled by their position (Ministral 3).
  bool scaled_queries = false;
  WindowRule window_rule = WindowRule::none;
  int64_t window = 0;         ///< when the file has no such key (null means none)
  int64_t window_period = 0;  ///< the same
  int64_t window_from = 28;  ///< the first layer of WindowRule::from_layer and after, where max_window_layers is absent
  /// What depends on flags of the family's own; null = nothing does.
  void (*finish)(const ConfigReader& file, DecoderConfig& config) = nullptr;
  /// What config.json does not say and the names of the tensors do; null = nothing.
  void (*match_files)(const TensorShapes& files, DecoderConfig& config) = nullptr;
  GgufForm gguf = {};
  /// target_modules where none are named, as in peft/utils/constants.py
  /// (TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING); empty: there are none.
  std::vector<std::string> peft_targets;
  std::string_view peft_refuses;  ///< the module on which PEFT puts no adapter
  /// config.json's key for noise by which Transformers multiplies what experts read in training; nibble does not.
  std::string_view router_noise;
  bool draws_experts = false;  ///< in training Transformers draws experts at random; nibble does not
  /// Where config.json asks for the load-balancing loss (output_router_logits), the default of router_aux_loss_coef; 0:
  /// Transformers has no such loss for the family, and looks at neither key.
  double aux_loss_coef = 0;
};

/// All of them.
std::span<const Family> families();
/// Some of them: dense ones with rope, by their norms, and without; Gemma 4; those with latent attention; mixtures with
/// a sigmoid router; those that stand beside towers alone.
std::vector<Family> rms_norm_families();
std::vector<Family> layer_norm_families();
std::vector<Family> without_rope_families();
std::vector<Family> gemma4_families();
std::vector<Family> latent_families();
std::vector<Family> sigmoid_families();
std::vector<Family> tower_text_families();

/// The row for a config.json. Throws InputError naming what was asked for, with the list of known families; `place` is
/// the file. Either argument may be empty.
const Family& find_family(std::string_view model_type, std::string_view architecture, const std::string& place);

/// The row of a DecoderConfig::family; null where it is in no table.
const Family* family_of(std::string_view family);

/// A config.json read by a row that need not be in the tables.
DecoderConfig parse_decoder_config(std::string_view json, const std::string& place, const Family& family);

/// A config.json and what the names of the tensors say beside it.
DecoderConfig parse_decoder_config(std::string_view json, const std::string& place, const TensorShapes& files);

/// What the row's `activation` means.
ops::Activation activation_of(const Family& family);

/// Whether the files of the model hold a tower too, which a Decoder is without.
inline bool has_vision_tower(const DecoderConfig& config) { return !config.towers.empty(); }

}  // namespace nibble
