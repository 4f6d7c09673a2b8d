#pragma once
// What config.json says of experts and routers: the last step of reading it for families of mixtures (Family::finish).

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/families/config_reader.h"

namespace nibble {

/// E, k and F of the experts; the routing is softmax of the logits, not normalized. `experts`,
/// `hidden` and `chosen` are keys. Which layers have them is still to be said.
ExpertsConfig& read_experts(const ConfigReader& file, DecoderConfig& config, std::string_view experts,
                            std::string_view hidden, std::string_view chosen = "num_experts_per_tok");
/// Where the files call experts and router as Transformers' modules do, which have the tensors of all experts in one
/// (Qwen3.5 as published, state dicts saved as they are), so do the names. Transformers itself saves every expert
/// apart.
void match_fused_experts(const TensorShapes& files, DecoderConfig& config);
/// The coefficient of the auxiliary loss; absent: Family::aux_loss_coef.
void read_balance(const ConfigReader& file, DecoderConfig& config, double absent);
/// The router of DeepSeek V3, which others took over: sigmoid with a correction, groups, normalized, scaled.
void read_sigmoid_router(const ConfigReader& file, DecoderConfig& config, double scale, int64_t groups = 1,
                         int64_t top_groups = 1);
/// An MLP of n_shared_experts times the width of an expert beside them; `absent` of them where the file says nothing.
void read_shared_experts(const ConfigReader& file, DecoderConfig& config, int64_t absent = 1);
/// Layers that mlp_layer_types calls sparse have experts; without it all from the first_k_dense_replace-th on.
void use_experts_after_dense(const ConfigReader& file, DecoderConfig& config, int64_t absent);
/// The groups of experts that may be chosen, by n_group and topk_group.
void read_groups(const ConfigReader& file, ExpertsConfig& experts, int64_t groups, int64_t top_groups);

/// Every decoder_sparse_step-th layer has experts, but those that mlp_only_layers lists.
void use_experts_by_step(const ConfigReader& file, DecoderConfig& config);
void use_experts_everywhere(DecoderConfig& config);
/// Of Granite's fused tensors, router and shared MLP.
void name_granite_experts(BlockNames& names);

void finish_mixtral(const ConfigReader& file, DecoderConfig& config);
void finish_qwen2_moe(const ConfigReader& file, DecoderConfig& config);
void finish_qwen3_moe(const ConfigReader& file, DecoderConfig& config);
void finish_olmoe(const ConfigReader& file, DecoderConfig& config);
void finish_granitemoe(const ConfigReader& file, DecoderConfig& config);
void finish_granitemoeshared(const ConfigReader& file, DecoderConfig& config);
void finish_gpt_oss(const ConfigReader& file, DecoderConfig& config);
void finish_deepseek_v3(const ConfigReader& file, DecoderConfig& config);
void finish_llama4(const ConfigReader& file, DecoderConfig& config);
void finish_glm4_moe(const ConfigReader& file, DecoderConfig& config);

}  // namespace nibble
