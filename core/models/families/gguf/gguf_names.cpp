#include "nibble/core/models/families/gguf/gguf_names.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/gguf/gguf_experts.h"
#include "nibble/core/models/families/gguf/gguf_gemma.h"
#include "nibble/core/models/families/gguf/gguf_llama4.h"
#include "nibble/core/models/families/gguf/gguf_mixers.h"

namespace nibble {

namespace {

const Family& find(const DecoderConfig& config) {
  std::string known;
  for (const Family& family : families()) {
    if (family.gguf.architecture.empty()) continue;
    if (family.model_type == config.family) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  throw UsageError("nibble does not know the form of " + config.model_type + " in llama.cpp",
                   "known are " + known + "; a Hugging Face directory (nibble merge) is for all");
}

/// HF keeps the two halves of what is rotated behind each other, llama.cpp's `llama` the pairs.
std::vector<int64_t> interleaved(int64_t heads, int64_t head_size, int64_t rotated) {
  std::vector<int64_t> order;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t j = 0; j < rotated; ++j) order.push_back(h * head_size + j % 2 * (rotated / 2) + j / 2);
    for (int64_t j = rotated; j < head_size; ++j) order.push_back(h * head_size + j);
  }
  return order;
}

/// A fused projection that has the queries, the key and the value of each group together becomes all queries, all keys,
/// all values.
std::vector<int64_t> groups_apart(const DecoderConfig& config) {
  const int64_t groups = config.qkv_groups, size = config.head_size;
  const int64_t queries = config.heads / groups, keys = config.kv_heads / groups, all = queries + 2 * keys;
  std::vector<int64_t> order;
  const auto take = [&](int64_t first, int64_t count) {
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < count * size; ++i) order.push_back((g * all + first) * size + i);
    }
  };
  take(0, queries);
  take(queries, keys);
  take(queries + keys, keys);
  return order;
}

class LayerParts : public GgufParts {
 public:
  LayerParts(const DecoderConfig& config, const GgufForm& form) : GgufParts(config), config_(config), form_(form) {}

  void layer(int64_t l) {
    const BlockNames& names = config_.names.block;
    const std::string from = config_.names.layers + std::to_string(l) + ".", to = "blk." + std::to_string(l) + ".";
    const LayerConfig& layer = config_.layer[static_cast<size_t>(l)];
    // Falcon 40B: what both sublayers read is the norm of the MLP for llama.cpp, the attention's is a second
    const bool two_norms = form_.attn_norm_2 && !names.mlp_norm.empty() && config_.parallel_residual;
    const bool attention_norm = layer.has_mixer && !names.attention_norm.empty();
    if (attention_norm) norm(to + (two_norms ? "attn_norm_2" : "attn_norm"), from + names.attention_norm);
    if (layer.has_feed_forward && !names.mlp_norm.empty())
      norm(to + std::string(two_norms || !layer.has_mixer ? "attn_norm" : form_.mlp_norm), from + names.mlp_norm,
           form_.bare_mlp_norm ? "" : ".weight");
    if (!names.post_attention_norm.empty()) norm(to + "post_attention_norm", from + names.post_attention_norm);
    if (!names.post_mlp_norm.empty()) norm(to + "post_ffw_norm", from + names.post_mlp_norm);
    add_gemma_layer_parts(config_, from, to, *this);
    if (layer.has_mixer) layer.mixer ? add_mixer_parts(config_, layer, from, to, *this) : attention(layer, from, to);
    if (!layer.has_feed_forward) return;
    if (layer.feed_forward) add_expert_parts(config_, from, to, *this);
    if (layer.feed_forward && names.experts.router_scale.empty()) return;  // Gemma 4 has both
    const MlpNames& mlp = names.mlp;
    if (config_.gated_mlp && !mlp.gate_up.empty() && form_.splits_mlp) {
      halves(to + "ffn_gate", to + "ffn_up", from + mlp.gate_up, config_.mlp_width);
    } else {
      if (config_.gated_mlp && mlp.gate_up.empty())
        linear(to + "ffn_gate", from + mlp.gate, {}, config_.mlp_gate_scale);
      linear(to + "ffn_up", from + (mlp.gate_up.empty() ? mlp.up : mlp.gate_up));
    }
    linear(to + "ffn_down", from + mlp.down, {}, config_.mlp_output_scale);
  }

 private:
  const DecoderConfig& config_;
  const GgufForm& form_;
};

bool is_close(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

/// What llama.cpp multiplies the scores with.
double attention_scale(const DecoderConfig& config, const GgufForm& form) {
  if (form.lists_windows) return 1;  // Gemma 4
  const bool largest = form.largest_layers > 0 && config.layers == form.largest_layers;
  return 1 / std::sqrt(static_cast<double>(largest ? config.width / config.heads : config.head_size));
}

/// Every how many-th layer of the family has no window; 0: llama.cpp has no windows for it.
int64_t window_period(const Family& family) {
  if (family.window_rule == WindowRule::even) return 2;
  return family.window_rule == WindowRule::period ? family.window_period : 0;
}

/// The same of a model (and, with two kinds of rope, every how many-th has that of the whole text); 0: that is not the
/// rule.
int64_t window_period(const DecoderConfig& config, const Family& family) {
  int64_t full = 0;
  while (full < config.layers && config.layer[static_cast<size_t>(full)].window > 0) ++full;
  const bool any = std::any_of(config.layer.begin(), config.layer.end(), [](const auto& l) { return l.window > 0; });
  const int64_t period = any && full < config.layers ? full + 1 : std::max(window_period(family), full + 1);
  for (int64_t l = 0; l < config.layers; ++l) {
    const LayerConfig& layer = config.layer[static_cast<size_t>(l)];
    const bool slides = (l + 1) % period != 0;
    if (any && (layer.window > 0) != slides) return 0;
    if (config.rope.size() > 1 && (layer.rotary == 1) != slides) return 0;
  }
  return period;
}

constexpr const char* kRopeKeys = "rope_parameters|rope_scaling";
constexpr const char* kBiasKeys = "attention_bias|mlp_bias|qkv_bias|use_qkv_bias|use_bias|bias|enable_bias";

/// What of the numbers and flags of a config has no place in the form of the family.
void refuse_what_differs(const DecoderConfig& config, const Family& family) {
  const GgufForm& form = family.gguf;
  const auto scaled = [](const LayerConfig& layer) { return layer.attention_scale != 0; };
  const bool scales = form.scales || form.folds_scales;
  const bool by_layer = std::any_of(config.layer.begin(), config.layer.end(), scaled);
  if (by_layer || (!scales && !is_close(config.attention_scale, attention_scale(config, form))))
    refuse_for_llama_cpp("scores that are scaled by " + std::to_string(config.attention_scale),
                         "query_pre_attn_scalar|attention_multiplier|scale_attn_weights");
  if (config.position_offset != 0) refuse_for_llama_cpp("positions that do not start at 0");
  if (config.norm_place != NormPlace::input)
    refuse_for_llama_cpp("norms behind the sum", "do_layer_norm_before|apply_residual_connection_post_layernorm");
  if ((config.alibi != Alibi::none) != form.alibi) refuse_for_llama_cpp("ALiBi in this family", "alibi");
  if (config.qkv_clip != 0 && !form.clipped_qkv) refuse_for_llama_cpp("clipped queries", "clip_qkv");
  if ((config.logit_scale != 1 && !scales && !form.logit_scale) || (config.residual_scale != 1 && !form.scales))
    refuse_for_llama_cpp("scaled logits or residuals in this family", "logit_scale|logits_scaling|residual_multiplier");
  if (form.softcaps && (config.attention_softcap == 0 || config.logit_softcap == 0))
    refuse_for_llama_cpp("a " + config.model_type + " without its caps",
                         "attn_logit_softcapping|final_logit_softcapping");
  if (!form.biases && (config.qkv_bias || config.output_bias || config.mlp_bias))
    refuse_for_llama_cpp("biases in this family", kBiasKeys);
  if (config.experts && config.experts->shared_bias) refuse_for_llama_cpp("biases of shared experts", kBiasKeys);
  if (form.needs_biases && !config.output_bias)
    refuse_for_llama_cpp("a " + config.model_type + " without biases", kBiasKeys);
  if (form.only_parallel && !config.parallel_residual)
    refuse_for_llama_cpp("a " + config.model_type + " whose MLP reads the attention's output",
                         "parallel_attn|use_parallel_residual");
  if (form.only_tied && !config.tied_head)
    refuse_for_llama_cpp("a head that is not the embedding in this family", "tie_word_embeddings");
  if (config.qk_norm && !family.qk_norm && !form.optional_qk_norm)
    refuse_for_llama_cpp("norms of queries and keys in this family", "use_qk_norm|qk_layernorm");
  if (window_period(family) > 0 && window_period(config, family) == 0 && !form.lists_windows)
    refuse_for_llama_cpp("windows in these layers", "layer_types|sliding_window_pattern|sliding_window");
  for (size_t l = 0; form.rope_period > 0 && l < config.layer.size(); ++l) {
    if ((config.layer[l].rotary < 0) != ((static_cast<int64_t>(l) + 1) % form.rope_period == 0))
      refuse_for_llama_cpp("rope in these layers", "no_rope_layers|no_rope_layer_interval");
  }
}

void refuse_rope(const DecoderConfig& config, const GgufForm& form) {
  const size_t kinds = form.local_rope || form.lists_windows ? 2 : 1;
  for (size_t i = 0; i < config.rope.size(); ++i) {
    const RopeConfig& rope = config.rope[i];
    if (i >= kinds && rope != config.rope[0]) refuse_for_llama_cpp("several kinds of rope in one model", kRopeKeys);
    if (rope.exponent_size != 0)
      refuse_for_llama_cpp("an odd share of rotated elements", "partial_rotary_factor|rotary_pct|rope_parameters");
    bool known = rope.scaling == RopeScaling::none;
    if (i == 0) known = known || rope.scaling == RopeScaling::linear || rope.scaling == RopeScaling::llama3;
    if (i == 0 && form.longrope) known = known || rope.scaling == RopeScaling::longrope;
    if (i == 0 && form.lists_windows) known = known || rope.scaling == RopeScaling::proportional;
    if (i == 0 && form.yarn) known = known || rope.scaling == RopeScaling::yarn;
    if (!known && !(i > 0 && rope == config.rope[0]))
      refuse_for_llama_cpp("this kind of rope scaling as nibble writes it", kRopeKeys);
  }
}

uint32_t u32(int64_t value) { return static_cast<uint32_t>(value); }

}  // namespace

void GgufParts::matrix(const std::string& name, const std::string& module, GgufPart part) {
  part.name = name + ".weight";
  part.source = module + ".weight";
  part.is_matrix = true;
  add(std::move(part));
}

void GgufParts::linear(const std::string& name, const std::string& module, const std::vector<int64_t>& order,
                       float factor) {
  const bool turned = config_.transposed_linears && module != config_.names.head;
  const std::vector<float> factors(factor == 1 ? 0 : 1, factor);
  matrix(name, module, {.row_order = order, .transposed = turned, .factors = factors});
  add({.name = name + ".bias", .source = module + ".bias", .row_order = order, .factors = factors});
}

void GgufParts::halves(const std::string& first, const std::string& second, const std::string& module, int64_t half) {
  const std::string both = module + ".weight";
  matrix(first, module, {.rows = GgufRows{{both}, 0, half}});
  matrix(second, module, {.rows = GgufRows{{both}, half, half}});
}

void GgufParts::norm(const std::string& name, const std::string& module, std::string_view end) {
  if (!config_.norm.weight) return;
  add({.name = name + std::string(end), .source = module + ".weight", .added = config_.norm.weight_offset});
  add({.name = name + ".bias", .source = module + ".bias"});
}

void GgufParts::attention(const LayerConfig& layer, const std::string& from, const std::string& to, float input,
                          float keys, float output) {
  const AttentionNames& names = config_.names.block.attention;
  if (!names.qkv.empty()) {
    linear(to + "attn_qkv", from + names.qkv, config_.qkv_groups > 1 ? groups_apart(config_) : std::vector<int64_t>());
  } else {
    const bool pairs = gguf_form(config_).rope_pairs;
    const int64_t rotated = config_.rope.empty() ? config_.head_size : config_.rope.front().size;
    const auto order = [&](int64_t heads) {
      return pairs ? interleaved(heads, config_.head_size, rotated) : std::vector<int64_t>();
    };
    linear(to + "attn_q", from + names.q, order(config_.heads), input);
    const size_t begin = all.size();
    linear(to + "attn_k", from + names.k, order(config_.kv_heads), keys);
    if (!layer.values_are_keys) linear(to + "attn_v", from + names.v, {}, input);
    for (size_t i = begin; i < all.size(); ++i) all[i].optional = layer.keys_from >= 0;
  }
  linear(to + "attn_output", from + names.output, {}, output);
  if (config_.attention_sinks) add({.name = to + "attn_sinks.weight", .source = from + names.sinks});
  if (!config_.qk_norm || !config_.qk_norm->norm.weight) return;
  norm(to + "attn_q_norm", from + names.q_norm);
  norm(to + "attn_k_norm", from + names.k_norm);
  all[all.size() - 2].optional = layer.keys_from >= 0;
}

void refuse_for_llama_cpp(const std::string& what, const std::string& keys) {
  throw GgufRefusal("llama.cpp cannot compute " + what, keys);
}

const GgufForm& gguf_form(const DecoderConfig& config) { return find(config).gguf; }

std::string gguf_architecture(const DecoderConfig& config) {
  const Family& family = find(config);
  if (config.activation != activation_of(family))
    refuse_for_llama_cpp("a " + config.model_type + " with another activation than the family's",
                         std::string(family.keys.activation));
  refuse_what_differs(config, family);
  refuse_experts(config, family.gguf);
  refuse_rope(config, family.gguf);
  refuse_mixers(config);
  refuse_gemma(config);
  refuse_llama4(config);
  const auto mixes = [](const LayerConfig& layer) { return static_cast<bool>(layer.mixer); };
  if (config.model_type == "granitemoehybrid" && std::ranges::none_of(config.layer, mixes)) {
    if (config.experts && config.rope.empty()) refuse_for_llama_cpp("experts without state spaces and without rope");
    return config.experts ? "granitemoe" : "granite";
  }
  const GgufForm& form = family.gguf;
  return std::string(config.experts && !form.mixture_architecture.empty() ? form.mixture_architecture
                                                                          : form.architecture);
}

std::vector<GgufPart> gguf_parts(const DecoderConfig& config) {
  const GgufForm& form = gguf_form(config);
  LayerParts parts(config, form);
  const TensorNames& names = config.names;
  const auto table = [&](const std::string& name, const std::string& module, float factor = 1) {
    parts.matrix(name, module, {.factors = std::vector<float>(form.folds_scales && factor != 1 ? 1 : 0, factor)});
  };
  table("token_embd", names.embedding, config.embedding_scale);
  if (!names.embedding_norm.empty()) parts.norm("token_embd_norm", names.embedding_norm);
  if (!names.positions.empty()) table("position_embd", names.positions);
  add_gemma_parts(config, parts);
  for (int64_t l = 0; l < config.layers; ++l) parts.layer(l);
  parts.norm(std::string(form.final_norm), names.final_norm);
  if (!config.tied_head) parts.linear("output", names.head, {}, form.folds_scales ? config.logit_scale : 1);
  if (config.tied_head && form.own_head) {
    table("output", names.embedding, config.logit_scale);
    if (config.head_bias) parts.add({.name = "output.bias", .source = names.head + ".bias"});
  }
  return std::move(parts.all);
}

std::vector<std::pair<std::string, GgufValue>> gguf_hyperparameters(const DecoderConfig& config,
                                                                    const std::string& name) {
  const std::string arch = gguf_architecture(config), key = arch + ".";
  int64_t window = 0;
  for (const LayerConfig& layer : config.layer) window = std::max(window, layer.window);
  // Beyond the window the families that have none in llama.cpp would attend to too much.
  const Family& family = find(config);
  const bool without_window = window > 0 && window_period(family) == 0;
  const int64_t context = without_window ? std::min(window, config.max_positions) : config.max_positions;
  const bool is_granite_4 = config.model_type == "granitemoehybrid";
  std::vector<std::pair<std::string, GgufValue>> result = {
      {"general.architecture", arch},
      {"general.type", std::string("model")},
      {"general.name", name},
      {key + "block_count", u32(config.layers)},
      {key + "context_length", u32(context)},
      {key + "embedding_length", u32(config.width)},
      {key + "feed_forward_length", u32(is_granite_4 && config.experts ? config.experts->hidden : config.mlp_width)},
      {key + "attention.head_count", u32(config.heads)},
      {key + "attention.head_count_kv", u32(config.kv_heads)},
      {key + "attention.key_length", u32(config.head_size)},
      {key + "attention.value_length", u32(config.head_size)},
      {key + "vocab_size", u32(config.vocab_size)},
  };
  const bool rms = config.norm.kind == NormKind::rms;
  result.emplace_back(key + (rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"),
                      config.norm.eps);
  if (!config.rope.empty()) {
    const RopeConfig& rope = config.rope.front();
    result.emplace_back(key + "rope.freq_base", static_cast<float>(rope.base));
    result.emplace_back(key + "rope.dimension_count", u32(rope.size));
    if (rope.scaling == RopeScaling::linear) {
      result.emplace_back(key + "rope.scaling.type", std::string("linear"));
      result.emplace_back(key + "rope.scaling.factor", static_cast<float>(rope.factor));
    }
    if (rope.scaling == RopeScaling::yarn) {
      // what llama.cpp multiplies with by itself
      const double natural = rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1;
      const bool latent = says_latents(config);
      result.emplace_back(key + "rope.scaling.type", std::string("yarn"));
      result.emplace_back(key + "rope.scaling.factor", static_cast<float>(rope.factor));
      result.emplace_back(key + "rope.scaling.original_context_length", u32(rope.original_max_positions));
      result.emplace_back(key + "rope.scaling.attn_factor", static_cast<float>(latent ? 1 : rope.magnitude / natural));
      result.emplace_back(key + "rope.scaling.yarn_beta_fast", static_cast<float>(rope.beta_fast));
      result.emplace_back(key + "rope.scaling.yarn_beta_slow", static_cast<float>(rope.beta_slow));
      result.emplace_back(key + "rope.scaling.truncate", rope.truncate);  // llama.cpp's ramp always is
    }
    if (rope.scaling == RopeScaling::longrope) {
      result.emplace_back(key + "rope.scaling.original_context_length", u32(rope.original_max_positions));
      result.emplace_back(key + "rope.scaling.attn_factor", static_cast<float>(rope.magnitude));
    }
  }
  if (window_period(family) > 0)
    result.emplace_back(key + "attention.sliding_window", u32(window > 0 ? window : config.max_positions));
  if (family.gguf.says_window) result.emplace_back(key + "attention.sliding_window", u32(window));
  if (family.window_rule == WindowRule::period)
    result.emplace_back(key + "attention.sliding_window_pattern", u32(window_period(config, family)));
  if (family.gguf.local_rope && config.rope.size() > 1)
    result.emplace_back(key + "rope.freq_base_swa", static_cast<float>(config.rope[1].base));
  if (config.attention_softcap > 0) result.emplace_back(key + "attn_logit_softcapping", config.attention_softcap);
  if (config.logit_softcap > 0) result.emplace_back(key + "final_logit_softcapping", config.logit_softcap);
  if (family.gguf.says_parallel) result.emplace_back(key + "use_parallel_residual", config.parallel_residual);
  if (config.experts) write_experts(config, key, result);
  write_mixers(config, key, result);
  write_gemma(config, key, result);
  write_llama4(config, key, result);
  if (family.gguf.scales) {
    result.emplace_back(key + "embedding_scale", config.embedding_scale);
    result.emplace_back(key + "residual_scale", config.residual_scale);
    result.emplace_back(key + "attention.scale", config.attention_scale);
    result.emplace_back(key + "logit_scale", 1 / config.logit_scale);
  }
  if (is_granite_4) result.emplace_back(key + "rope.scaling.finetuned", !config.rope.empty());
  if (family.gguf.logit_scale) result.emplace_back(key + "logit_scale", config.logit_scale);
  if (config.qkv_clip > 0) result.emplace_back(key + "attention.clamp_kqv", config.qkv_clip);
  return result;
}

std::map<std::string, std::vector<float>> gguf_rope_factors(const DecoderConfig& config) {
  if (config.rope.empty()) return {};
  const RopeConfig& rope = config.rope.front();
  if (rope.scaling == RopeScaling::longrope)
    return {{"rope_factors_long.weight", rope.long_factors}, {"rope_factors_short.weight", rope.short_factors}};
  if (config.scaled_layers) {  // Gemma 4: what does not turn has no frequency
    const int64_t turned = rope.scaling == RopeScaling::proportional ? rope.turned : rope.size;
    std::vector<float> factors(static_cast<size_t>(rope.size / 2), 1e30f);
    std::fill_n(factors.begin(), turned / 2, 1.0f);
    return {{"rope_freqs.weight", factors}};
  }
  if (rope.scaling != RopeScaling::llama3) return {};
  RopeConfig plain = rope;
  plain.scaling = RopeScaling::none;
  std::vector<float> factors = rope_frequencies(plain);
  const std::vector<float> scaled = rope_frequencies(rope);
  for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  return {{"rope_freqs.weight", factors}};
}

std::string gguf_model_type(const std::string& architecture) {
  for (const Family& family : families()) {
    const GgufForm& form = family.gguf;
    if (architecture.empty()) continue;
    if (form.architecture == architecture || form.mixture_architecture == architecture)
      return std::string(family.model_type);
  }
  return "";
}

std::string gguf_architectures() {
  std::string known;
  for (const Family& family : families()) {
    const std::string name(family.gguf.architecture);
    if (name.empty() || gguf_model_type(name) != family.model_type) continue;  // Mistral is a llama
    known += (known.empty() ? "" : ", ") + name;
  }
  return known;
}

}  // namespace nibble
