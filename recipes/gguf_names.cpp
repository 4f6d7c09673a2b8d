#include "nibble/recipes/gguf_names.h"

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
};

constexpr std::array kArchitectures{
    Architecture{"llama", "llama", Order::interleaved, ops::Activation::silu},
    Architecture{"mistral", "llama", Order::interleaved, ops::Activation::silu},
    Architecture{"qwen2", "qwen2", Order::plain, ops::Activation::silu},
    Architecture{"qwen3", "qwen3", Order::plain, ops::Activation::silu},
    Architecture{"gemma", "gemma", Order::plain, ops::Activation::gelu_tanh},
    Architecture{"gemma2", "gemma2", Order::plain, ops::Activation::gelu_tanh},
    Architecture{"phi3", "phi3", Order::plain, ops::Activation::silu},
    Architecture{"gpt2", "gpt2", Order::plain, ops::Activation::gelu_tanh},
    Architecture{"gpt_neox", "gptneox", Order::plain, ops::Activation::gelu_erf},
    Architecture{"falcon", "falcon", Order::plain, ops::Activation::gelu_erf},
};

const Architecture& find(const DecoderConfig& config) {
  std::string known;
  for (const Architecture& row : kArchitectures) {
    if (row.model_type == config.model_type) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.model_type);
  }
  throw UsageError("model type " + config.model_type + " has no GGUF form here", "known are " + known);
}

[[noreturn]] void refuse(const std::string& what) {
  throw UsageError("llama.cpp cannot compute " + what, "export to a Hugging Face directory (nibble merge) instead");
}

/// HF keeps the two halves of a head behind each other, llama.cpp's `llama` the pairs.
std::vector<int64_t> interleaved(int64_t heads, int64_t head_size) {
  std::vector<int64_t> order;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t j = 0; j < head_size / 2; ++j) {
      for (int64_t half = 0; half < 2; ++half) order.push_back(h * head_size + half * (head_size / 2) + j);
    }
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

  std::vector<GgufPart> made;

  void linear(const std::string& name, const std::string& module, const std::vector<int64_t>& order = {}) {
    const bool turned = config_.transposed_linears && module != config_.names.head;
    made.push_back({name + ".weight", module + ".weight", order, turned, 0, true});
    made.push_back({name + ".bias", module + ".bias", order, false, 0, false});
  }
  void table(const std::string& name, const std::string& module) {
    made.push_back({name + ".weight", module + ".weight", {}, false, 0, true});
  }
  void norm(const std::string& name, const std::string& module) {
    made.push_back({name + ".weight", module + ".weight", {}, false, config_.norm.weight_offset, false});
    made.push_back({name + ".bias", module + ".bias", {}, false, 0, false});
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
    const MlpNames& mlp = names.mlp;
    if (config_.gated_mlp && mlp.gate_up.empty()) linear(to + "ffn_gate", from + mlp.gate);
    linear(to + "ffn_up", from + (mlp.gate_up.empty() ? mlp.up : mlp.gate_up));
    linear(to + "ffn_down", from + mlp.down);
  }

 private:
  void attention(const std::string& from, const std::string& to) {
    const AttentionNames& names = config_.names.block.attention;
    if (!names.qkv.empty()) {
      linear(to + "attn_qkv", from + names.qkv,
             config_.qkv_groups > 1 ? groups_apart(config_) : std::vector<int64_t>());
    } else {
      const bool pairs = row_.rope_order == Order::interleaved;
      linear(to + "attn_q", from + names.q,
             pairs ? interleaved(config_.heads, config_.head_size) : std::vector<int64_t>());
      linear(to + "attn_k", from + names.k,
             pairs ? interleaved(config_.kv_heads, config_.head_size) : std::vector<int64_t>());
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

uint32_t u32(int64_t value) { return static_cast<uint32_t>(value); }

}  // namespace

std::string gguf_architecture(const DecoderConfig& config) {
  const Architecture& row = find(config);
  if (config.activation != row.activation)
    refuse("a " + config.model_type + " with another activation than the family's");
  if (!is_close(config.attention_scale, 1 / std::sqrt(static_cast<double>(config.head_size)))) {
    refuse("scores that are scaled by " + std::to_string(config.attention_scale));
  }
  if (config.position_offset != 0) refuse("positions that do not start at 0");
  if (config.rope.size() > 1) refuse("several kinds of rope in one model");
  for (const RopeConfig& rope : config.rope) {
    const bool known =
        rope.scaling == RopeScaling::none || rope.scaling == RopeScaling::linear || rope.scaling == RopeScaling::llama3;
    if (!known) refuse("this kind of rope scaling as nibble writes it");
  }
  const bool two_norms = row.name == "falcon" && !config.parallel_residual;
  if (two_norms) refuse("a Falcon whose MLP reads the attention's output");
  return std::string(row.name);
}

std::vector<GgufPart> gguf_parts(const DecoderConfig& config) {
  Parts parts(config, find(config));
  const TensorNames& names = config.names;
  parts.table("token_embd", names.embedding);
  if (!names.positions.empty()) parts.table("position_embd", names.positions);
  for (int64_t l = 0; l < config.layers; ++l) parts.layer(l);
  parts.norm("output_norm", names.final_norm);
  if (!config.tied_head) parts.linear("output", names.head);
  return std::move(parts.made);
}

std::vector<std::pair<std::string, GgufValue>> gguf_hyperparameters(const DecoderConfig& config,
                                                                    const std::string& name) {
  const std::string arch = gguf_architecture(config), key = arch + ".";
  int64_t window = 0;
  for (const LayerConfig& layer : config.layer) window = std::max(window, layer.window);
  // Of these families llama.cpp has a window for Gemma 2 only: beyond it the others would attend to too much.
  const bool without_window = window > 0 && arch != "gemma2";
  const int64_t context = without_window ? std::min(window, config.max_positions) : config.max_positions;
  std::vector<std::pair<std::string, GgufValue>> made = {
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
  made.emplace_back(key + (rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"), config.norm.eps);
  if (!config.rope.empty()) {
    const RopeConfig& rope = config.rope.front();
    made.emplace_back(key + "rope.freq_base", static_cast<float>(rope.base));
    made.emplace_back(key + "rope.dimension_count", u32(rope.size));
    if (rope.scaling == RopeScaling::linear) {
      made.emplace_back(key + "rope.scaling.type", std::string("linear"));
      made.emplace_back(key + "rope.scaling.factor", static_cast<float>(rope.factor));
    }
  }
  if (arch == "gemma2" || arch == "phi3") {
    made.emplace_back(key + "attention.sliding_window", u32(window));
  }
  if (config.attention_softcap > 0) made.emplace_back(key + "attn_logit_softcapping", config.attention_softcap);
  if (config.logit_softcap > 0) made.emplace_back(key + "final_logit_softcapping", config.logit_softcap);
  if (arch == "gptneox") made.emplace_back(key + "use_parallel_residual", config.parallel_residual);
  return made;
}

std::vector<float> gguf_rope_factors(const DecoderConfig& config) {
  if (config.rope.empty() || config.rope.front().scaling != RopeScaling::llama3) return {};
  RopeConfig plain = config.rope.front();
  plain.scaling = RopeScaling::none;
  std::vector<float> factors = rope_frequencies(plain);
  const std::vector<float> scaled = rope_frequencies(config.rope.front());
  for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  return factors;
}

}  // namespace nibble
