#pragma once
// Families whose layers have mixers other than attention: the last step of reading their config.json (Family::finish).

#include "nibble/core/models/families/config_reader.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/nn/mixers/linear_attention/gated_delta.h"
#include "nibble/core/nn/mixers/mamba2.h"
#include "nibble/core/nn/mixers/recurrent/mamba.h"
#include "nibble/core/nn/mixers/short_conv.h"

namespace nibble {

/// Their rows.
std::vector<Family> hybrid_families();

/// LayerConfig::mixer of a layer with a short convolution.
struct ShortConvMaker {
  ShortConvConfig config;
  std::unique_ptr<Mixer> operator()(const DecoderConfig& model, int64_t layer, const std::string& prefix,
                                    const Makers& makers) const;
};

/// The same of a state space, Mamba's or Mamba-2's.
template <typename Space, typename Config>
struct StateSpaceMaker {
  Config config;
  std::string module;  ///< below the layer's prefix
  std::unique_ptr<Mixer> operator()(const DecoderConfig&, int64_t, const std::string& prefix,
                                    const Makers& makers) const {
    return std::make_unique<Space>(prefix + module + ".", config, makers);
  }
};
using MambaMaker = StateSpaceMaker<Mamba, MambaConfig>;
using Mamba2Maker = StateSpaceMaker<Mamba2, Mamba2Config>;

/// The same of a gated delta net.
struct GatedDeltaMaker {
  std::string module;  ///< below the layer's prefix
  GatedDeltaNames names;
  GatedDeltaConfig config;
  std::unique_ptr<Mixer> operator()(const DecoderConfig& model, int64_t layer, const std::string& prefix,
                                    const Makers& makers) const;
};

/// The same of attention beside a state space (Falcon-H1).
struct MambaBesideAttentionMaker {
  Mamba2Maker mamba;
  float mamba_in = 1, mamba_out = 1, attention_in = 1, attention_out = 1;  ///< see SideBySide::Part
  std::unique_ptr<Mixer> operator()(const DecoderConfig& model, int64_t layer, const std::string& prefix,
                                    const Makers& makers) const;
};

/// The same of a block that layers share in front of a state space (Zamba 2).
struct SharedBlockMaker {
  Mamba2Maker mamba;
  LayerAdapterConfig adapters;
  bool attention_adapters = false;  ///< beside those of the MLP
  std::unique_ptr<Mixer> operator()(const DecoderConfig& model, int64_t layer, const std::string& prefix,
                                    const Makers& makers) const;
};

/// Which layers have attention, by layer_types, whose words for attention and for the other mixer are given; nothing
/// where the file does not say.
std::vector<bool> attention_layers(const ConfigReader& file, const DecoderConfig& config,
                                   std::initializer_list<std::string_view> attention,
                                   std::initializer_list<std::string_view> other);
/// Layers without attention get what `make` makes.
void set_mixers(DecoderConfig& config, const std::vector<bool>& attention, const SublayerMaker<Mixer>& make);

TensorNames lfm2_names();
TensorNames lfm2_moe_names();
TensorNames lfm3_names();
TensorNames mamba_names();
TensorNames jamba_names();
TensorNames bamba_names();
TensorNames olmo_hybrid_names();
TensorNames qwen3_next_names();
TensorNames kimi_names();
TensorNames bailing_names();
TensorNames lara_mini_names();
TensorNames granite_hybrid_names();
TensorNames nemotron_h_names();

void finish_lfm2(const ConfigReader& file, DecoderConfig& config);
void finish_lfm2_moe(const ConfigReader& file, DecoderConfig& config);
void finish_lfm3(const ConfigReader& file, DecoderConfig& config);
void finish_mamba(const ConfigReader& file, DecoderConfig& config);
void finish_jamba(const ConfigReader& file, DecoderConfig& config);
void finish_mamba2(const ConfigReader& file, DecoderConfig& config);
void finish_qwen3_5_moe(const ConfigReader& file, DecoderConfig& config);
void finish_olmo_hybrid(const ConfigReader& file, DecoderConfig& config);
void match_olmo_hybrid(const TensorShapes& files, DecoderConfig& config);
void finish_kimi_linear(const ConfigReader& file, DecoderConfig& config);
void match_kimi_linear(const TensorShapes& files, DecoderConfig& config);
void finish_bailing_hybrid(const ConfigReader& file, DecoderConfig& config);
void finish_lara_mini(const ConfigReader& file, DecoderConfig& config);
void finish_qwen3_5(const ConfigReader& file, DecoderConfig& config);
void finish_qwen3_next(const ConfigReader& file, DecoderConfig& config);
void finish_falcon_h1(const ConfigReader& file, DecoderConfig& config);
void finish_bamba(const ConfigReader& file, DecoderConfig& config);
void finish_granite_hybrid(const ConfigReader& file, DecoderConfig& config);
void finish_nemotron_h(const ConfigReader& file, DecoderConfig& config);

}  // namespace nibble
