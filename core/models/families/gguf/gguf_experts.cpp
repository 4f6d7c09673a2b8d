#include "nibble/core/models/families/gguf/gguf_experts.h"

#include <algorithm>

namespace nibble {

namespace {

/// Before the first one with experts.
int64_t dense_layers(const DecoderConfig& config) {
  const auto sparse = [](const LayerConfig& l) { return !l.has_feed_forward || static_cast<bool>(l.feed_forward); };
  return std::ranges::find_if(config.layer, sparse) - config.layer.begin();
}

}  // namespace

void refuse_experts(const DecoderConfig& config, const GgufForm& form) {
  if (!config.experts) return;
  const ExpertsConfig& experts = *config.experts;
  const ops::Routing& routing = experts.routing;
  const bool odd = routing.score == ops::RouterScore::sparse_mixer || routing.logits_choose ||
                   experts.weighted_input != form.weighs_inputs || experts.shared_scale != 1;
  if (odd) refuse_for_llama_cpp("this kind of router");
  if (routing.groups > 1 && routing.group_score != ops::GroupScore::two_best)
    refuse_for_llama_cpp("groups of experts by their best one", "topk_method|n_group");
  if (experts.clamp != form.expert_clamp) refuse_for_llama_cpp("another bound of experts", "swiglu_limit");
  const int64_t dense = form.says_routes ? dense_layers(config) : 0;
  for (int64_t l = dense; l < config.layers; ++l) {
    const LayerConfig& layer = config.layer[static_cast<size_t>(l)];
    if (layer.has_feed_forward && !layer.feed_forward && !form.mixed_layers)
      refuse_for_llama_cpp(
          "a " + config.model_type + " with layers without experts" + (dense > 0 ? " behind others" : ""),
          "mlp_only_layers|decoder_sparse_step|mlp_layer_types|moe_layer_interval");
  }
  if (form.says_routes && !form.normalizes_routes) return;  // it says that too
  const bool normalizes = routing.normalize || routing.score == ops::RouterScore::chosen_softmax;
  if (normalizes != form.normalizes_routes)
    refuse_for_llama_cpp("a " + config.model_type + (normalizes ? " with" : " without") + " norm_topk_prob");
}

void add_expert_parts(const DecoderConfig& config, const std::string& from, const std::string& to, GgufParts& parts) {
  const ExpertNames& names = config.names.block.experts;
  const ExpertsConfig& experts = *config.experts;
  parts.add({.name = to + "ffn_gate_inp.weight", .source = from + names.router + ".weight"});
  if (experts.router_bias) parts.add({.name = to + "ffn_gate_inp.bias", .source = from + names.router + ".bias"});
  if (!names.correction.empty())
    parts.add({.name = to + "exp_probs_b.bias", .source = from + names.correction, .squeezed = true});
  const int64_t step = experts.interleaved ? 2 : 1;
  // above: rows before its own in a tensor of gate and up, where it is one of them
  const auto grouped = [&](const std::string& name, const std::string& fused, const std::string& own, int64_t first,
                           int64_t count, int64_t every, std::optional<int64_t> above) {
    const auto both = [&](const std::string& end) {
      return above ? std::optional(GgufFused{to + "ffn_gate_up_exps" + end, *above, 2 * count}) : std::nullopt;
    };
    GgufRows matrices{.sources = {}, .first = first, .count = count, .experts = experts.experts, .step = every};
    if (!fused.empty()) matrices.sources = {from + fused};
    for (int64_t e = 0; fused.empty() && e < experts.experts; ++e)
      matrices.sources.push_back(from + names.experts + "." + std::to_string(e) + "." + own + ".weight");
    parts.add({.name = to + name + ".weight",
               .source = matrices.sources[0],
               .transposed = experts.transposed,
               .is_matrix = true,
               .rows = matrices,
               .fused = both(".weight")});
    if (!experts.bias) return;
    const std::string bias = from + fused + "_bias";  // [E, out]
    parts.add({.name = to + name + ".bias",
               .source = bias,
               .transposed = true,
               .rows = GgufRows{.sources = {bias}, .first = first, .count = count, .step = every, .turned = true},
               .fused = both(".bias")});
  };
  const bool fused = !names.fused_gate_up.empty();
  const int64_t up = !fused ? 0 : experts.interleaved ? 1 : experts.hidden;
  const std::optional<int64_t> below_gate = experts.gated ? std::optional(experts.hidden) : std::nullopt;
  if (experts.gated) grouped("ffn_gate_exps", names.fused_gate_up, names.gate, 0, experts.hidden, step, 0);
  grouped("ffn_up_exps", names.fused_gate_up, names.up, up, experts.hidden, step, below_gate);
  grouped("ffn_down_exps", names.fused_down, names.down, 0, experts.expert_width(), 1, std::nullopt);
  if (experts.latent > 0) {
    parts.matrix(to + "ffn_latent_down", from + names.to_latent, {.adapts = false});
    parts.matrix(to + "ffn_latent_up", from + names.from_latent, {.adapts = false});
  }
  if (experts.shared_hidden == 0) return;
  const MlpNames& shared = names.shared;
  if (shared.gate_up.empty()) {
    if (experts.gated) parts.linear(to + "ffn_gate_shexp", from + shared.gate);
    parts.linear(to + "ffn_up_shexp", from + shared.up);
  } else {
    parts.halves(to + "ffn_gate_shexp", to + "ffn_up_shexp", from + shared.gate_up, experts.shared_hidden);
  }
  parts.linear(to + "ffn_down_shexp", from + shared.down);
  if (!names.shared_gate.empty())
    parts.add({.name = to + "ffn_gate_inp_shexp.weight", .source = from + names.shared_gate + ".weight"});
}

void write_experts(const DecoderConfig& config, const std::string& key, GgufMetadata& metadata) {
  const ExpertsConfig& experts = *config.experts;
  const GgufForm& form = gguf_form(config);
  const auto size = [&](const std::string& name, int64_t value) {
    metadata.emplace_back(key + name, static_cast<uint32_t>(value));
  };
  size("expert_count", experts.experts);
  size("expert_used_count", experts.routing.k);
  if (form.says_routes || form.says_expert_width) size("expert_feed_forward_length", experts.hidden);
  if (experts.shared_hidden > 0) size("expert_shared_feed_forward_length", experts.shared_hidden);
  if (experts.latent > 0) size("moe_latent_size", experts.latent);
  if (!form.says_routes) return;
  const ops::Routing& routing = experts.routing;
  const bool sigmoid = routing.score == ops::RouterScore::sigmoid;
  size("expert_shared_count", experts.shared_hidden / experts.hidden);
  size("expert_gating_func", sigmoid ? 2 : routing.score == ops::RouterScore::softmax ? 1 : 3);
  metadata.emplace_back(key + "expert_weights_norm", routing.normalize);
  metadata.emplace_back(key + "expert_weights_scale", routing.scale);
  size("leading_dense_block_count", dense_layers(config));
  size("interleave_moe_layer_step", 1);
  if (routing.groups == 1) return;
  size("expert_group_count", routing.groups);
  size("expert_group_used_count", routing.top_groups);
}

}  // namespace nibble
