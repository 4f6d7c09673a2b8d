#include "nibble/core/models/decoder_parts.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace nibble {

namespace {

// The Linears NAME.0, NAME.1, ... of all residual streams but the first; nothing where there is one.
std::optional<StreamEnds> make_streams(const DecoderConfig& config, const std::string& name, const Makers& makers) {
  if (config.streams == 1) return std::nullopt;
  StreamEnds ends;
  for (int64_t n = 1; n < config.streams; ++n) {
    ends.linears.push_back(makers.make_linear(name + "." + std::to_string(n - 1), config.width, config.width, false));
  }
  return ends;
}

}  // namespace

InputStage make_input(const DecoderConfig& config, const Makers& makers) {
  const TensorNames& names = config.names;
  const Shape table = {config.vocab_size, config.embedding_width};
  InputStage input{.embedding = Embedding(names.embedding, makers.parameter(names.embedding + ".weight", table))};
  input.embedding.set_padding(config.padding);
  input.embedding_scale = config.embedding_scale;
  if (config.noise_is_scaled) input.noise_scale = config.embedding_scale;
  input.position_offset = config.position_offset;
  input.fixed_positions = config.fixed_positions;
  if (!names.project_in.empty()) {
    input.project = makers.make_linear(names.project_in, config.width, config.embedding_width, false);
  }
  if (!names.positions.empty()) {
    const Shape shape = {config.max_positions + config.position_offset, config.width};
    input.positions.emplace(names.positions, makers.parameter(names.positions + ".weight", shape));
  }
  if (!names.embedding_norm.empty())
    input.norm.emplace(names.embedding_norm, config.width, config.norm, makers.parameter);
  if (config.layer_input_size > 0) {
    const LayerInputTableNames& own = names.layer_inputs;
    const int64_t columns = config.layers * config.layer_input_size;
    const Shape rows = {config.layer_input_vocabulary, columns};
    input.layer_inputs.emplace(
        LayerInputs{.table = Embedding(own.embedding, makers.parameter(own.embedding + ".weight", rows)),
                    .projection = makers.make_linear(own.projection, columns, config.width, false),
                    .norm = Norm(own.norm, config.layer_input_size, config.norm, makers.parameter),
                    .layers = config.layers});
    input.layer_inputs->table.set_padding(config.padding);
  }
  input.read_again = config.has_shared_blocks();
  input.streams = make_streams(config, names.split_streams, makers);
  return input;
}

Block make_block(const DecoderConfig& config, int64_t l, const LayerSharding* sharding, const Makers& makers) {
  const LayerConfig& layer = config.layer.at(static_cast<size_t>(l));
  const BlockNames& names = config.names.block;
  const std::string prefix = config.names.layers + std::to_string(l) + ".";
  const auto attention = [&] {
    const AttentionConfig global = config.attention(l);
    return std::make_unique<Attention>(prefix, names.attention, sharding ? sharding->attention(global) : global,
                                       makers);
  };
  const auto mlp = [&] {
    const MlpConfig global = config.mlp(l);
    return std::make_unique<Mlp>(prefix, names.mlp, sharding ? sharding->mlp(global) : global, makers);
  };
  NormNames norms = layer.norms ? *layer.norms : static_cast<const NormNames&>(names);
  std::unique_ptr<Mixer> mixer;
  if (layer.has_mixer) {
    mixer = layer.mixer ? layer.mixer(config, l, prefix, makers) : attention();
  } else {
    norms.attention_norm = norms.post_attention_norm = "";
  }
  std::unique_ptr<FeedForward> feed_forward;
  if (layer.has_feed_forward) {
    feed_forward = layer.feed_forward ? layer.feed_forward(config, l, prefix, makers) : mlp();
  } else {
    norms.mlp_norm = norms.post_mlp_norm = "";
  }
  if (!layer.post_mlp_norm) norms.post_mlp_norm = "";
  std::optional<LayerInput> layer_input;
  if (config.scaled_layers || config.streams > 1) {
    const LayerInputConfig own = {.layer = l,
                                  .width = config.width,
                                  .size = config.layer_input_size,
                                  .activation = config.activation,
                                  .norm = config.norm};
    layer_input.emplace(prefix, names.layer_input, own, makers);
  }
  std::optional<AltUp> alt_up;
  if (config.streams > 1) {
    const AltUpConfig own = {.streams = config.streams,
                             .active = config.active_stream,
                             .width = config.width,
                             .scaled = config.scaled_stream,
                             .norm = config.norm};
    alt_up.emplace(prefix, names.alt_up, own, std::move(*layer_input), makers);
    layer_input.reset();
  }
  return {prefix,
          norms,
          config.block(),
          std::move(mixer),
          std::move(feed_forward),
          makers.parameter,
          std::move(layer_input),
          std::move(alt_up)};
}

DecoderHead make_head(const DecoderConfig& config, const Makers& makers, const std::shared_ptr<Parameter>& embedding) {
  const TensorNames& names = config.names;
  std::optional<Norm> norm;
  if (!names.final_norm.empty()) norm.emplace(names.final_norm, config.width, config.norm, makers.parameter);
  std::optional<Linear> project;
  if (!names.project_out.empty()) {
    project = makers.make_linear(names.project_out, config.embedding_width, config.width, false);
  }
  Linear linear = [&] {
    const Shape shape = {config.head_rows(), config.embedding_width};
    if (!config.tied_head) return makers.make_linear(names.head, shape[0], shape[1], config.head_bias);
    const std::shared_ptr<Parameter> tied =
        embedding ? embedding : makers.parameter(names.embedding + ".weight", shape);
    return Linear(names.head, std::make_unique<DenseWeight>(tied),
                  config.head_bias ? makers.parameter(names.head + ".bias", {shape[0]}) : nullptr);
  }();
  return {.streams = make_streams(config, names.join_streams, makers),
          .norm = std::move(norm),
          .project = std::move(project),
          .linear = std::move(linear),
          .scale = config.logit_scale,
          .softcap = config.logit_softcap};
}

}  // namespace nibble
