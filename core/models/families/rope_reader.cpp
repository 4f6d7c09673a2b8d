#include "nibble/core/models/families/rope_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/families/config_reader.h"
#include "nibble/core/models/families/family_rules.h"

namespace nibble {

namespace {

RopeScaling read_scaling(const ConfigReader& scaling, const Family& family) {
  const std::string type = scaling.text("rope_type|type", "default");
  // The first Phi-3 files say su, and for a while yarn, for what is now longrope.
  if (type == "su" || (type == "yarn" && family.model_type == "phi3")) return RopeScaling::longrope;
  if (type == "default" || type == "mrope") return RopeScaling::none;
  if (type == "linear") return RopeScaling::linear;
  if (type == "dynamic") return RopeScaling::dynamic;
  if (type == "yarn" || type == "deepseek_yarn") return RopeScaling::yarn;  // the latter in files of Sarvam
  if (type == "longrope") return RopeScaling::longrope;
  if (type == "llama3") return RopeScaling::llama3;
  if (type == "proportional") return RopeScaling::proportional;
  scaling.fail("rope_type|type", "is unknown: " + type,
               "known: default, linear, dynamic, yarn, longrope, llama3, proportional");
}

// The length of the texts the model was first trained on.
int64_t read_original(const ConfigReader& file, const ConfigReader& scaling, const Family& family,
                      const DecoderConfig& config) {
  const std::string_view key = "original_max_position_embeddings";
  if (file.has(key) || family.original_max_positions > 0) {
    return file.integer(key, 1, kMaxPositions, family.original_max_positions);
  }
  return scaling.integer(key, 1, kMaxPositions, config.max_positions);
}

void read_llama3(const ConfigReader& scaling, RopeConfig& rope) {
  rope.factor = scaling.number("factor", 1, 1e6);
  rope.low_freq_factor = scaling.number("low_freq_factor", 1e-6, 1e6);
  rope.high_freq_factor = scaling.number("high_freq_factor", 1e-6, 1e6);
  if (rope.low_freq_factor > rope.high_freq_factor) {  // equal ones: nothing lies between (Llama 4)
    scaling.fail("low_freq_factor", "must not be larger than high_freq_factor");
  }
}

double read_stretch(const ConfigReader& scaling, const RopeConfig& rope, const DecoderConfig& config) {
  const double lengths = static_cast<double>(config.max_positions) / static_cast<double>(rope.original_max_positions);
  return scaling.number("factor", 1e-3, 1e6, lengths);
}

void read_yarn(const ConfigReader& scaling, const DecoderConfig& config, RopeConfig& rope) {
  rope.factor = read_stretch(scaling, rope, config);
  rope.beta_fast = scaling.number("beta_fast", 0, 1e6, 32);
  rope.beta_slow = scaling.number("beta_slow", 0, 1e6, 1);
  if (rope.beta_fast == 0) rope.beta_fast = 32;  // as absent
  if (rope.beta_slow == 0) rope.beta_slow = 1;
  rope.truncate = scaling.boolean("truncate", true);
  const auto magnitude = [&](double times) { return rope.factor <= 1 ? 1 : 0.1 * times * std::log(rope.factor) + 1; };
  const double own = scaling.number("mscale", -1e6, 1e6, 0), all = scaling.number("mscale_all_dim", -1e6, 1e6, 0);
  const double natural = own != 0 && all != 0 ? magnitude(own) / magnitude(all) : magnitude(1);
  rope.magnitude = scaling.number("attention_factor", 0, 1e6, natural);
}

void read_longrope(const ConfigReader& scaling, const DecoderConfig& config, RopeConfig& rope) {
  rope.factor = read_stretch(scaling, rope, config);
  const double log_length = std::log(static_cast<double>(rope.original_max_positions));
  const double natural = rope.factor <= 1 ? 1 : std::sqrt(1 + std::log(rope.factor) / log_length);
  rope.magnitude = scaling.number("attention_factor", 0, 1e6, natural);
  const auto read_factors = [&](std::string_view key) {
    const std::vector<double> factors = scaling.numbers(key, 1e-6, 1e9);
    if (static_cast<int64_t>(factors.size()) != rope.size / 2) {
      scaling.fail(key, "has " + std::to_string(factors.size()) + " entries for " + std::to_string(rope.size / 2) +
                            " pairs of rotated elements");
    }
    return std::vector<float>(factors.begin(), factors.end());
  };
  rope.short_factors = read_factors("short_factor");
  rope.long_factors = read_factors("long_factor");
}

// What `scaling` leaves unsaid is `share` and `base`.
RopeConfig read_rope(const ConfigReader& file, const ConfigReader* scaling, double share, double base,
                     const Family& family, const DecoderConfig& config) {
  RopeConfig rope;
  rope.pairs = family.rope_pairs;
  rope.backwards = family.rope_backwards;
  rope.base = base;
  if (scaling) {
    if (!family.keys.rotary_share.empty()) share = scaling->number("partial_rotary_factor", 1e-3, 1, share);
    rope.base = scaling->number("rope_theta", 1, 1e12, base);
    rope.scaling = read_scaling(*scaling, family);
  }
  const auto rotated = static_cast<int64_t>(static_cast<double>(config.head_size) * share);
  rope.size = (rotated + 1) / 2 * 2;  // as Transformers: an odd share is rounded up, its exponents are not
  if (rope.size != rotated) rope.exponent_size = rotated;
  if (rotated < 1 || rope.size > config.head_size) {
    file.fail("head_dim", "gives " + std::to_string(rotated) + " rotated elements, which must be even");
  }
  switch (rope.scaling) {
    case RopeScaling::none:
      break;
    case RopeScaling::proportional:
      rope.factor = scaling->number("factor", 1e-3, 1e6, 1);
      rope.turned = static_cast<int64_t>(static_cast<double>(config.head_size) * share / 2) * 2;
      rope.size = config.head_size;
      rope.exponent_size = 0;
      break;
    case RopeScaling::linear:
      rope.factor = scaling->number("factor", 1e-3, 1e6);
      break;
    case RopeScaling::dynamic:
      if (rotated < 4) file.fail("head_dim", "is too small for dynamic rope");
      if (const double alpha = family.rope_alpha ? scaling->number("alpha", 0, 1e9, 0) : 0; alpha > 0) {
        rope.scaling = RopeScaling::none;
        rope.base *= std::pow(alpha, static_cast<double>(rope.size) / static_cast<double>(rope.size - 2));
        break;
      }
      rope.factor = scaling->number("factor", 1, 1e6);
      rope.original_max_positions = config.max_positions;
      break;
    case RopeScaling::yarn:
      rope.original_max_positions = read_original(file, *scaling, family, config);
      read_yarn(*scaling, config, rope);
      break;
    case RopeScaling::longrope:
      rope.original_max_positions = read_original(file, *scaling, family, config);
      read_longrope(*scaling, config, rope);
      break;
    case RopeScaling::llama3:
      rope.original_max_positions = read_original(file, *scaling, family, config);
      read_llama3(*scaling, rope);
      break;
  }
  return rope;
}

}  // namespace

void read_ropes(const ConfigReader& file, const Family& family, DecoderConfig& config) {
  if (family.rope == RopeRule::none || family.rope == RopeRule::own) return;
  const ConfigKeys& keys = family.keys;
  const double share = file.number(keys.rotary_share, 1e-3, 1, family.rotary_share);
  const double base = file.number(keys.rope_base, 1, 1e12, family.rope_base);
  const double local_base = file.number("rope_local_base_freq", 1, 1e12, family.local_rope_base);
  const std::optional<ConfigReader> published = file.object("rope_scaling");
  std::optional<ConfigReader> parameters = file.object("rope_parameters");
  const std::string of_family = "rope of " + std::string(family.model_type);
  nlohmann::json absent;
  if (!published && !parameters && !family.rope_parameters.empty()) {
    absent = parse_json(family.rope_parameters, of_family);
    parameters.emplace(absent, of_family);
  }
  const bool by_layer_type = parameters && (parameters->has("full_attention") || parameters->has("sliding_attention"));
  if (!by_layer_type && family.local_rope_base == 0) {
    const std::optional<ConfigReader>& scaling = published ? published : parameters;
    config.rope = {read_rope(file, scaling ? &*scaling : nullptr, share, base, family, config)};
    if (family.scaled_queries && scaling) {
      config.query_scaling.beta = scaling->number("llama_4_scaling_beta", 0, 1e6, 0);
      config.query_scaling.length = read_original(file, *scaling, family, config);
    }
    return;
  }
  const auto part = [&](std::string_view type) { return by_layer_type ? parameters->object(type) : std::nullopt; };
  const std::optional<ConfigReader> full = published ? published : part("full_attention");
  const std::optional<ConfigReader> sliding = part("sliding_attention");
  config.rope = {read_rope(file, full ? &*full : nullptr, share, base, family, config),
                 read_rope(file, sliding ? &*sliding : nullptr, share, family.local_rope_base > 0 ? local_base : base,
                           family, config)};
}

}  // namespace nibble
