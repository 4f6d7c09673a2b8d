#pragma once
// Blocks that several layers share (LayerConfig::block_of): whose name their modules have, and that they are made once.

#include <map>
#include <memory>
#include <string>

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/nn/makers.h"

namespace nibble {

/// Of a module, or tensor, of a block that several layers share: the first of these layers, -1 for anything else.
int64_t first_layer_of_block(const DecoderConfig& config, const std::string& name);
/// Whether there is any.
bool shares_blocks(const DecoderConfig& config);
/// Its name in that layer, under which checkpoints have it; other names as they are.
std::string name_in_first_layer(const DecoderConfig& config, const std::string& name);

/// Makers of layers, in their order.
class SharedModules {
 public:
  /// config must outlive this and the makers.
  explicit SharedModules(const DecoderConfig& config) : config_(config) {}
  /// Those of `unshared`, but for what is in a block that several layers share: the first layer's, and made once.
  Makers makers(const Makers& unshared);

 private:
  const DecoderConfig& config_;
  std::map<std::string, std::unique_ptr<LinearWeight>> weights_;
  std::map<std::string, std::shared_ptr<Parameter>> parameters_;
};

}  // namespace nibble
