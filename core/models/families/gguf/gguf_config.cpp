#include "nibble/core/models/families/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/gguf/gguf_keys.h"
#include "nibble/core/models/families/gguf/gguf_names.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;

std::string architecture_of(const GgufFile& file) {
  std::string name = file.text("general.architecture").value_or("");
  if (!gguf_model_type(name).empty()) return name;
  throw InputError(file.path(), "is a model of architecture \"" + name + "\", which cannot be taken from a GGUF file",
                   "known are " + gguf_architectures() + "; " + GgufKeys::kElsewhere);
}

// Mixtral is a llama with experts there, and Granite's mixtures have one name with a shared expert and without.
std::string model_type_of(const GgufFile& file) {
  const std::string architecture = architecture_of(file);
  if (architecture == "llama" && file.integer("llama.expert_count").value_or(0) > 0) return "mixtral";
  if (architecture == "granitemoe" && file.integer("granitemoe.expert_shared_feed_forward_length").value_or(0) > 0)
    return "granitemoeshared";
  return gguf_model_type(architecture);
}

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

// What all families say.
Json common_config(const GgufKeys& keys, const GgufFile& file, const Family& family, MemoryPool& pool) {
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    throw InputError(file.path(), "has no token_embd.weight", "the model is incomplete: get it again");
  const bool mixture = keys.integer("expert_count").value_or(0) > 0;
  if (mixture && !family.gguf.mixture) keys.fail("expert_count", "says that it is a mixture of experts");
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
  if (const int64_t largest = family.gguf.largest_layers; largest > 0)
    config["query_pre_attn_scalar"] = keys.needed("block_count") == largest ? width / heads : head_size;
  return config;
}

Json linear_scaling(const GgufKeys& keys) {
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

std::string gguf_config_json(const GgufFile& file, DType dtype, MemoryPool& pool) {
  const GgufKeys keys(file, architecture_of(file) + ".");
  const Family& family = find_family(model_type_of(file), "", file.path());
  Json config = common_config(keys, file, family, pool);
  if (family.gguf.config != nullptr) family.gguf.config(keys, config);
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
