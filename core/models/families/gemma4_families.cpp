// Gemma 3n and 4: layers that have inputs of their own, of which the last read the keys and values of earlier ones; of
// two sizes in Gemma 4, with several residual streams in Gemma 3n.

#include <cmath>

#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"
#include "nibble/core/nn/feed_forward/mlp_and_experts.h"
#include "nibble/core/nn/streams/laurel.h"

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
void share_keys(const ConfigReader& file, DecoderConfig& config, int64_t absent) {
  const int64_t sharing = file.integer("num_kv_shared_layers", 0, config.layers - 1, absent);
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

void read_final_cap(const ConfigReader& file, DecoderConfig& config, double absent) {
  if (file.is_null("final_logit_softcapping")) return;
  config.logit_softcap = static_cast<float>(file.number("final_logit_softcapping", 0, 1e9, absent));
}

void read_value_norm(DecoderConfig& config) {
  config.v_norm = HeadNormConfig{.kind = HeadNormKind::head, .norm = config.norm};
  config.v_norm->norm.weight = false;
}

void read_layer_inputs(const ConfigReader& file, DecoderConfig& config) {
  config.layer_input_size = file.integer("hidden_size_per_layer_input", 0, 1 << 20, 256);
  config.layer_input_vocabulary = file.integer("vocab_size_per_layer_input", 1, 1 << 24, 262144);
}

void finish_gemma4(const ConfigReader& file, DecoderConfig& config) {
  if (file.text("use_bidirectional_attention", "") == "all") {
    file.fail("use_bidirectional_attention", "is all: nibble computes causal attention", "take a generating model");
  }
  if (file.boolean("enable_moe_block", false)) read_experts_beside_mlp(file, config);
  config.attention_scale = 1;
  read_final_cap(file, config, 0);
  read_value_norm(config);
  LayerConfig& last = config.layer.back();  // is made one that sees everything, whatever the file says
  last.window = last.rotary = 0;
  read_layer_sizes(file, config);
  read_wide_rope(file, config);
  share_keys(file, config, 0);
  for (LayerConfig& layer : config.layer) {
    layer.values_are_keys = !slides(layer) && file.boolean("attention_k_eq_v", false);
  }
  config.scaled_layers = true;
  if (file.is_null("hidden_size_per_layer_input") || config.model_type == "gemma4_unified_text") return;
  read_layer_inputs(file, config);
}

// How many standard deviations above the mean of a normal distribution this share of it ends.
float normal_quantile(double share) {
  double low = -40, high = 40;
  while (true) {
    const double middle = (low + high) / 2;
    if (middle == low || middle == high) return static_cast<float>(middle);
    (std::erfc(-middle * M_SQRT1_2) / 2 < share ? low : high) = middle;
  }
}

// One number, or one for each layer.
std::vector<double> by_layer(const ConfigReader& file, std::string_view key, double low, double high,
                             const std::vector<double>& absent) {
  if (!file.has(key)) return absent;
  if (!file.is_list(key)) return std::vector<double>(absent.size(), file.number(key, low, high));
  std::vector<double> listed = file.numbers(key, low, high);
  if (listed.size() != absent.size()) {
    file.fail(key,
              "has " + std::to_string(listed.size()) + " entries for " + std::to_string(absent.size()) + " layers");
  }
  return listed;
}

void read_mlps(const ConfigReader& file, DecoderConfig& config) {
  const auto layers = static_cast<size_t>(config.layers);
  std::vector<double> shares(layers, 0), widths(layers, static_cast<double>(config.mlp_width));
  if (layers > 10) std::fill_n(shares.begin(), 10, 0.95);
  widths = by_layer(file, "intermediate_size", 1, 1 << 20, widths);
  shares = by_layer(file, "activation_sparsity_pattern", 0, 0.999, shares);
  for (size_t l = 0; l < layers; ++l) {
    config.layer[l].mlp_width = static_cast<int64_t>(widths[l]);
    if (shares[l] > 0)
      config.layer[l].gate_cutoff = normal_quantile(static_cast<double>(static_cast<float>(shares[l])));
  }
  config.mlp_width = config.layer[0].mlp_width;
}

void finish_gemma3n(const ConfigReader& file, DecoderConfig& config) {
  config.attention_scale = 1;
  read_final_cap(file, config, 30);
  read_value_norm(config);
  read_mlps(file, config);
  share_keys(file, config, 15);
  read_layer_inputs(file, config);
  if (config.layer_input_size == 0)
    file.fail("hidden_size_per_layer_input", "is 0: every layer has an input of its own");
  config.streams = file.integer("altup_num_inputs", 2, 64, 4);
  config.active_stream = file.integer("altup_active_idx", 0, config.streams - 1, 0);
  config.scaled_stream = file.boolean("altup_correct_scale", true);
  config.mixed_scale = static_cast<float>(M_SQRT1_2);
  const int64_t rank = file.integer("laurel_rank", 1, 1 << 20, 64);
  BlockNames& names = config.names.block;
  names.post_attention_norm = names.layer_input.scale = "";
  for (LayerConfig& layer : config.layer) {
    layer.mixer = [rank](const DecoderConfig& all, int64_t l, const std::string& prefix, const Makers& makers) {
      auto attention = std::make_unique<Attention>(prefix, all.names.block.attention, all.attention(l), makers);
      return std::make_unique<Laurel>(prefix, LaurelNames(), std::move(attention), all.width, rank, all.norm, makers);
    };
  }
}

Family gemma4(std::string_view model_type, std::string_view architecture, int64_t window, int64_t max_positions) {
  return {.model_type = model_type,
          .architecture = architecture,
          .pad_id = 0,
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
          .finish = finish_gemma4,
          .gguf = {.architecture = "gemma4",
                   .mixture = true,
                   .normalizes_routes = true,
                   .lists_windows = true,
                   .config = gguf_gemma4}};
}

}  // namespace

std::vector<Family> gemma4_families() {
  Family gemma3n = gemma4("gemma3n_text", "Gemma3nForCausalLM", 512, 32768);
  gemma3n.keys.mlp_width = "";  // a list
  gemma3n.mlp_share = 8;
  gemma3n.kv_heads = 2;
  gemma3n.window_period = 5;
  gemma3n.finish = finish_gemma3n;
  gemma3n.gguf = {};
  return {gemma3n, gemma4("gemma4_text", "Gemma4ForCausalLM", 512, 131072),
          gemma4("gemma4_unified_text", "Gemma4UnifiedForCausalLM", 1024, 262144)};
}

}  // namespace nibble
