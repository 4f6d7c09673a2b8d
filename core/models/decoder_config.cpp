#include "nibble/core/models/decoder_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/io/checkpoint_dir.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/models/config_reader.h"
#include "nibble/core/models/families.h"

namespace nibble {

namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxPositions = int64_t{1} << 30;

template <typename Value>
struct Named {
  std::string_view name;
  Value value;
};

// The value called `name`; otherwise an error that lists the known ones.
template <typename Value, size_t count>
Value choose(const ConfigReader& reader, std::string_view key, const std::string& name,
             const Named<Value> (&known)[count]) {
  std::string list;
  for (const Named<Value>& entry : known) {
    if (entry.name == name) return entry.value;
    list += (list.empty() ? "" : ", ") + std::string(entry.name);
  }
  reader.fail(key, "is unknown: " + name, "known: " + list);
}

constexpr Named<ops::Activation> kActivations[] = {
    {"silu", ops::Activation::silu},           {"swish", ops::Activation::silu},
    {"gelu", ops::Activation::gelu_erf},       {"gelu_new", ops::Activation::gelu_tanh},
    {"gelu_fast", ops::Activation::gelu_tanh}, {"gelu_pytorch_tanh", ops::Activation::gelu_tanh},
    {"relu", ops::Activation::relu},
};

constexpr Named<RopeScaling> kRopeTypes[] = {
    {"default", RopeScaling::none}, {"linear", RopeScaling::linear}, {"llama3", RopeScaling::llama3}};

constexpr Named<bool> kLayerTypes[] = {{"full_attention", false}, {"sliding_attention", true}};

void read_sizes(const ConfigReader& file, const Family& family, DecoderConfig& config) {
  const ConfigKeys& keys = family.keys;
  config.vocab_size = file.integer("vocab_size", 1, kMaxVocabulary);
  config.width = file.integer(keys.width, 1, kMaxWidth);
  config.layers = file.integer(keys.layers, 1, kMaxLayers);
  config.heads = file.integer(keys.heads, 1, kMaxWidth);
  config.mlp_width = file.integer(keys.mlp_width, 1, kMaxWidth,
                                  family.mlp_share > 0 ? std::optional(family.mlp_share * config.width) : std::nullopt);
  config.max_positions = file.integer(keys.max_positions, 1, kMaxPositions, family.max_positions);

  const bool as_heads = family.kv_heads == 0 || file.is_null(keys.kv_heads);
  config.kv_heads = file.integer(keys.kv_heads, 1, kMaxWidth, as_heads ? config.heads : family.kv_heads);
  if (config.heads % config.kv_heads != 0) {
    file.fail(keys.heads, "is " + std::to_string(config.heads) + ", no multiple of num_key_value_heads, " +
                              std::to_string(config.kv_heads));
  }
  const bool from_width = family.head_size == 0 || file.is_null("head_dim");
  if (from_width && !file.has("head_dim") && config.width % config.heads != 0) {
    file.fail(keys.width, "is " + std::to_string(config.width) + ", no multiple of " + std::string(keys.heads) + ", " +
                              std::to_string(config.heads));
  }
  config.head_size = file.integer("head_dim", 1, 65536, from_width ? config.width / config.heads : family.head_size);
  if (config.heads * config.head_size > kMaxWidth) file.fail("head_dim", "is too large for so many heads");
}

RopeConfig read_rope(const ConfigReader& file, const ConfigReader* scaling, const Family& family,
                     const DecoderConfig& config) {
  RopeConfig rope;
  const ConfigKeys& keys = family.keys;
  double share = file.number(keys.rotary_share, 1e-3, 1, family.rotary_share);
  rope.base = file.number(keys.rope_base, 1, 1e12, family.rope_base);
  if (scaling) {
    share = scaling->number("partial_rotary_factor", 1e-3, 1, share);
    rope.base = scaling->number("rope_theta", 1, 1e12, rope.base);
    const std::string_view key = scaling->has("rope_type") ? "rope_type" : "type";
    rope.scaling = choose(*scaling, key, scaling->text(key, "default"), kRopeTypes);
  }
  rope.size = static_cast<int64_t>(static_cast<double>(config.head_size) * share);
  if (rope.size < 2 || rope.size % 2 != 0) {
    file.fail("head_dim", "gives " + std::to_string(rope.size) + " rotated elements, which must be even");
  }
  if (rope.scaling != RopeScaling::none) rope.factor = scaling->number("factor", 1, 1e6);
  if (rope.scaling == RopeScaling::llama3) {
    rope.low_freq_factor = scaling->number("low_freq_factor", 1e-6, 1e6);
    rope.high_freq_factor = scaling->number("high_freq_factor", 1e-6, 1e6);
    rope.original_max_positions = scaling->integer("original_max_position_embeddings", 1, kMaxPositions);
    if (rope.low_freq_factor >= rope.high_freq_factor) {
      scaling->fail("low_freq_factor", "must be smaller than high_freq_factor");
    }
  }
  return rope;
}

// Transformers 5 writes rope_parameters (one, or one for each layer type), published files rope_scaling or nothing.
void read_ropes(const ConfigReader& file, const Family& family, DecoderConfig& config) {
  if (!family.rope) return;
  std::optional<ConfigReader> scaling = file.object("rope_parameters");
  if (!scaling) scaling = file.object("rope_scaling");
  if (scaling && scaling->has("full_attention")) {
    for (std::string_view type : {"full_attention", "sliding_attention"}) {
      const std::optional<ConfigReader> part = scaling->object(type);
      if (part) config.rope.push_back(read_rope(file, &*part, family, config));
    }
    return;
  }
  config.rope = {read_rope(file, scaling ? &*scaling : nullptr, family, config)};
}

// Whether each layer has a window, when the file does not say it layer by layer.
bool windowed(const ConfigReader& file, const Family& family, int64_t layer) {
  switch (family.window_rule) {
    case WindowRule::none:
      return false;
    case WindowRule::every:
      return true;
    case WindowRule::from_layer:
      return layer >= file.integer("max_window_layers", 0, kMaxLayers * 16, 28);
    case WindowRule::even:
      return layer % 2 == 0;
  }
  return false;
}

void read_layers(const ConfigReader& file, const Family& family, DecoderConfig& config) {
  int64_t window = 0;
  if (family.window_rule != WindowRule::none && !file.is_null("sliding_window")) {
    window = file.integer("sliding_window", 1, kMaxPositions, family.window);
  }
  if (family.window_rule == WindowRule::from_layer && !file.boolean("use_sliding_window", false)) window = 0;
  const std::vector<std::string> types = file.texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != config.layers) {
    file.fail("layer_types",
              "has " + std::to_string(types.size()) + " entries for " + std::to_string(config.layers) + " layers");
  }
  config.layer.resize(static_cast<size_t>(config.layers));
  for (size_t l = 0; l < config.layer.size(); ++l) {
    const bool sliding = types.empty() ? windowed(file, family, static_cast<int64_t>(l))
                                       : choose(file, "layer_types", types[l], kLayerTypes);
    config.layer[l].window = sliding ? window : 0;
    config.layer[l].rotary = sliding && config.rope.size() > 1 ? 1 : family.rope ? 0 : -1;
  }
}

void read_arithmetic(const ConfigReader& file, const Family& family, DecoderConfig& config) {
  const ConfigKeys& keys = family.keys;
  config.norm = family.norm;
  config.norm.eps = static_cast<float>(file.number(keys.norm_eps, 1e-12, 1, static_cast<double>(family.norm.eps)));
  config.activation = choose(file, keys.activation, file.text(keys.activation, family.activation), kActivations);
  config.gated_mlp = family.gated_mlp;
  config.parallel_residual = family.parallel_residual;
  config.qk_norm = family.qk_norm;
  config.output_bias = family.biases || (file.boolean("attention_bias", false) && !family.qkv_bias);
  config.qkv_bias = family.qkv_bias || config.output_bias;
  config.mlp_bias = family.biases || file.boolean("mlp_bias", false);
  config.tied_head = file.boolean("tie_word_embeddings", family.tied_head);
  config.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_size)));
  config.position_offset = family.position_offset;
  if (family.scaled_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  config.initializer_range = static_cast<float>(file.number("initializer_range", 0, 100, 0.02));
}

void read_special_ids(const ConfigReader& file, DecoderConfig& config) {
  const std::vector<int32_t> bos = file.ids("bos_token_id");
  if (!bos.empty()) config.bos_id = bos.front();
  if (file.has("eos_token_id")) config.eos_ids = file.ids("eos_token_id");
}

DecoderConfig parse(const nlohmann::json& json, const std::string& place) {
  const ConfigReader file(json, place);
  const std::vector<std::string> architectures = file.texts("architectures");
  const Family& family = find_family(file.text("model_type", ""), architectures.empty() ? "" : architectures[0], place);
  DecoderConfig config;
  config.model_type = family.model_type;
  config.architecture = family.architecture;
  config.names = family.names;
  read_sizes(file, family, config);
  read_ropes(file, family, config);
  read_layers(file, family, config);
  read_arithmetic(file, family, config);
  read_special_ids(file, config);
  if (family.finish) family.finish(file, config);
  return config;
}

}  // namespace

BlockConfig DecoderConfig::block(int64_t l) const {
  const LayerConfig& own = layer.at(static_cast<size_t>(l));
  BlockConfig made;
  made.attention.width = width;
  made.attention.heads = heads;
  made.attention.kv_heads = kv_heads;
  made.attention.head_size = head_size;
  made.attention.scale = attention_scale;
  made.attention.softcap = attention_softcap;
  made.attention.window = own.window;
  made.attention.rotary = own.rotary;
  made.attention.qkv_bias = qkv_bias;
  made.attention.output_bias = output_bias;
  made.attention.qkv_groups = qkv_groups;
  if (qk_norm) made.attention.qk_norm = norm;
  made.mlp = {.width = width, .hidden = mlp_width, .activation = activation, .gated = gated_mlp, .bias = mlp_bias};
  made.norm = norm;
  made.parallel_residual = parallel_residual;
  return made;
}

DecoderConfig parse_decoder_config(std::string_view json, const std::string& place) {
  return parse(parse_json(json, place), place);
}

DecoderConfig read_decoder_config(const std::filesystem::path& directory) {
  const std::vector<std::filesystem::path> roots = link_roots(directory);
  const std::filesystem::path file = directory / "config.json";
  DecoderConfig config = parse(read_json_file(follow_links_within(file, roots)), file.string());
  const std::filesystem::path generation = directory / "generation_config.json";
  if (std::filesystem::exists(generation)) {
    const nlohmann::json json = read_json_file(follow_links_within(generation, roots));
    const ConfigReader reader(json, generation.string());
    read_special_ids(reader, config);
  }
  return config;
}

}  // namespace nibble
