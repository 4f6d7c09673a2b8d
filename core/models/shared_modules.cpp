#include "nibble/core/models/shared_modules.h"

#include <algorithm>
#include <charconv>

namespace nibble {

namespace {

// The layer of a name below `layers`, -1 for others.
int64_t layer_in(const std::string& name, const std::string& layers) {
  int64_t layer = -1;
  if (name.starts_with(layers)) std::from_chars(name.data() + layers.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

int64_t first_layer_of_block(const DecoderConfig& config, const std::string& name) {
  const std::string& layers = config.names.layers;
  const int64_t l = layer_in(name, layers);
  if (l < 0 || l >= config.layers) return -1;
  const int64_t first = config.layer[static_cast<size_t>(l)].block_of;
  if (first < 0 || !name.starts_with(layers + std::to_string(l) + "." + config.names.block.shared.block)) return -1;
  return std::ranges::count(config.layer, first, &LayerConfig::block_of) > 1 ? first : -1;
}

bool shares_blocks(const DecoderConfig& config) {
  int64_t l = 0;
  return std::ranges::any_of(config.layer, [&](const LayerConfig& of) {
    const int64_t own = l++;
    return of.block_of >= 0 && of.block_of != own;
  });
}

std::string name_in_first_layer(const DecoderConfig& config, const std::string& name) {
  const int64_t first = first_layer_of_block(config, name);
  if (first < 0) return name;
  return config.names.layers + std::to_string(first) + name.substr(name.find('.', config.names.layers.size()));
}

Makers SharedModules::makers(const Makers& unshared) {
  Makers result = unshared;
  result.linear = [this, make = unshared.linear](const std::string& module, const Shape& shape) {
    if (first_layer_of_block(config_, module) < 0) return make(module, shape);
    const std::string first = name_in_first_layer(config_, module);
    const auto found = weights_.find(first);
    if (found != weights_.end()) return found->second->share();
    std::unique_ptr<LinearWeight> weight = make(first, shape);
    weights_[first] = weight->share();
    return weight;
  };
  result.parameter = [this, make = unshared.parameter](const std::string& name, const Shape& shape) {
    if (first_layer_of_block(config_, name) < 0) return make(name, shape);
    const std::string first = name_in_first_layer(config_, name);
    std::shared_ptr<Parameter>& parameter = parameters_[first];
    if (!parameter) parameter = make(first, shape);
    return parameter;
  };
  return result;
}

}  // namespace nibble
