// Gemma 4: layers of two sizes, of which the last read the keys and values of earlier ones, and have inputs of their
// own.

#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/nn/feed_forward/mlp_and_experts.h"

namespace nibble {

namespace {

bool slides(const LayerConfig& layer) { return layer.window > 0; }

// What differs by layer: `per_layer_config` (Transformers 5), or the sizes of layers that see everything.
void read_layer_sizes(const ConfigReader& file, DecoderConfig& config) {
  const std::optional<ConfigReader> by_layer = file.object("per_layer_config");
  const bool values_are_keys = file.boolean("attention_k_eq_v", false);
  for (size_t l = 0; l < config.layer.size(); ++l) {
    LayerConfig& layer = config.layer[l];
    if (by_layer) {
      const std::optional<ConfigReader> own = by_layer->object(std::to_string(l));
      if (!own) continue;
      layer.head_size = own->integer("head_dim", 2, 65536, 0);
      layer.kv_heads = own->integer("num_key_value_heads", 1, config.heads, 0);
    } else if (!slides(layer)) {
      layer.head_size = file.integer("global_head_dim", 2, 65536, 512);
      if (values_are_keys) layer.kv_heads = file.integer("num_global_key_value_heads", 1, config.heads, 0);
    }
    const int64_t keys = layer.kv_heads > 0 ? layer.kv_heads : config.kv_heads;
    if (config.heads % keys != 0) file.fail("num_key_value_heads", "does not divide num_attention_heads");
  }
}

// Rope of the layers that see everything, whose heads have a size of their own.
void read_wide_rope(const ConfigReader& file, DecoderConfig& config) {
  RopeConfig& rope = config.rope.at(0);
  double share = 0.25;
  if (const auto kinds = file.object("rope_parameters")) {
    const auto own = kinds->object("full_attention");
    if (own) share = own->number("partial_rotary_factor", 0, 1, 1);
  } else {
    rope.scaling = RopeScaling::proportional;
  }
  for (const LayerConfig& layer : config.layer) {
    if (slides(layer) || layer.head_size == 0) continue;
    rope.size = layer.head_size;
    rope.turned = static_cast<int64_t>(static_cast<double>(layer.head_size) * share / 2) * 2;
  }
}

// The last layers read the keys and values of the last one before them that is of their kind.
void share_keys(const ConfigReader& file, DecoderConfig& config) {
  const int64_t sharing = file.integer("num_kv_shared_layers", 0, config.layers - 1, 0);
  const int64_t first = config.layers - sharing;
  for (int64_t l = first; l < config.layers; ++l) {
    LayerConfig& layer = config.layer[static_cast<size_t>(l)];
    for (int64_t from = first - 1; from >= 0 && layer.keys_from < 0; --from) {
      LayerConfig& owner = config.layer[static_cast<size_t>(from)];
      if (slides(owner) != slides(layer)) continue;
      layer.keys_from = owner.shared_as = from;
    }
    if (layer.keys_from < 0) file.fail("num_kv_shared_layers", "leaves layers without one of their kind before them");
    if (file.boolean("use_double_wide_mlp", false)) layer.mlp_width = 2 * config.mlp_width;
  }
}

void name_experts(BlockNames& block) {
  block.mlp_norm = "";  // both have norms of their own
  ExpertNames& experts = block.experts;
  experts.router = experts.peft_router = "router.proj";
  experts.router_scale = "router.scale";
  experts.expert_scale = "router.per_expert_scale";
  experts.fused_gate_up = experts.peft_gate_up = "experts.gate_up_proj";
  experts.fused_down = experts.peft_down = "experts.down_proj";
  experts.peft_translates = false;
}

void read_experts_beside_mlp(const ConfigReader& file, DecoderConfig& config) {
  name_experts(config.names.block);
  read_experts(file, config, "num_experts|num_local_experts", "moe_intermediate_size|expert_intermediate_size",
               "top_k_experts|num_experts_per_tok")
      .routing.normalize = true;
  for (LayerConfig& layer : config.layer) {
    layer.feed_forward = [](const DecoderConfig& all, int64_t l, const std::string& prefix, const Makers& makers) {
      const BlockNames& names = all.names.block;
      return std::make_unique<MlpAndExperts>(
          prefix, MlpAndExpertsNames(), all.norm, std::make_unique<Mlp>(prefix, names.mlp, all.mlp(l), makers),
          std::make_unique<Experts>(prefix, names.experts, all.experts.value(), makers), all.width, makers);
    };
  }
}

void finish_gemma4(const ConfigReader& file, DecoderConfig& config) {
  if (file.text("use_bidirectional_attention", "") == "all") {
    file.fail("use_bidirectional_attention", "is all: nibble computes causal attention", "take a generating model");
  }
  if (file.boolean("enable_moe_block", false)) read_experts_beside_mlp(file, config);
  config.attention_scale = 1;
  if (!file.is_null("final_logit_softcapping")) {
    config.logit_softcap = static_cast<float>(file.number("final_logit_softcapping", 0, 1e9, 0));
  }
  config.v_norm = HeadNormConfig{.kind = HeadNormKind::head, .norm = config.norm};
  config.v_norm->norm.weight = false;
  LayerConfig& last = config.layer.back();  // is made one that sees everything, whatever the file says
  last.window = last.rotary = 0;
  read_layer_sizes(file, config);
  read_wide_rope(file, config);
  share_keys(file, config);
  for (LayerConfig& layer : config.layer) {
    layer.values_are_keys = !slides(layer) && file.boolean("attention_k_eq_v", false);
  }
  config.scaled_layers = true;
  if (file.is_null("hidden_size_per_layer_input") || config.model_type == "gemma4_unified_text") return;
  config.layer_input_size = file.integer("hidden_size_per_layer_input", 0, 1 << 20, 256);
  config.layer_input_vocabulary = file.integer("vocab_size_per_layer_input", 1, 1 << 24, 262144);
}

Family gemma4(std::string_view model_type, std::string_view architecture, int64_t window, int64_t max_positions) {
  return {.model_type = model_type,
          .architecture = architecture,
          .names = gemma2_names(),
          .keys = {.activation = "hidden_activation", .mlp_bias = ""},
          .norm = {.kind = NormKind::rms, .eps = 1e-6f},
          .activation = "gelu_pytorch_tanh",
          .qk_norm = HeadNormKind::head,
          .tied_head = true,
          .scaled_embedding = true,
          .kv_heads = 4,
          .head_size = 256,
          .max_positions = max_positions,
          .rope_base = 1e6,
          .local_rope_base = 10000,
          .window_rule = WindowRule::period,
          .window = window,
          .window_period = 6,
          .finish = finish_gemma4};
}

}  // namespace

std::vector<Family> gemma4_families() {
  return {gemma4("gemma4_text", "Gemma4ForCausalLM", 512, 131072),
          gemma4("gemma4_unified_text", "Gemma4UnifiedForCausalLM", 1024, 262144)};
}

}  // namespace nibble
