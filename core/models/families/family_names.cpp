#include "nibble/core/models/families/family_names.h"

#include <algorithm>

namespace nibble {

bool is_head_norm(const TensorNames& names, std::string_view parameter) {
  if (!parameter.starts_with(names.layers)) return false;
  const size_t dot = parameter.find('.', names.layers.size());
  const std::string_view module = parameter.substr(0, parameter.rfind('.')).substr(std::min(dot + 1, parameter.size()));
  return module == names.block.attention.q_norm || module == names.block.attention.k_norm;
}

bool is_f32(const TensorNames& names, std::string_view parameter, const Shape& shape) {
  const bool filters = shape.size() == 3 && shape[1] == 1, row = shape.size() == 2 && shape[0] == 1;
  return shape.size() == 1 || filters || row || is_head_norm(names, parameter) || parameter.ends_with(".A_log");
}

TensorNames gemma2_names() {
  TensorNames names;  // the prefix "pre_" tells this family's mlp norm from the norm of the attention's output
  names.block.post_attention_norm = "post_attention_layernorm";
  names.block.mlp_norm = "pre_feedforward_layernorm";
  names.block.post_mlp_norm = "post_feedforward_layernorm";
  return names;
}

TensorNames inside_language_model(TensorNames names) {
  const std::string outer = "model.", inner = "model.language_model.";
  LayerInputTableNames& inputs = names.layer_inputs;
  for (std::string* name :
       {&names.embedding, &names.embedding_norm, &names.layers, &names.final_norm, &inputs.embedding,
        &inputs.projection, &inputs.norm, &names.split_streams, &names.join_streams}) {
    if (!name->empty()) *name = inner + name->substr(outer.size());
  }
  return names;
}

TensorNames phi3_names() {
  TensorNames names;
  names.block.attention.qkv = "self_attn.qkv_proj";
  names.block.mlp.gate_up = "mlp.gate_up_proj";
  return names;
}

TensorNames glm_names(bool norms_after) {
  TensorNames names;
  names.block.mlp.gate_up = "mlp.gate_up_proj";
  if (!norms_after) return names;
  names.block.post_attention_norm = "post_self_attn_layernorm";
  names.block.post_mlp_norm = "post_mlp_layernorm";
  return names;
}

TensorNames hunyuan_names() {
  TensorNames names;
  names.block.attention.q_norm = "self_attn.query_layernorm";
  names.block.attention.k_norm = "self_attn.key_layernorm";
  return names;
}

TensorNames gpt_neox_names() {
  TensorNames names;
  names.embedding = "gpt_neox.embed_in";
  names.layers = "gpt_neox.layers.";
  names.final_norm = "gpt_neox.final_layer_norm";
  names.head = "embed_out";
  names.block.attention.qkv = "attention.query_key_value";
  names.block.attention.output = "attention.dense";
  names.block.mlp.up = "mlp.dense_h_to_4h";
  names.block.mlp.down = "mlp.dense_4h_to_h";
  return names;
}

TensorNames falcon_names() {
  TensorNames names;
  names.embedding = "transformer.word_embeddings";
  names.layers = "transformer.h.";
  names.final_norm = "transformer.ln_f";
  names.block.attention.qkv = "self_attention.query_key_value";
  names.block.attention.output = "self_attention.dense";
  names.block.mlp.up = "mlp.dense_h_to_4h";
  names.block.mlp.down = "mlp.dense_4h_to_h";
  return names;
}

TensorNames gpt2_names() {
  TensorNames names;
  names.embedding = "transformer.wte";
  names.positions = "transformer.wpe";
  names.layers = "transformer.h.";
  names.final_norm = "transformer.ln_f";
  names.block.attention_norm = "ln_1";
  names.block.mlp_norm = "ln_2";
  names.block.attention.qkv = "attn.c_attn";
  names.block.attention.output = "attn.c_proj";
  names.block.mlp.up = "mlp.c_fc";
  names.block.mlp.down = "mlp.c_proj";
  return names;
}

TensorNames opt_names() {
  TensorNames names;
  names.embedding = "model.decoder.embed_tokens";
  names.positions = "model.decoder.embed_positions";
  names.layers = "model.decoder.layers.";
  names.final_norm = "model.decoder.final_layer_norm";
  names.block.attention_norm = "self_attn_layer_norm";
  names.block.mlp_norm = "final_layer_norm";
  names.block.attention.output = "self_attn.out_proj";
  names.block.mlp.up = "fc1";
  names.block.mlp.down = "fc2";
  return names;
}

TensorNames olmo2_names() {
  TensorNames names;
  names.block.attention_norm = names.block.mlp_norm = "";
  names.block.post_attention_norm = "post_attention_layernorm";
  names.block.post_mlp_norm = "post_feedforward_layernorm";
  return names;
}

TensorNames stablelm_names() {
  TensorNames names;
  names.block.attention.q_norm = "self_attn.q_layernorm";
  names.block.attention.k_norm = "self_attn.k_layernorm";
  return names;
}

TensorNames starcoder2_names() {
  TensorNames names;
  names.block.mlp.up = "mlp.c_fc";
  names.block.mlp.down = "mlp.c_proj";
  return names;
}

TensorNames phi_names() {
  TensorNames names = stablelm_names();
  names.final_norm = "model.final_layernorm";
  names.block.attention.output = "self_attn.dense";
  names.block.mlp.up = "mlp.fc1";
  names.block.mlp.down = "mlp.fc2";
  names.block.mlp_norm = "";
  return names;
}

TensorNames cohere_names() {
  TensorNames names;
  names.block.mlp_norm = "";
  return names;
}

TensorNames bloom_names() {
  TensorNames names = falcon_names();
  names.embedding_norm = "transformer.word_embeddings_layernorm";
  return names;
}

AttentionNames attention_below(const std::string& module, const std::string& output) {
  AttentionNames names;
  names.q = module + ".q_proj";
  names.k = module + ".k_proj";
  names.v = module + ".v_proj";
  names.output = module + "." + output;
  return names;
}

TensorNames gptj_names() {
  TensorNames names = gpt2_names();
  names.positions = "";
  names.block.attention = attention_below("attn");
  names.block.mlp.up = "mlp.fc_in";
  names.block.mlp.down = "mlp.fc_out";
  names.block.mlp_norm = "";
  return names;
}

TensorNames codegen_names() {
  TensorNames names = gptj_names();
  names.block.attention.qkv = "attn.qkv_proj";
  return names;
}

}  // namespace nibble
