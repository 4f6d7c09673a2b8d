#include "nibble/recipes/gguf/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/models/families/families.h"
#include "nibble/recipes/gguf/gguf_names.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kElsewhere = "get the model in Hugging Face's form";

std::string architecture_of(const GgufFile& file) {
  std::string name = file.text("general.architecture").value_or("");
  if (!gguf_model_type(name).empty()) return name;
  throw InputError(file.path(), "is a model of architecture \"" + name + "\", which cannot be taken from a GGUF file",
                   "known are " + gguf_architectures() + "; " + kElsewhere);
}

// Mixtral is a llama with experts there, and Granite's mixtures have one name with a shared expert and without.
std::string model_type_of(const GgufFile& file) {
  const std::string architecture = architecture_of(file);
  if (architecture == "llama" && file.integer("llama.expert_count").value_or(0) > 0) return "mixtral";
  if (architecture == "granitemoe" && file.integer("granitemoe.expert_shared_feed_forward_length").value_or(0) > 0)
    return "granitemoeshared";
  return gguf_model_type(architecture);
}

// The keys of the file's architecture.
class Keys {
 public:
  explicit Keys(const GgufFile& file) : file_(file), prefix_(architecture_of(file) + ".") {}

  std::optional<int64_t> integer(const std::string& key) const { return file_.integer(prefix_ + key); }
  std::optional<double> number(const std::string& key) const { return file_.number(prefix_ + key); }
  std::optional<std::string> text(const std::string& key) const { return file_.text(prefix_ + key); }
  bool flag(const std::string& key, bool absent) const {
    const auto found = file_.metadata().find(prefix_ + key);
    if (found == file_.metadata().end()) return absent;
    if (!std::holds_alternative<bool>(found->second)) fail(key, "is neither true nor false");
    return std::get<bool>(found->second);
  }
  bool has(const std::string& tensor) const { return file_.find(tensor) != nullptr; }
  int64_t needed(const std::string& key) const {
    const std::optional<int64_t> value = integer(key);
    if (!value || *value < 1) fail(key, "is missing or not positive");
    return *value;
  }
  double needed_number(const std::string& key) const {
    const std::optional<double> value = number(key);
    if (!value) fail(key, "is missing");
    return *value;
  }
  [[noreturn]] void fail(const std::string& key, const std::string& reason) const {
    throw InputError(file_.path() + ": " + prefix_ + key, reason, kElsewhere);
  }
  std::vector<float> values(const std::string& tensor, MemoryPool& pool) const {
    const GgufTensor* found = file_.find(tensor);
    if (!found) return {};
    const Tensor row = file_.rows(*found, 0, 1, pool);
    const std::span<const float> elements = row.span<const float>();
    return {elements.begin(), elements.end()};
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

// As the family's own configuration class spells it.
std::string spelled(std::string_view key) {
  const size_t bar = key.find('|');
  const std::string_view first = key.substr(0, bar);
  return std::string(first == "n_embed" ? key.substr(bar + 1) : first);
}

// The share of which Transformers' rounding makes this number of rotated elements.
double rotary_share(int64_t rotated, int64_t head_size) {
  double share = static_cast<double>(rotated) / static_cast<double>(head_size);
  while (static_cast<int64_t>(static_cast<double>(head_size) * share) < rotated) share = std::nextafter(share, 2.0);
  return share;
}

// Some files have a tied head as a tensor of its own.
bool is_tied(const GgufFile& file, const GgufTensor& embedding, MemoryPool& pool) {
  const GgufTensor* head = file.find("output.weight");
  if (!head) return true;
  if (head->shape != embedding.shape || head->type != embedding.type) return false;
  constexpr int64_t kElements = int64_t{4} << 20;
  const int64_t rows = head->shape.at(0), step = std::max<int64_t>(1, kElements / std::max<int64_t>(1, head->shape[1]));
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    const Tensor a = file.rows(*head, begin, end, pool), b = file.rows(embedding, begin, end, pool);
    if (std::memcmp(a.raw(), b.raw(), a.bytes()) != 0) return false;
  }
  return true;
}

bool is_mixture(std::string_view model_type) {
  return model_type == "mixtral" || model_type.find("moe") != std::string_view::npos;
}

// What all families say.
Json common_config(const Keys& keys, const GgufFile& file, const Family& family, MemoryPool& pool) {
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    throw InputError(file.path(), "has no token_embd.weight", "the model is not whole");
  const bool mixture = keys.integer("expert_count").value_or(0) > 0;
  if (mixture && !is_mixture(family.model_type)) keys.fail("expert_count", "says that it is a mixture of experts");
  const int64_t width = keys.needed("embedding_length"), heads = keys.needed("attention.head_count");
  const int64_t head_size = keys.integer("attention.key_length").value_or(width / heads);
  if (head_size < 1) keys.fail("attention.head_count", "is more than the width");
  if (keys.integer("attention.value_length").value_or(head_size) != head_size)
    keys.fail("attention.value_length", "is not the length of the keys");
  const ConfigKeys& names = family.keys;
  Json config = {{"architectures", {family.architecture}},
                 {"model_type", family.model_type},
                 {"vocab_size", embedding->shape.at(0)}};
  const auto say = [&](std::string_view key, const Json& value) {
    if (!key.empty()) config[spelled(key)] = value;
  };
  say(names.width, width);
  say(names.mlp_width, keys.needed("feed_forward_length"));
  say(names.layers, keys.needed("block_count"));
  say(names.heads, heads);
  say(names.kv_heads, keys.integer("attention.head_count_kv").value_or(heads));
  say(names.max_positions, keys.needed("context_length"));
  say(names.activation, family.activation);
  const bool rms = family.norm.kind == NormKind::rms;
  const std::string eps = rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  if (!names.norm_eps.empty()) say(names.norm_eps, keys.needed_number(eps));
  if (family.head_size > 0 || family.model_type == "llama" || head_size * heads != width)
    config["head_dim"] = head_size;
  if (family.rope != RopeRule::none) {
    const int64_t rotated = keys.integer("rope.dimension_count").value_or(head_size);
    if (rotated < 1 || rotated > head_size) keys.fail("rope.dimension_count", "is more than the size of a head");
    if (rotated != head_size || family.rotary_share != 1) say(names.rotary_share, rotary_share(rotated, head_size));
    say(names.rope_base, keys.number("rope.freq_base").value_or(10000.0));
  }
  config["tie_word_embeddings"] = is_tied(file, *embedding, pool);
  return config;
}

Json window(const Keys& keys) {
  const int64_t size = keys.integer("attention.sliding_window").value_or(0);
  return size > 0 ? Json(size) : Json();
}

Json cap(const Keys& keys, const std::string& key) {
  const std::optional<double> value = keys.number(key);
  return value && *value > 0 ? Json(*value) : Json();
}

void say_biases(const Keys& keys, Json& config) {
  config["attention_bias"] = keys.has("blk.0.attn_q.bias");
  config["mlp_bias"] = keys.has("blk.0.ffn_up.bias");
}

void say_attention_bias(const Keys& keys, Json& config) { config["attention_bias"] = keys.has("blk.0.attn_q.bias"); }

void say_experts(const Keys& keys, Json& config) {
  const std::string type = config.at("model_type");
  config[type.starts_with("qwen") || type == "olmoe" ? "num_experts" : "num_local_experts"] =
      keys.needed("expert_count");
  config["num_experts_per_tok"] = keys.needed("expert_used_count");
  if (!type.starts_with("qwen")) return;
  config["moe_intermediate_size"] = keys.needed("expert_feed_forward_length");
  config["norm_topk_prob"] = type == "qwen3_moe";
}

void say_qwen2_moe(const Keys& keys, Json& config) {
  say_experts(keys, config);
  config["shared_expert_intermediate_size"] = keys.needed("expert_shared_feed_forward_length");
  config["qkv_bias"] = keys.has("blk.0.attn_q.bias");
}

void say_qwen3_moe(const Keys& keys, Json& config) {
  say_experts(keys, config);
  say_attention_bias(keys, config);
}

void say_nothing(const Keys&, Json&) {}

// llama.cpp knows the largest one by its layers, and scales its scores by the width.
void say_gemma_scale(const Keys& keys, int64_t largest, Json& config) {
  const int64_t width = config.at("hidden_size"), heads = config.at("num_attention_heads");
  config["query_pre_attn_scalar"] = keys.needed("block_count") == largest ? Json(width / heads) : config.at("head_dim");
  config["sliding_window"] = window(keys);
  config["final_logit_softcapping"] = cap(keys, "final_logit_softcapping");
  config["attention_bias"] = false;
}

void say_gemma2(const Keys& keys, Json& config) {
  say_gemma_scale(keys, 46, config);
  config["attn_logit_softcapping"] = cap(keys, "attn_logit_softcapping");
}

void say_gemma3(const Keys& keys, Json& config) {
  say_gemma_scale(keys, 62, config);
  config["rope_local_base_freq"] = keys.number("rope.freq_base_swa").value_or(10000.0);
  config["sliding_window_pattern"] = keys.integer("attention.sliding_window_pattern").value_or(6);
}

void say_phi3(const Keys& keys, Json& config) {
  config["sliding_window"] = window(keys);
  config["pad_token_id"] = nullptr;
}

void say_gpt_neox(const Keys& keys, Json& config) {
  config["use_parallel_residual"] = keys.flag("use_parallel_residual", true);
  config["attention_bias"] = keys.has("blk.0.attn_qkv.bias");
}

void say_falcon(const Keys& keys, Json& config) {
  const int64_t kv_heads = keys.integer("attention.head_count_kv").value_or(1);
  const bool two_norms = keys.has("blk.0.attn_norm_2.weight"), by_group = two_norms || kv_heads > 1;
  config["num_kv_heads"] = kv_heads;
  config["new_decoder_architecture"] = by_group;
  config["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  config["multi_query"] = kv_heads == 1;
  config["parallel_attn"] = true;
  config["alibi"] = false;
  config["bias"] = keys.has("blk.0.attn_qkv.bias");
}

void say_stablelm(const Keys& keys, Json& config) {
  config["use_parallel_residual"] = !keys.has("blk.0.ffn_norm.weight");
  config["use_qkv_bias"] = keys.has("blk.0.attn_q.bias");
}

void say_starcoder2(const Keys& keys, Json& config) { config["use_bias"] = keys.has("blk.0.attn_output.bias"); }

void say_olmo(const Keys& keys, Json& config) {
  config["clip_qkv"] = cap(keys, "attention.clamp_kqv");
  say_attention_bias(keys, config);
}

void say_olmoe(const Keys& keys, Json& config) {
  say_experts(keys, config);
  config["norm_topk_prob"] = false;
  say_attention_bias(keys, config);
}

void say_granite(const Keys& keys, Json& config) {
  config["embedding_multiplier"] = keys.number("embedding_scale").value_or(1.0);
  config["residual_multiplier"] = keys.number("residual_scale").value_or(1.0);
  config["attention_multiplier"] = keys.needed_number("attention.scale");
  config["logits_scaling"] = keys.number("logit_scale").value_or(1.0);
  say_biases(keys, config);
}

void say_bigcode(const Keys& keys, Json& config) {
  config["multi_query"] = keys.integer("attention.head_count_kv").value_or(1) == 1;
}

void say_cohere(const Keys& keys, Json& config) {
  config["logit_scale"] = keys.needed_number("logit_scale");
  say_attention_bias(keys, config);
}

void say_cohere2(const Keys& keys, Json& config) {
  say_cohere(keys, config);
  config["sliding_window"] = window(keys);
  config["sliding_window_pattern"] = keys.integer("attention.sliding_window_pattern").value_or(4);
}

void say_granitemoe(const Keys& keys, Json& config) {
  say_granite(keys, config);
  say_experts(keys, config);
  if (const auto shared = keys.integer("expert_shared_feed_forward_length"))
    config["shared_intermediate_size"] = *shared;
}

struct Own {
  std::string_view model_type;
  void (*say)(const Keys& keys, Json& config);
};
constexpr std::array kOwn{Own{"llama", say_biases},
                          Own{"mixtral", say_experts},
                          Own{"qwen2_moe", say_qwen2_moe},
                          Own{"qwen3_moe", say_qwen3_moe},
                          Own{"olmoe", say_olmoe},
                          Own{"granitemoe", say_granitemoe},
                          Own{"granitemoeshared", say_granitemoe},
                          Own{"qwen2", say_nothing},
                          Own{"qwen3", say_attention_bias},
                          Own{"gemma", say_nothing},
                          Own{"gemma2", say_gemma2},
                          Own{"gemma3_text", say_gemma3},
                          Own{"phi3", say_phi3},
                          Own{"gpt2", say_nothing},
                          Own{"gpt_neox", say_gpt_neox},
                          Own{"falcon", say_falcon},
                          Own{"stablelm", say_stablelm},
                          Own{"smollm3", say_biases},
                          Own{"olmo", say_olmo},
                          Own{"olmo2", say_attention_bias},
                          Own{"granite", say_granite},
                          Own{"starcoder2", say_starcoder2},
                          Own{"gpt_bigcode", say_bigcode},
                          Own{"bloom", say_nothing},
                          Own{"phi", say_nothing},
                          Own{"cohere", say_cohere},
                          Own{"cohere2", say_cohere2}};

Json linear_scaling(const Keys& keys) {
  const std::string type = keys.text("rope.scaling.type").value_or("none");
  if (type == "none" || type == "longrope") return nullptr;
  if (type != "linear") keys.fail("rope.scaling.type", "is " + type + ", which is not read from GGUF files");
  return {{"rope_type", "linear"}, {"factor", keys.number("rope.scaling.factor").value_or(1.0)}};
}

// rope_freqs.weight divides the frequencies, as Llama 3.1 and later do. It does not say from which length on; the other
// two numbers are always these.
Json llama3_scaling(const std::vector<float>& factors, int64_t length) {
  return {{"rope_type", "llama3"},
          {"factor", *std::max_element(factors.begin(), factors.end())},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", length}};
}

bool nearly_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::abs(x - y) <= 1e-4f * std::abs(y); });
}

void say_llama3(const GgufFile& file, const std::vector<float>& factors, Json& config) {
  std::vector<int64_t> lengths = {8192};  // of Llama 3.1, 3.2 and 3.3
  for (int64_t length = 32; length <= int64_t{1} << 20; length *= 2) lengths.push_back(length);
  for (const int64_t length : lengths) {
    config["rope_scaling"] = llama3_scaling(factors, length);
    const auto result = gguf_rope_factors(parse_decoder_config(config.dump(), file.path()));
    if (result.contains("rope_freqs.weight") && nearly_equal(result.at("rope_freqs.weight"), factors)) return;
  }
  throw InputError(file.path() + ": rope_freqs.weight", "is not how Llama 3 stretches its rope", kElsewhere);
}

void say_longrope(const Keys& keys, const std::vector<float>& short_factors, const std::vector<float>& long_factors,
                  Json& config) {
  const int64_t original = keys.needed("rope.scaling.original_context_length");
  config["original_max_position_embeddings"] = original;
  config["rope_scaling"] = {{"type", "longrope"}, {"short_factor", short_factors}, {"long_factor", long_factors}};
  const auto factor = keys.number("rope.scaling.attn_factor");
  if (!factor) return;
  const double stretch = keys.needed_number("context_length") / static_cast<double>(original);
  const double natural = stretch <= 1 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(static_cast<double>(original)));
  if (std::abs(*factor - natural) > 1e-6 * natural) config["rope_scaling"]["attention_factor"] = *factor;
}

}  // namespace

std::string gguf_config_json(const GgufFile& file, DType dtype, MemoryPool& pool) {
  const Keys keys(file);
  const std::string model_type = model_type_of(file);
  Json config = common_config(keys, file, find_family(model_type, "", file.path()), pool);
  const auto own = std::find_if(kOwn.begin(), kOwn.end(), [&](const Own& row) { return row.model_type == model_type; });
  NIBBLE_CHECK(own != kOwn.end(), "a family that is exported is taken back");
  own->say(keys, config);
  if (config.contains("rope_theta") || config.contains("rotary_emb_base"))
    config["rope_scaling"] = linear_scaling(keys);
  config["torch_dtype"] = dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
  for (const auto& [key, name] :
       {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"}, {"tokenizer.ggml.eos_token_id", "eos_token_id"}}) {
    if (const auto id = file.integer(key)) config[name] = *id;
  }
  if (const auto factors = keys.values("rope_freqs.weight", pool); !factors.empty()) say_llama3(file, factors, config);
  const auto long_factors = keys.values("rope_factors_long.weight", pool);
  if (!long_factors.empty()) say_longrope(keys, keys.values("rope_factors_short.weight", pool), long_factors, config);
  return config.dump(2) + "\n";
}

}  // namespace nibble
