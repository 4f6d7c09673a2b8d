#include "nibble/core/models/decoder_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/families/config_reader.h"
#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/models/families/rope_reader.h"
#include "nibble/core/models/families/towers/composites.h"
#include "nibble/core/nn/feed_forward/experts.h"
#include "nibble/core/tensor/bfloat16.h"

namespace nibble {

namespace {

constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;

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

// hidden_act and what families call it (ConfigKeys::activation), by the names of Transformers' ACT2FN.
constexpr Named<ops::Activation> kActivations[] = {
    {"silu", ops::Activation::silu},
    {"swish", ops::Activation::silu},
    {"gelu", ops::Activation::gelu_erf},
    {"gelu_new", ops::Activation::gelu_tanh},
    {"gelu_fast", ops::Activation::gelu_tanh},
    {"gelu_pytorch_tanh", ops::Activation::gelu_tanh},
    {"gelu_accurate", ops::Activation::gelu_tanh},
    {"gelu_python", ops::Activation::gelu_erf},
    {"gelu_python_tanh", ops::Activation::gelu_tanh},
    {"quick_gelu", ops::Activation::gelu_sigmoid},
    {"relu", ops::Activation::relu},
    {"relu2", ops::Activation::relu_squared},
};

constexpr Named<bool> kLayerTypes[] = {{"full_attention", false}, {"sliding_attention", true}};

void read_sizes(const ConfigReader& file, const Family& family, DecoderConfig& config) {
  const ConfigKeys& keys = family.keys;
  config.vocab_size = file.integer("vocab_size", 1, kMaxVocabulary);
  config.width = file.integer(keys.width, 1, kMaxWidth);
  config.embedding_width = config.width;
  const auto listed =
      static_cast<int64_t>(file.texts("layers_block_type").size());  // Nemotron-H says no more than that
  config.layers = file.integer(keys.layers, 1, kMaxLayers, listed > 0 ? std::optional(listed) : std::nullopt);
  config.heads = keys.heads.empty() ? 1 : file.integer(keys.heads, 1, kMaxWidth);
  config.mlp_width = file.integer(keys.mlp_width, 1, kMaxWidth,
                                  family.mlp_share > 0 ? std::optional(family.mlp_share * config.width) : std::nullopt);
  config.max_positions = file.integer(keys.max_positions, 1, kMaxPositions, family.max_positions);

  const bool as_heads = family.kv_heads == 0 || file.is_null(keys.kv_heads);
  config.kv_heads = file.integer(keys.kv_heads, 1, kMaxWidth, as_heads ? config.heads : family.kv_heads);
  if (config.heads % config.kv_heads != 0) {
    file.fail(keys.heads, "is " + std::to_string(config.heads) + ", no multiple of num_key_value_heads, " +
                              std::to_string(config.kv_heads));
  }
  const bool from_width = family.head_size == 0 || file.is_null(keys.head_size);
  const int64_t of_heads = family.attention_share * config.width;
  if (from_width && !file.has(keys.head_size) && of_heads % config.heads != 0) {
    file.fail(keys.width, "is " + std::to_string(config.width) + ", no multiple of " + std::string(keys.heads) + ", " +
                              std::to_string(config.heads));
  }
  config.head_size = file.integer(keys.head_size, 1, 65536, from_width ? of_heads / config.heads : family.head_size);
  if (config.heads * config.head_size > kMaxWidth) file.fail("head_dim", "is too large for so many heads");
}

// Whether each layer has a window, when the file does not say it layer by layer.
bool windowed(const ConfigReader& file, const Family& family, int64_t layer, int rotary) {
  switch (family.window_rule) {
    case WindowRule::none:
    case WindowRule::listed:
      return false;
    case WindowRule::every:
    case WindowRule::types:
      return true;
    case WindowRule::after:
    case WindowRule::from_layer:
      return layer >= file.integer("max_window_layers", 0, kMaxLayers * 16, family.window_from);
    case WindowRule::even:
      return layer % 2 == 0;
    case WindowRule::period:
      return (layer + 1) % file.integer(family.keys.window_period, 1, kMaxLayers, family.window_period) != 0;
    case WindowRule::but_first:
      return layer % file.integer(family.keys.window_period, 1, kMaxLayers, family.window_period) != 0;
    case WindowRule::nope:
      return rotary < 0;
  }
  return false;
}

// Layers with rope, where that does not depend on their windows.
std::vector<bool> read_rotated_layers(const ConfigReader& file, const Family& family, const DecoderConfig& config) {
  std::vector<bool> rotated(static_cast<size_t>(config.layers), family.rope != RopeRule::none);
  if (family.rope != RopeRule::listed) return rotated;
  const std::vector<double> listed = file.numbers("no_rope_layers", 0, 1);
  if (!listed.empty() && listed.size() < rotated.size()) {
    file.fail("no_rope_layers",
              "has " + std::to_string(listed.size()) + " entries for " + std::to_string(config.layers) + " layers");
  }
  const int64_t interval = file.integer("no_rope_layer_interval", 1, kMaxLayers * 16, 4);
  for (size_t l = 0; l < rotated.size(); ++l) {
    rotated[l] = listed.empty() ? static_cast<int64_t>(l + 1) % interval != 0 : listed[l] != 0;
  }
  return rotated;
}

void read_layers(const ConfigReader& file, const Family& family, DecoderConfig& config) {
  const WindowRule rule = family.window_rule;
  int64_t window = 0;
  if (rule != WindowRule::none && !file.is_null(family.keys.window)) {
    window = file.integer(family.keys.window, 0, kMaxPositions, family.window);
  }
  // Where every layer has the window, or none, Transformers does not look at layer_types.
  const bool by_type = rule != WindowRule::none && rule != WindowRule::every;
  const std::vector<std::string> types = by_type ? file.texts("layer_types") : std::vector<std::string>();
  if (!types.empty() && static_cast<int64_t>(types.size()) != config.layers) {
    file.fail("layer_types",
              "has " + std::to_string(types.size()) + " entries for " + std::to_string(config.layers) + " layers");
  }
  const bool asked = rule == WindowRule::from_layer || (rule == WindowRule::nope && types.empty());
  if (asked && !file.boolean("use_sliding_window", false)) window = 0;
  const std::vector<bool> rotated = read_rotated_layers(file, family, config);
  config.layer.resize(static_cast<size_t>(config.layers));
  for (size_t l = 0; l < config.layer.size(); ++l) {
    LayerConfig& layer = config.layer[l];
    layer.rotary = rotated[l] ? 0 : -1;
    const bool sliding = types.empty() ? windowed(file, family, static_cast<int64_t>(l), layer.rotary)
                                       : choose(file, "layer_types", types[l], kLayerTypes);
    layer.window = sliding ? window : 0;
    const bool only_windowed =
        family.rope == RopeRule::windowed || (family.rope == RopeRule::windowed_or_all && window > 0);
    if (only_windowed && layer.window == 0) layer.rotary = -1;
    layer.scaled_queries = config.query_scaling.beta != 0;
    if (sliding && layer.rotary >= 0 && config.rope.size() > 1) layer.rotary = 1;
  }
}

void read_arithmetic(const ConfigReader& file, const Family& family, DecoderConfig& config) {
  const ConfigKeys& keys = family.keys;
  config.norm = family.norm;
  config.norm.eps = static_cast<float>(file.number(keys.norm_eps, 1e-12, 1, static_cast<double>(family.norm.eps)));
  const std::string activation = file.text(keys.activation, family.activation);
  config.xielu = activation == "xielu" && !family.gated_mlp;
  if (!config.xielu) config.activation = choose(file, keys.activation, activation, kActivations);
  config.gated_mlp = family.gated_mlp;
  config.parallel_residual = family.parallel_residual;
  if (family.qk_norm) config.qk_norm = HeadNormConfig{.kind = *family.qk_norm, .norm = config.norm};
  if (config.qk_norm) config.qk_norm->norm.weight = family.qk_norm_weight;
  config.qk_norm_after_rope = family.qk_norm_after_rope;
  config.sublayer_norms = family.sublayer_norms;
  config.output_bias = family.biases || file.boolean(keys.output_bias, family.output_bias);
  config.qkv_bias = family.biases || file.boolean(keys.qkv_bias, family.qkv_bias);
  config.mlp_bias = family.biases || file.boolean(keys.mlp_bias, family.mlp_bias);
  config.tied_head = file.boolean("tie_word_embeddings", family.tied_head);
  config.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_size)));
  config.position_offset = family.position_offset;
  if (family.scaled_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  config.initializer_range = static_cast<float>(file.number("initializer_range|init_std", 0, 100, 0.02));
}

void read_special_ids(const ConfigReader& file, DecoderConfig& config) {
  const std::vector<int32_t> bos = file.ids("bos_token_id");
  if (!bos.empty()) config.bos_id = bos.front();
  if (file.has("eos_token_id")) config.eos_ids = file.ids("eos_token_id");
}

void read_padding(const ConfigReader& file, const Family& family, DecoderConfig& config) {
  const std::vector<int32_t> ids = file.ids("pad_token_id");
  const bool given = file.has("pad_token_id"), is_null = file.is_null("pad_token_id");
  config.pad_id = !ids.empty() ? ids.front() : given || is_null ? -1 : family.pad_id;
  if (!family.padded_table || (config.pad_id < 0 && !given)) return;
  const int64_t row = config.pad_id < 0 ? config.vocab_size - 1 : config.pad_id;  // PyTorch counts -1 from the end
  if (row < config.vocab_size) config.padding = static_cast<int32_t>(row);
}

DecoderConfig read_text(const ConfigReader& file, const Family& family) {
  DecoderConfig config;
  config.model_type = config.family = family.model_type;
  config.architecture = family.architecture.substr(0, family.architecture.find('|'));
  config.names = family.names;
  read_sizes(file, family, config);
  read_ropes(file, family, config);
  read_layers(file, family, config);
  read_arithmetic(file, family, config);
  read_special_ids(file, config);
  if (family.finish) family.finish(file, config);
  read_balance(file, config, family.aux_loss_coef);
  read_padding(file, family, config);
  return config;
}

DecoderConfig read_matched(const ConfigReader& file, const Family& family, const TensorShapes& files,
                           const std::function<void(DecoderConfig&)>& place_text = nullptr) {
  DecoderConfig config = read_text(file, family);
  if (place_text) place_text(config);
  if (files && family.match_files) family.match_files(files, config);
  if (files && config.experts) match_fused_experts(files, config);
  return config;
}

constexpr std::string_view kClassifies = "ForSequenceClassification";

// Transformers writes id2label, and num_labels only where they have no names; two are its default.
DecoderConfig read_score_head(const nlohmann::json& json, const ConfigReader& file, DecoderConfig config) {
  constexpr int64_t kMostLabels = 1 << 20;
  const auto names = json.find("id2label");
  const bool named = names != json.end() && names->is_object() && !names->empty();
  config = with_score_head(std::move(config),
                           named ? static_cast<int64_t>(names->size()) : file.integer("num_labels", 1, kMostLabels, 2),
                           true);
  config.problem_type = file.text("problem_type", "");
  return config;
}

// files: what stands beside config.json; null where that is not known.
DecoderConfig parse(const nlohmann::json& json, const std::string& place, const TensorShapes& files = nullptr) {
  const ConfigReader whole(json, place);
  const std::vector<std::string> architectures = whole.texts("architectures");
  const std::string model_type = whole.text("model_type", "");
  std::string architecture = architectures.empty() ? "" : architectures[0];
  if (!model_type.empty() && architecture.ends_with(kClassifies)) {  // of which model_type tells the rest
    nlohmann::json body = json;
    body.erase("architectures");
    return read_score_head(json, whole, parse(body, place, files));
  }
  const Composite* composite = find_composite(model_type, architecture);
  if (!composite) return read_matched(whole, find_family(model_type, architecture, place), files);
  const nlohmann::json text = text_config(json, *composite, place);
  const ConfigReader file(text, place, json.contains("text_config") ? "text_config." : "");
  return read_matched(file, find_family(file.text("model_type", composite->text), "", place), files,
                      [&](DecoderConfig& config) { place_beside_towers(json, *composite, files, config); });
}

// Geometric from 2^(-8 / n) for n heads, a power of two; those beyond it lie between (Press et al. 2021).
std::vector<float> alibi_slopes(int64_t heads, Alibi kind) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<float> slopes;
  const auto add = [&](int64_t steps, int64_t exponent) {
    const float base = static_cast<float>(std::exp2(-8.0 / static_cast<double>(steps)));
    const float slope = static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    slopes.push_back(kind == Alibi::rounded ? static_cast<float>(bf16(slope)) : slope);
  };
  for (int64_t h = 1; h <= power; ++h) add(power, h);
  for (int64_t h = 1; static_cast<int64_t>(slopes.size()) < heads; h += 2) add(2 * power, h);
  return slopes;
}

}  // namespace

ops::Activation activation_of(const Family& family) {
  const auto* found = std::ranges::find(kActivations, family.activation, &Named<ops::Activation>::name);
  NIBBLE_CHECK(found != std::end(kActivations), "an activation by a name");
  return found->value;
}

BlockConfig DecoderConfig::block() const {
  return {.width = width,
          .norm = norm,
          .norm_place = norm_place,
          .parallel_residual = parallel_residual,
          .residual_scale = residual_scale,
          .mixed_scale = mixed_scale};
}

AttentionConfig DecoderConfig::attention(int64_t l) const {
  const LayerConfig& own = layer.at(static_cast<size_t>(l));
  AttentionConfig result;
  result.width = width;
  result.heads = own.heads > 0 ? own.heads : heads;
  result.kv_heads = own.kv_heads > 0 ? own.kv_heads : kv_heads;
  result.head_size = own.head_size > 0 ? own.head_size : head_size;
  result.scale = own.attention_scale > 0 ? own.attention_scale : attention_scale;
  result.softcap = attention_softcap;
  result.window = own.window;
  result.chunk = own.chunk;
  result.rotary = own.rotary;
  result.qkv_bias = qkv_bias;
  result.output_bias = output_bias;
  result.qkv_groups = qkv_groups;
  result.value_before_key = value_before_key;
  if (own.qk_norm) result.qk_norm = qk_norm;
  result.qk_norm_after_rope = qk_norm_after_rope;
  result.v_norm = v_norm;
  result.scaled_queries = own.scaled_queries;
  result.values_are_keys = own.values_are_keys;
  result.keys_from = own.keys_from;
  result.shared_as = own.shared_as;
  result.sinks = attention_sinks && own.sinks;
  result.value_size = value_size;
  result.value_scale = value_scale;
  result.gate = attention_gate;
  if (sublayer_norms) result.output_norm = norm;
  result.qkv_clip = qkv_clip;
  if (alibi != Alibi::none) {
    result.alibi_slopes = alibi_slopes(result.heads, alibi);
    if (alibi == Alibi::rounded) result.alibi_rounded_scale = attention_scale;
  }
  return result;
}

MlpConfig DecoderConfig::mlp(int64_t l) const {
  const LayerConfig& own = layer.at(static_cast<size_t>(l));
  return {.width = width,
          .hidden = own.mlp_width > 0 ? own.mlp_width : mlp_width,
          .activation = activation,
          .gated = gated_mlp,
          .bias = mlp_bias,
          .gate_scale = mlp_gate_scale,
          .output_scale = mlp_output_scale,
          .xielu = xielu,
          .inner_norm = sublayer_norms ? std::optional(norm) : std::nullopt,
          .gate_cutoff = own.gate_cutoff};
}

bool DecoderConfig::layers_share_activations() const {
  return layer_input_size > 0 || has_shared_blocks() ||
         std::ranges::any_of(layer, [](const LayerConfig& of) { return of.keys_from >= 0; });
}

void DecoderConfig::check_stages(bool all_layers) const {
  if (all_layers || !layers_share_activations()) return;
  throw UsageError("layers of " + model_type + " read what others made, so they cannot be on several ranks",
                   "use parallel.shard", "parallel.pipeline");
}

bool DecoderConfig::has_shared_blocks() const {
  return std::ranges::any_of(layer, [](const LayerConfig& of) { return of.block_of >= 0; });
}

std::optional<RouterBalance> DecoderConfig::router_balance() const {
  if (!experts || router_aux_loss_coef == 0) return std::nullopt;
  return RouterBalance(experts->experts, static_cast<double>(router_aux_loss_coef));
}

void DecoderConfig::use_experts(int64_t l) {
  layer.at(static_cast<size_t>(l)).feed_forward = [](const DecoderConfig& config, int64_t, const std::string& prefix,
                                                     const Makers& makers) {
    return std::make_unique<Experts>(prefix, config.names.block.experts, config.experts.value(), makers);
  };
}

int64_t DecoderConfig::position_limit() const {
  if (longest_text > 0) return longest_text;
  return names.positions.empty() ? std::numeric_limits<int32_t>::max() : max_positions;
}

int64_t DecoderConfig::head_rows() const {
  if (score_labels > 0) return score_labels;
  return output_vocab_size > 0 ? std::min(output_vocab_size, vocab_size) : vocab_size;
}

bool DecoderConfig::documents_may_share() const {
  const auto attends = [](const LayerConfig& of) {
    return !of.has_mixer || (of.mixer ? of.mixer_attends : of.chunk == 0);
  };
  return !router_balance() && std::ranges::all_of(layer, attends) && std::ranges::none_of(rope, &RopeConfig::by_length);
}

bool DecoderConfig::cache_holds(int64_t before, int64_t after) const {
  return std::none_of(rope.begin(), rope.end(), [&](const RopeConfig& kind) {
    return kind.scaling == RopeScaling::longrope && before <= kind.original_max_positions &&
           after > kind.original_max_positions;
  });
}

DecoderConfig with_score_head(DecoderConfig config, int64_t labels, bool in_files) {
  config.score_labels = labels;
  if (!in_files) config.replaced_head = config.names.head;
  config.names.head = kScoreHead;
  config.tied_head = config.head_bias = false;
  config.logit_scale = 1;
  config.logit_softcap = 0;
  return config;
}

std::string score_architecture(const DecoderConfig& config) {
  const std::string& name = config.architecture;
  for (const std::string_view end : {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size()) + std::string(kClassifies);
  }
  return name + std::string(kClassifies);
}

DecoderConfig parse_decoder_config(std::string_view json, const std::string& place) {
  return parse(parse_json(json, place, kModelConfigJson), place);
}

DecoderConfig parse_decoder_config(std::string_view json, const std::string& place, const Family& family) {
  return read_text(ConfigReader(parse_json(json, place, kModelConfigJson), place), family);
}

DecoderConfig parse_decoder_config(std::string_view json, const std::string& place, const TensorShapes& files) {
  return parse(parse_json(json, place, kModelConfigJson), place, files);
}

DecoderConfig read_decoder_config(const std::filesystem::path& directory) {
  const std::vector<std::filesystem::path> roots = link_roots(directory);
  const std::filesystem::path file = directory / "config.json";
  if (!std::filesystem::exists(file)) {
    if (std::filesystem::exists(directory / "adapter_config.json")) {
      throw InputError(directory.string(), "is an adapter",
                       "name it with --adapter or adapter.path, and its base as the model");
    }
    throw InputError(directory.string(), "has no config.json",
                     "give a model's directory in Hugging Face's layout; a GGUF file has to be imported first");
  }
  std::optional<CheckpointDir> weights;  // many configurations need no look at them
  const auto shape_of = [&](const std::string& tensor) -> std::optional<Shape> {
    if (!weights) weights.emplace(directory);
    return weights->contains(tensor) ? std::optional(weights->find(tensor).shape()) : std::nullopt;
  };
  DecoderConfig config = parse(read_json_file(follow_links_within(file, roots), kModelConfigJson), file.string(),
                               holds_weights(directory) ? TensorShapes(shape_of) : nullptr);
  const std::filesystem::path generation = directory / "generation_config.json";
  if (std::filesystem::exists(generation)) {
    const nlohmann::json json = read_json_file(follow_links_within(generation, roots));
    const ConfigReader reader(json, generation.string());
    read_special_ids(reader, config);
  }
  return config;
}

}  // namespace nibble
