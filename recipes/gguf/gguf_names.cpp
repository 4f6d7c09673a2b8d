#include "nibble/recipes/gguf/gguf_names.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

/// Order of the rows of a query or key projection.
enum class Order : uint8_t { plain, interleaved };

struct Architecture {
  std::string_view model_type;
  std::string_view name;
  Order rope_order;
  ops::Activation activation;
  int64_t window_period = 0;       ///< every so many-th layer sees everything; 0: there are no windows
  bool normalizes_routes = false;  ///< of a mixture: the weights of the chosen experts sum to 1
};

using ops::Activation;
constexpr std::array kArchitectures{
    Architecture{"llama", "llama", Order::interleaved, Activation::silu},
    Architecture{"mistral", "llama", Order::interleaved, Activation::silu},
    Architecture{"qwen2", "qwen2", Order::plain, Activation::silu},
    Architecture{"qwen3", "qwen3", Order::plain, Activation::silu},
    Architecture{"gemma", "gemma", Order::plain, Activation::gelu_tanh},
    Architecture{"gemma2", "gemma2", Order::plain, Activation::gelu_tanh, 2},
    Architecture{"gemma3_text", "gemma3", Order::plain, Activation::gelu_tanh, 6},
    Architecture{"phi3", "phi3", Order::plain, Activation::silu},
    Architecture{"gpt2", "gpt2", Order::plain, Activation::gelu_tanh},
    Architecture{"gpt_neox", "gptneox", Order::plain, Activation::gelu_erf},
    Architecture{"falcon", "falcon", Order::plain, Activation::gelu_erf},
    Architecture{"stablelm", "stablelm", Order::plain, Activation::silu},
    Architecture{"smollm3", "smollm3", Order::interleaved, Activation::silu},
    Architecture{"olmo", "olmo", Order::interleaved, Activation::silu},
    Architecture{"olmo2", "olmo2", Order::plain, Activation::silu},
    Architecture{"granite", "granite", Order::interleaved, Activation::silu},
    Architecture{"starcoder2", "starcoder2", Order::plain, Activation::gelu_tanh},
    Architecture{"gpt_bigcode", "starcoder", Order::plain, Activation::gelu_tanh},
    Architecture{"bloom", "bloom", Order::plain, Activation::gelu_tanh},
    Architecture{"phi", "phi2", Order::plain, Activation::gelu_tanh},
    Architecture{"cohere", "command-r", Order::plain, Activation::silu},
    Architecture{"cohere2", "cohere2", Order::plain, Activation::silu, 4},
    Architecture{"mixtral", "llama", Order::interleaved, Activation::silu, 0, true},
    Architecture{"qwen2_moe", "qwen2moe", Order::plain, Activation::silu, 0, false},
    Architecture{"qwen3_moe", "qwen3moe", Order::plain, Activation::silu, 0, true},
    Architecture{"olmoe", "olmoe", Order::plain, Activation::silu, 0, false},
    Architecture{"granitemoe", "granitemoe", Order::interleaved, Activation::silu, 0, true},
    Architecture{"granitemoeshared", "granitemoe", Order::interleaved, Activation::silu, 0, true},
};

const Architecture& find(const DecoderConfig& config) {
  std::string known;
  for (const Architecture& row : kArchitectures) {
    if (row.model_type == config.model_type) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.model_type);
  }
  throw UsageError("nibble does not know the form of " + config.model_type + " in llama.cpp",
                   "known are " + known + "; a Hugging Face directory (nibble merge) is for all");
}

[[noreturn]] void refuse(const std::string& what) {
  throw UsageError("llama.cpp cannot compute " + what, "export to a Hugging Face directory (nibble merge) instead");
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

class Parts {
 public:
  Parts(const DecoderConfig& config, const Architecture& row) : config_(config), row_(row) {}

  std::vector<GgufPart> result;

  void linear(const std::string& name, const std::string& module, const std::vector<int64_t>& order = {}) {
    const bool turned = config_.transposed_linears && module != config_.names.head;
    result.push_back({name + ".weight", module + ".weight", order, turned, 0, true});
    result.push_back({name + ".bias", module + ".bias", order, false, 0, false});
  }
  void table(const std::string& name, const std::string& module) {
    result.push_back({name + ".weight", module + ".weight", {}, false, 0, true});
  }
  void norm(const std::string& name, const std::string& module) {
    if (!config_.norm.weight) return;
    result.push_back({name + ".weight", module + ".weight", {}, false, config_.norm.weight_offset, false});
    result.push_back({name + ".bias", module + ".bias", {}, false, 0, false});
  }

  void layer(int64_t l) {
    const BlockNames& names = config_.names.block;
    const std::string from = config_.names.layers + std::to_string(l) + ".", to = "blk." + std::to_string(l) + ".";
    // Falcon 40B: what both halves of the layer read is the norm of the MLP for llama.cpp, the attention's is a second
    const bool two_norms = row_.name == "falcon" && !names.mlp_norm.empty() && config_.parallel_residual;
    if (!names.attention_norm.empty())
      norm(to + (two_norms ? "attn_norm_2" : "attn_norm"), from + names.attention_norm);
    if (!names.mlp_norm.empty()) norm(to + (two_norms ? "attn_norm" : "ffn_norm"), from + names.mlp_norm);
    if (!names.post_attention_norm.empty()) norm(to + "post_attention_norm", from + names.post_attention_norm);
    if (!names.post_mlp_norm.empty()) norm(to + "post_ffw_norm", from + names.post_mlp_norm);
    attention(from, to);
    if (config_.experts) return experts(from, to);
    const MlpNames& mlp = names.mlp;
    if (config_.gated_mlp && mlp.gate_up.empty()) linear(to + "ffn_gate", from + mlp.gate);
    linear(to + "ffn_up", from + (mlp.gate_up.empty() ? mlp.up : mlp.gate_up));
    linear(to + "ffn_down", from + mlp.down);
  }

 private:
  void experts(const std::string& from, const std::string& to) {
    const ExpertNames& names = config_.names.block.experts;
    const ExpertsConfig& experts = *config_.experts;
    result.push_back({to + "ffn_gate_inp.weight", from + names.router + ".weight", {}, false, 0, false});
    const auto add = [&](const std::string& name, const std::string& fused, const std::string& own, int64_t first,
                         int64_t count) {
      GgufRows matrices{.sources = {}, .first = first, .count = count, .experts = experts.experts};
      if (!fused.empty()) matrices.sources = {from + fused};
      for (int64_t e = 0; fused.empty() && e < experts.experts; ++e) {
        matrices.sources.push_back(from + names.experts + "." + std::to_string(e) + "." + own + ".weight");
      }
      result.push_back({to + name + ".weight", matrices.sources[0], {}, false, 0, true, matrices});
    };
    const bool fused = !names.fused_gate_up.empty();
    add("ffn_gate_exps", names.fused_gate_up, names.gate, 0, experts.hidden);
    add("ffn_up_exps", names.fused_gate_up, names.up, fused ? experts.hidden : 0, experts.hidden);
    add("ffn_down_exps", names.fused_down, names.down, 0, experts.width);
    if (experts.shared_hidden == 0) return;
    const MlpNames& shared = names.shared;
    if (shared.gate_up.empty()) {
      linear(to + "ffn_gate_shexp", from + shared.gate);
      linear(to + "ffn_up_shexp", from + shared.up);
    } else {
      const std::string both = from + shared.gate_up + ".weight";
      const int64_t half = experts.shared_hidden;
      result.push_back({to + "ffn_gate_shexp.weight", both, {}, false, 0, true, GgufRows{{both}, 0, half}});
      result.push_back({to + "ffn_up_shexp.weight", both, {}, false, 0, true, GgufRows{{both}, half, half}});
    }
    linear(to + "ffn_down_shexp", from + shared.down);
    if (!names.shared_gate.empty()) {
      result.push_back({to + "ffn_gate_inp_shexp.weight", from + names.shared_gate + ".weight", {}, false, 0, false});
    }
  }

  void attention(const std::string& from, const std::string& to) {
    const AttentionNames& names = config_.names.block.attention;
    if (!names.qkv.empty()) {
      linear(to + "attn_qkv", from + names.qkv,
             config_.qkv_groups > 1 ? groups_apart(config_) : std::vector<int64_t>());
    } else {
      const bool pairs = row_.rope_order == Order::interleaved;
      const int64_t rotated = config_.rope.empty() ? 0 : config_.rope.front().size;
      linear(to + "attn_q", from + names.q,
             pairs ? interleaved(config_.heads, config_.head_size, rotated) : std::vector<int64_t>());
      linear(to + "attn_k", from + names.k,
             pairs ? interleaved(config_.kv_heads, config_.head_size, rotated) : std::vector<int64_t>());
      linear(to + "attn_v", from + names.v);
    }
    linear(to + "attn_output", from + names.output);
    if (config_.qk_norm) {
      norm(to + "attn_q_norm", from + names.q_norm);
      norm(to + "attn_k_norm", from + names.k_norm);
    }
  }

  const DecoderConfig& config_;
  const Architecture& row_;
};

bool is_close(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); }

/// What llama.cpp multiplies the scores with: it knows the largest Gemma 2 and 3 by their layers.
double attention_scale(const DecoderConfig& config) {
  const bool largest = (config.model_type == "gemma2" && config.layers == 46) ||
                       (config.model_type == "gemma3_text" && config.layers == 62);
  return 1 / std::sqrt(static_cast<double>(largest ? config.width / config.heads : config.head_size));
}

/// Every how many-th layer has no window (and, with two kinds of rope, that of the whole text); 0: that is not the
/// rule.
int64_t window_period(const DecoderConfig& config, const Architecture& row) {
  int64_t full = 0;
  while (full < config.layers && config.layer[static_cast<size_t>(full)].window > 0) ++full;
  const bool any = std::any_of(config.layer.begin(), config.layer.end(), [](const auto& l) { return l.window > 0; });
  const int64_t period = any && full < config.layers ? full + 1 : std::max(row.window_period, full + 1);
  for (int64_t l = 0; l < config.layers; ++l) {
    const LayerConfig& layer = config.layer[static_cast<size_t>(l)];
    const bool slides = (l + 1) % period != 0;
    if (any && (layer.window > 0) != slides) return 0;
    if (config.rope.size() > 1 && (layer.rotary == 1) != slides) return 0;
  }
  return period;
}

/// What of the numbers and flags of a config has no place in the form of the family.
void refuse_what_differs(const DecoderConfig& config, const Architecture& row) {
  const bool granite = row.name.starts_with("granite"), cohere = row.name == "command-r" || row.name == "cohere2";
  const auto scaled = [](const LayerConfig& layer) { return layer.attention_scale != 0; };
  const bool by_layer = std::any_of(config.layer.begin(), config.layer.end(), scaled);
  if (by_layer || (!granite && !is_close(config.attention_scale, attention_scale(config))))
    refuse("scores that are scaled by " + std::to_string(config.attention_scale));
  if (config.position_offset != 0) refuse("positions that do not start at 0");
  if (config.norm_place != NormPlace::input) refuse("norms behind the sum");
  if ((config.alibi != Alibi::none) != (row.name == "bloom")) refuse("ALiBi in this family");
  if (config.qkv_clip != 0 && row.name != "olmo") refuse("clipped queries");
  if ((config.logit_scale != 1 && !granite && !cohere) || (config.residual_scale != 1 && !granite))
    refuse("scaled logits or residuals in this family");
  if (row.name == "gemma2" && (config.attention_softcap == 0 || config.logit_softcap == 0))
    refuse("a Gemma 2 without its caps");
  constexpr std::array<std::string_view, 11> kBiased{"llama",   "qwen2",    "granite",    "gpt2",
                                                     "gptneox", "qwen2moe", "starcoder2", "starcoder",
                                                     "bloom",   "phi2",     "stablelm"};
  const bool biased = config.qkv_bias || config.output_bias || config.mlp_bias;
  if (biased && std::find(kBiased.begin(), kBiased.end(), row.name) == kBiased.end()) refuse("biases in this family");
  if ((row.name == "starcoder2" || row.name == "gptneox") && !config.output_bias)
    refuse("a " + config.model_type + " without biases");
  if (row.name == "falcon" && !config.parallel_residual) refuse("a Falcon whose MLP reads the attention's output");
  const bool ties = row.name == "gemma" || row.name == "gemma2" || cohere;
  if (ties && !config.tied_head) refuse("a head that is not the embedding in this family");
  const bool has_qk_norm = row.name == "qwen3" || row.name == "gemma3" || row.name == "olmo2" ||
                           row.name == "qwen3moe" || row.name == "olmoe";
  if (config.qk_norm && !has_qk_norm) refuse("norms of queries and keys (use_qk_norm, qk_layernorm) in this family");
  if (row.window_period > 0 && window_period(config, row) == 0) refuse("windows in these layers");
  constexpr int64_t kWithoutRope = 4;  // every so many-th layer of SmolLM3
  for (size_t l = 0; row.name == "smollm3" && l < config.layer.size(); ++l) {
    if ((config.layer[l].rotary < 0) != ((static_cast<int64_t>(l) + 1) % kWithoutRope == 0))
      refuse("rope in these layers");
  }
}

void refuse_experts(const DecoderConfig& config, const Architecture& row) {
  if (!config.experts) return;
  const ops::Routing& routing = config.experts->routing;
  for (const LayerConfig& layer : config.layer) {
    if (!layer.feed_forward) refuse("a " + config.model_type + " with layers without experts");
  }
  const bool normalizes = routing.normalize || routing.score == ops::RouterScore::chosen_softmax;
  if (normalizes != row.normalizes_routes)
    refuse("a " + config.model_type + (normalizes ? " with" : " without") + " norm_topk_prob");
}

void refuse_rope(const DecoderConfig& config, const Architecture& row) {
  const size_t kinds = row.name == "gemma3" ? 2 : 1;
  for (size_t i = 0; i < config.rope.size(); ++i) {
    const RopeConfig& rope = config.rope[i];
    if (i >= kinds && rope != config.rope[0]) refuse("several kinds of rope in one model");
    if (rope.exponent_size != 0) refuse("an odd share of rotated elements");
    bool known = rope.scaling == RopeScaling::none;
    if (i == 0) known = known || rope.scaling == RopeScaling::linear || rope.scaling == RopeScaling::llama3;
    if (i == 0 && row.name == "phi3") known = known || rope.scaling == RopeScaling::longrope;
    if (!known && !(i > 0 && rope == config.rope[0])) refuse("this kind of rope scaling as nibble writes it");
  }
}

uint32_t u32(int64_t value) { return static_cast<uint32_t>(value); }

void say_experts(const DecoderConfig& config, const std::string& key,
                 std::vector<std::pair<std::string, GgufValue>>& result) {
  const ExpertsConfig& experts = *config.experts;
  result.emplace_back(key + "expert_count", u32(experts.experts));
  result.emplace_back(key + "expert_used_count", u32(experts.routing.k));
  if (config.model_type.starts_with("qwen"))
    result.emplace_back(key + "expert_feed_forward_length", u32(experts.hidden));
  if (experts.shared_hidden > 0)
    result.emplace_back(key + "expert_shared_feed_forward_length", u32(experts.shared_hidden));
}

}  // namespace

std::string gguf_architecture(const DecoderConfig& config) {
  const Architecture& row = find(config);
  if (config.activation != row.activation)
    refuse("a " + config.model_type + " with another activation than the family's");
  refuse_what_differs(config, row);
  refuse_experts(config, row);
  refuse_rope(config, row);
  return std::string(row.name);
}

std::vector<GgufPart> gguf_parts(const DecoderConfig& config) {
  Parts parts(config, find(config));
  const TensorNames& names = config.names;
  parts.table("token_embd", names.embedding);
  if (!names.embedding_norm.empty()) parts.norm("token_embd_norm", names.embedding_norm);
  if (!names.positions.empty()) parts.table("position_embd", names.positions);
  for (int64_t l = 0; l < config.layers; ++l) parts.layer(l);
  parts.norm("output_norm", names.final_norm);
  const std::string_view arch = find(config).name;
  // a tied head too is a tensor of its own
  const bool needed = arch == "gptneox" || arch == "stablelm" || arch == "phi2" || arch == "olmo2";
  if (!config.tied_head) parts.linear("output", names.head);
  if (config.tied_head && needed) {
    parts.table("output", names.embedding);
    if (config.head_bias) parts.result.push_back({"output.bias", names.head + ".bias", {}, false, 0, false});
  }
  return std::move(parts.result);
}

std::vector<std::pair<std::string, GgufValue>> gguf_hyperparameters(const DecoderConfig& config,
                                                                    const std::string& name) {
  const std::string arch = gguf_architecture(config), key = arch + ".";
  int64_t window = 0;
  for (const LayerConfig& layer : config.layer) window = std::max(window, layer.window);
  // Beyond the window the families that have none in llama.cpp would attend to too much.
  const Architecture& row = find(config);
  const bool without_window = window > 0 && row.window_period == 0;
  const int64_t context = without_window ? std::min(window, config.max_positions) : config.max_positions;
  std::vector<std::pair<std::string, GgufValue>> result = {
      {"general.architecture", arch},
      {"general.type", std::string("model")},
      {"general.name", name},
      {key + "block_count", u32(config.layers)},
      {key + "context_length", u32(context)},
      {key + "embedding_length", u32(config.width)},
      {key + "feed_forward_length", u32(config.mlp_width)},
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
    if (rope.scaling == RopeScaling::longrope) {
      result.emplace_back(key + "rope.scaling.original_context_length", u32(rope.original_max_positions));
      result.emplace_back(key + "rope.scaling.attn_factor", static_cast<float>(rope.magnitude));
    }
  }
  if (row.window_period > 0)
    result.emplace_back(key + "attention.sliding_window", u32(window > 0 ? window : config.max_positions));
  if (arch == "phi3") result.emplace_back(key + "attention.sliding_window", u32(window));
  if (arch == "gemma3" || arch == "cohere2")
    result.emplace_back(key + "attention.sliding_window_pattern", u32(window_period(config, row)));
  if (arch == "gemma3" && config.rope.size() > 1)
    result.emplace_back(key + "rope.freq_base_swa", static_cast<float>(config.rope[1].base));
  if (config.attention_softcap > 0) result.emplace_back(key + "attn_logit_softcapping", config.attention_softcap);
  if (config.logit_softcap > 0) result.emplace_back(key + "final_logit_softcapping", config.logit_softcap);
  if (arch == "gptneox" || arch == "stablelm")
    result.emplace_back(key + "use_parallel_residual", config.parallel_residual);
  if (config.experts) say_experts(config, key, result);
  if (arch.starts_with("granite")) {
    result.emplace_back(key + "embedding_scale", config.embedding_scale);
    result.emplace_back(key + "residual_scale", config.residual_scale);
    result.emplace_back(key + "attention.scale", config.attention_scale);
    result.emplace_back(key + "logit_scale", 1 / config.logit_scale);
  }
  if (arch == "command-r" || arch == "cohere2") result.emplace_back(key + "logit_scale", config.logit_scale);
  if (config.qkv_clip > 0) result.emplace_back(key + "attention.clamp_kqv", config.qkv_clip);
  return result;
}

std::map<std::string, std::vector<float>> gguf_rope_factors(const DecoderConfig& config) {
  if (config.rope.empty()) return {};
  const RopeConfig& rope = config.rope.front();
  if (rope.scaling == RopeScaling::longrope)
    return {{"rope_factors_long.weight", rope.long_factors}, {"rope_factors_short.weight", rope.short_factors}};
  if (rope.scaling != RopeScaling::llama3) return {};
  RopeConfig plain = rope;
  plain.scaling = RopeScaling::none;
  std::vector<float> factors = rope_frequencies(plain);
  const std::vector<float> scaled = rope_frequencies(rope);
  for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  return {{"rope_freqs.weight", factors}};
}

std::string gguf_model_type(const std::string& architecture) {
  for (const Architecture& row : kArchitectures) {
    if (row.name == architecture) return std::string(row.model_type);
  }
  return "";
}

std::string gguf_architectures() {
  std::string known;
  for (const Architecture& row : kArchitectures) {
    if (row.model_type != "mistral" && row.model_type != "mixtral" && row.model_type != "granitemoeshared")
      known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return known;
}

}  // namespace nibble
