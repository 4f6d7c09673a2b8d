#include "nibble/core/models/families/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/gguf/gguf_keys.h"
#include "nibble/core/models/families/gguf/gguf_names.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"
#include "nibble/core/models/families/gguf/gguf_spellings.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;

std::string architecture_of(const GgufFile& file) {
  std::string name = file.text("general.architecture").value_or("");
  if (!gguf_model_type(name).empty()) return name;
  throw InputError(file.path(), "is a model of architecture \"" + name + "\", which cannot be taken from a GGUF file",
                   "known are " + gguf_architectures() + "; " + GgufKeys::kElsewhere);
}

// What one architecture is of several families. Mixtral is a llama with experts there, Granite's mixtures have one name
// with a shared expert and without, and a Granite 4 without state spaces is a Granite; GLM-4.7-Flash comes back as a
// DeepSeek V3.
std::string model_type_of(const std::string& architecture, const GgufKeys& keys) {
  const bool experts = keys.has_experts();
  if (architecture == "llama" && experts) return "mixtral";
  if (architecture == "granitehybrid" && !keys.says("embedding_scale")) return "bamba";
  if (architecture.starts_with("granite") && keys.says("rope.scaling.finetuned")) return "granitemoehybrid";
  if (architecture == "granitemoe" && keys.integer("expert_shared_feed_forward_length").value_or(0) > 0)
    return "granitemoeshared";
  if (architecture == "mamba" && keys.flag("ssm.dt_b_c_rms", false)) return "falcon_mamba";
  if (architecture == "deepseek2" && !experts) return "youtu";
  if (architecture == "deepseek2") return keys.integer("expert_gating_func") == 2 ? "deepseek_v3" : "deepseek_v2";
  return gguf_model_type(architecture);
}

// As the family's own configuration class spells it.
std::string spelled(std::string_view key) {
  const size_t bar = key.find('|');
  const std::string_view first = key.substr(0, bar);
  return std::string(first == "n_embed" ? key.substr(bar + 1) : first);
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

// Adds what attention is of families that have it; say(key, value) leaves out what the family does not say.
template <typename Say>
void say_attention(const GgufKeys& keys, const Family& family, int64_t width, const Say& say) {
  const int64_t heads = keys.needed_most("attention.head_count");
  const bool latent = keys.integer("attention.kv_lora_rank").has_value();  // of which it says the lengths of latents
  const int64_t head_size =
      latent ? keys.needed("rope.dimension_count") : keys.integer("attention.key_length").value_or(width / heads);
  if (head_size < 1) keys.fail("attention.head_count", "is more than the width");
  if (!latent && keys.integer("attention.value_length").value_or(head_size) != head_size)
    keys.fail("attention.value_length", "is not the length of the keys");
  const ConfigKeys& names = family.keys;
  say(names.heads, heads);
  const bool says_kv_heads = !keys.by_layer("attention.head_count_kv").empty();
  if (!latent) say(names.kv_heads, says_kv_heads ? keys.needed_most("attention.head_count_kv") : heads);
  if (family.head_size > 0 || family.model_type == "llama" || head_size * heads != width)
    say(latent ? names.head_size : "head_dim", head_size);
  if (family.rope == RopeRule::none) return;
  const int64_t rotated = keys.integer("rope.dimension_count").value_or(head_size);
  if (rotated < 1 || rotated > head_size) keys.fail("rope.dimension_count", "is more than the size of a head");
  if (rotated != head_size || family.rotary_share != 1) say(names.rotary_share, rotary_share(rotated, head_size));
  say(names.rope_base, keys.number("rope.freq_base").value_or(10000.0));
  if (const int64_t largest = family.gguf.largest_layers; largest > 0)
    say("query_pre_attn_scalar", keys.layers() == largest ? width / heads : head_size);
}

// What all families say.
Json common_config(const GgufKeys& keys, const GgufFile& file, const Family& family, MemoryPool& pool) {
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    throw InputError(file.path(), "has no token_embd.weight", "the model is incomplete: get it again");
  const bool mixture = keys.has_experts();
  if (mixture && !family.gguf.mixture) keys.fail("expert_count", "says that it is a mixture of experts");
  const int64_t width = keys.needed("embedding_length");
  const ConfigKeys& names = family.keys;
  Json config = {{"architectures", {family.architecture}},
                 {"model_type", family.model_type},
                 {"vocab_size", embedding->shape.at(0)}};
  const auto say = [&](std::string_view key, const Json& value) {
    if (!key.empty()) config[spelled(key)] = value;
  };
  say(names.width, width);
  // A mixture may say the width of its experts alone.
  const bool by_experts = mixture && keys.by_layer("feed_forward_length").empty();
  if (!names.mlp_width.empty())
    say(names.mlp_width, keys.needed_most(by_experts ? "expert_feed_forward_length" : "feed_forward_length"));
  say(names.layers, keys.layers());
  say(names.max_positions, keys.needed("context_length"));
  say(names.activation, family.activation);
  if (family.gguf.attends) say_attention(keys, family, width, say);
  const std::string eps = "attention.layer_norm_epsilon", rms_eps = "attention.layer_norm_rms_epsilon";
  // Nemotron-H's has the name of the other kind.
  const bool says_rms = family.norm.kind == NormKind::rms && (keys.says(rms_eps) || !keys.says(eps));
  if (!names.norm_eps.empty()) say(names.norm_eps, keys.needed_number(says_rms ? rms_eps : eps));
  config["tie_word_embeddings"] = is_tied(file, *embedding, pool);
  return config;
}

// mscale and mscale_all_dim, which llama.cpp needs to be alike, are those of latent attention.
Json yarn_scaling(const GgufKeys& keys) {
  const double factor = keys.needed_number("rope.scaling.factor");
  Json result = {{"rope_type", "yarn"},
                 {"factor", factor},
                 {"original_max_position_embeddings", keys.needed("rope.scaling.original_context_length")},
                 {"beta_fast", keys.number("rope.scaling.yarn_beta_fast").value_or(32.0)},
                 {"beta_slow", keys.number("rope.scaling.yarn_beta_slow").value_or(1.0)}};
  if (keys.says("rope.scaling.truncate")) result["truncate"] = keys.flag("rope.scaling.truncate", true);
  if (const auto growth = keys.number("rope.scaling.yarn_log_multiplier")) {
    result["mscale"] = result["mscale_all_dim"] = shortest_decimal(static_cast<float>(10 * *growth));
  } else if (const double more = keys.number("rope.scaling.attn_factor").value_or(1.0); more != 1) {
    result["attention_factor"] = more * (factor > 1 ? 0.1 * std::log(factor) + 1 : 1);
  }
  return result;
}

Json scaling_of(const GgufKeys& keys, const GgufForm& form) {
  // Without a type llama.cpp scales linearly, by a factor that older files call otherwise.
  const double factor = keys.number("rope.scaling.factor").value_or(keys.number("rope.scale_linear").value_or(0));
  const std::string type = keys.text("rope.scaling.type").value_or(factor > 0 ? "linear" : "none");
  if (type == "none" || type == "longrope") return nullptr;
  if (type == "yarn" && form.yarn) return yarn_scaling(keys);
  if (type != "linear") keys.fail("rope.scaling.type", "is " + type + ", which is not read from GGUF files");
  return {{"rope_type", "linear"}, {"factor", factor > 0 ? factor : 1.0}};
}

// rope_freqs.weight divides the frequencies, as Llama 3.1 and later do. It does not say from which length on; the other
// two numbers are 1 and 4, in Llama 4 1 and 1.
Json llama3_scaling(const std::vector<float>& factors, double high, int64_t length) {
  return {{"rope_type", "llama3"},
          {"factor", *std::max_element(factors.begin(), factors.end())},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", high},
          {"original_max_position_embeddings", length}};
}

bool nearly_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::abs(x - y) <= 1e-4f * std::abs(y); });
}

void say_llama3(const GgufFile& file, const std::vector<float>& factors, Json& config) {
  std::vector<int64_t> lengths = {8192};  // of Llama 3.1, 3.2 and 3.3
  for (int64_t length = 32; length <= int64_t{1} << 20; length *= 2) lengths.push_back(length);
  const bool is_llama4 = config.at("model_type") == "llama4_text";
  for (const double high : {is_llama4 ? 1.0 : 4.0, is_llama4 ? 4.0 : 1.0}) {
    for (const int64_t length : lengths) {
      config["rope_scaling"] = llama3_scaling(factors, high, length);
      const auto result = gguf_rope_factors(gguf_decoder_config(file, config.dump()));
      if (result.contains("rope_freqs.weight") && nearly_equal(result.at("rope_freqs.weight"), factors)) return;
    }
  }
  throw InputError(file.path() + ": rope_freqs.weight", "is not how Llama 3 stretches its rope", GgufKeys::kElsewhere);
}

void say_longrope(const GgufKeys& keys, const std::vector<float>& short_factors, const std::vector<float>& long_factors,
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

DecoderConfig gguf_decoder_config(const GgufFile& file, const std::string& config_json) {
  try {
    return parse_decoder_config(config_json, "");
  } catch (const InputError& error) {
    const std::string type = Json::parse(config_json).at("model_type");
    throw InputError(file.path(), in_keys_of_file(error.what(), file, find_family(type, "", file.path())),
                     GgufKeys::kElsewhere);
  }
}

std::string gguf_config_json(const GgufFile& file, DType dtype, MemoryPool& pool) {
  const std::string architecture = architecture_of(file);
  const GgufKeys keys(file, architecture + ".", pool);
  const Family& family = find_family(model_type_of(architecture, keys), "", file.path());
  Json config = common_config(keys, file, family, pool);
  if (config.contains("rope_theta") || config.contains("rotary_emb_base"))
    config["rope_scaling"] = scaling_of(keys, family.gguf);
  if (family.gguf.config != nullptr) family.gguf.config(keys, config);
  config["torch_dtype"] = dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
  for (const std::string role : {"bos", "eos"}) {
    if (const auto id = file.token_id(role)) config[role + "_token_id"] = *id;
  }
  const auto factors = keys.values("rope_freqs.weight");
  if (!factors.empty() && !family.gguf.lists_windows) say_llama3(file, factors, config);
  const auto long_factors = keys.values("rope_factors_long.weight");
  if (!long_factors.empty()) say_longrope(keys, keys.values("rope_factors_short.weight"), long_factors, config);
  return config.dump(2) + "\n";
}

}  // namespace nibble
