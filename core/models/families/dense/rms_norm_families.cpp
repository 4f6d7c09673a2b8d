// Dense families with rope and RMS norms.

#include "nibble/core/models/families/config_reader.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"

namespace nibble {

namespace {

constexpr NormConfig kGemmaNorm = {.kind = NormKind::rms, .eps = 1e-6f, .weight_offset = 1};

TensorNames vaultgemma_names() {
  TensorNames names;
  names.block.mlp_norm = "pre_feedforward_layernorm";
  return names;
}

TensorNames nanochat_names() {
  TensorNames names;
  names.embedding_norm = names.final_norm;  // without weight, as all its norms
  names.block.mlp.up = "mlp.fc1";
  names.block.mlp.down = "mlp.fc2";
  return names;
}

TensorNames apertus_names() {
  TensorNames names;
  names.block.attention_norm = "attention_layernorm";
  names.block.mlp_norm = "feedforward_layernorm";
  return names;
}

TensorNames exaone_names() {
  TensorNames names = gpt2_names();
  names.positions = "";
  names.block.attention = attention_below("attn.attention");
  names.block.mlp = {.gate = "mlp.c_fc_0", .up = "mlp.c_fc_1", .down = "mlp.c_proj", .gate_up = ""};
  return names;
}

TensorNames hyperclovax_names() {
  TensorNames names;
  names.block.post_attention_norm = "post_norm1";
  names.block.post_mlp_norm = "post_norm2";
  return names;
}

void finish_nanochat(const ConfigReader& file, DecoderConfig& config) {
  if (!file.is_null("final_logit_softcapping")) {
    config.logit_softcap = static_cast<float>(file.number("final_logit_softcapping", 0, 1e9, 15));
  }
}

// In Transformers a Llama, whose names it has there.
void finish_exaone(const ConfigReader&, DecoderConfig& config) {
  config.file_prefix = "transformer.";
  config.adapter_prefix = "model.";
  config.adapter_names = {{".wte.", ".embed_tokens."},
                          {".h.", ".layers."},
                          {".ln_f.", ".norm."},
                          {".ln_1.", ".input_layernorm."},
                          {".ln_2.", ".post_attention_layernorm."},
                          {".attn.attention.", ".self_attn."},
                          {".out_proj.", ".o_proj."},
                          {".c_fc_0.", ".gate_proj."},
                          {".c_fc_1.", ".up_proj."},
                          {".c_proj.", ".down_proj."}};
}

// 1.5 has tokens for pictures and sound that it reads and does not write.
void finish_apertus(const ConfigReader& file, DecoderConfig& config) {
  if (config.family != "apertus1p5_text" || !file.has("output_vocab_size")) return;
  config.output_vocab_size = file.integer("output_vocab_size", 1, config.vocab_size);
  if (config.output_vocab_size == config.vocab_size) config.output_vocab_size = 0;
  if (config.output_vocab_size > 0 && config.tied_head) {
    file.fail("output_vocab_size",
              "is less than vocab_size, and tie_word_embeddings says that the head is the embedding");
  }
}

Family apertus(std::string_view model_type, std::string_view architecture) {
  return {.model_type = model_type,
          .architecture = architecture,
          .pad_id = 3,
          .names = apertus_names(),
          .keys = {.mlp_bias = ""},
          .norm = kRms5,
          .activation = "xielu",
          .gated_mlp = false,
          .qk_norm = HeadNormKind::head,
          .max_positions = 65536,
          .rope_base = 12e6,
          .rope_parameters = R"({"rope_type": "llama3", "rope_theta": 12e6, "factor": 8, "low_freq_factor": 1,
                                 "high_freq_factor": 4, "original_max_position_embeddings": 8192})",
          .finish = finish_apertus};
}

Family glm(std::string_view model_type, std::string_view architecture, bool norms_after) {
  return {.model_type = model_type,
          .architecture = architecture,
          .pad_id = 151329,
          .names = glm_names(norms_after),
          .keys = {.output_bias = "", .mlp_bias = ""},
          .norm = {.kind = NormKind::rms, .eps = 1.5625e-7f},
          .qkv_bias = true,
          .kv_heads = 2,
          .head_size = 128,
          .max_positions = 131072,
          .rotary_share = 0.5,
          .rope_pairs = ops::RopePairs::neighbours};
}

}  // namespace

std::vector<Family> rms_norm_families() {
  return {
      {.model_type = "llama",
       .architecture = "LlamaForCausalLM",
       .gguf = {.architecture = "llama", .rope_pairs = true, .biases = true, .config = gguf_biases},
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "mistral",
       .architecture = "MistralForCausalLM",
       .kv_heads = 8,
       .max_positions = 131072,
       .window_rule = WindowRule::every,
       .window = 4096,
       .gguf = {.architecture = "llama", .rope_pairs = true, .biases = true},
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "qwen2",
       .architecture = "Qwen2ForCausalLM",
       .keys = {.qkv_bias = "", .output_bias = ""},
       .qkv_bias = true,
       .kv_heads = 32,
       .max_positions = 32768,
       .window_rule = WindowRule::from_layer,
       .window = 4096,
       .gguf = {.architecture = "qwen2", .biases = true},
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .qk_norm = HeadNormKind::head,
       .kv_heads = 32,
       .head_size = 128,
       .max_positions = 32768,
       .window_rule = WindowRule::from_layer,
       .window = 4096,
       .gguf = {.architecture = "qwen3", .config = gguf_attention_bias},
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "gemma",
       .architecture = "GemmaForCausalLM",
       .pad_id = 0,
       .norm = kGemmaNorm,
       .activation = "gelu_pytorch_tanh",
       .tied_head = true,
       .scaled_embedding = true,
       .kv_heads = 16,
       .head_size = 256,
       .max_positions = 8192,
       .finish = finish_gemma,
       .gguf = {.architecture = "gemma", .only_tied = true},
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "gemma2",
       .architecture = "Gemma2ForCausalLM",
       .pad_id = 0,
       .names = gemma2_names(),
       .keys = {.activation = "hidden_activation"},
       .norm = kGemmaNorm,
       .activation = "gelu_pytorch_tanh",
       .tied_head = true,
       .scaled_embedding = true,
       .kv_heads = 4,
       .head_size = 256,
       .max_positions = 8192,
       .window_rule = WindowRule::even,
       .window = 4096,
       .finish = finish_gemma2,
       .gguf =
           {.architecture = "gemma2", .only_tied = true, .softcaps = true, .largest_layers = 46, .config = gguf_gemma2},
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "gemma3_text",
       .architecture = "Gemma3ForCausalLM",
       .pad_id = 0,
       .names = gemma2_names(),
       .keys = {.activation = "hidden_activation"},
       .norm = kGemmaNorm,
       .activation = "gelu_pytorch_tanh",
       .qk_norm = HeadNormKind::head,
       .tied_head = true,
       .scaled_embedding = true,
       .kv_heads = 4,
       .head_size = 256,
       .max_positions = 131072,
       .rope_base = 1e6,
       .local_rope_base = 10000,
       .window_rule = WindowRule::period,
       .window = 4096,
       .window_period = 6,
       .finish = finish_gemma3,
       .gguf = {.architecture = "gemma3", .local_rope = true, .largest_layers = 62, .config = gguf_gemma3},
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "phi3",
       .architecture = "Phi3ForCausalLM",
       .pad_id = 32000,
       .names = phi3_names(),
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .max_positions = 4096,
       .original_max_positions = 4096,
       .window_rule = WindowRule::every,
       .gguf = {.architecture = "phi3", .longrope = true, .says_window = true, .config = gguf_phi3}},
      {.model_type = "smollm3",
       .architecture = "SmolLM3ForCausalLM",
       .pad_id = 128004,
       .tied_head = true,
       .kv_heads = 4,
       .max_positions = 32768,
       .rope = RopeRule::listed,
       .rope_base = 2e6,
       .window_rule = WindowRule::nope,
       .gguf = {.architecture = "smollm3", .rope_pairs = true, .rope_period = 4, .config = gguf_biases}},
      {.model_type = "olmo2",
       .architecture = "Olmo2ForCausalLM",
       .pad_id = 1,
       .names = olmo2_names(),
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .qk_norm = HeadNormKind::whole,
       .gguf = {.architecture = "olmo2", .own_head = true, .config = gguf_attention_bias}},
      {.model_type = "granite",
       .architecture = "GraniteForCausalLM",
       .finish = finish_granite,
       .gguf = {.architecture = "granite", .rope_pairs = true, .biases = true, .scales = true, .config = gguf_granite}},
      {.model_type = "internlm3",
       .architecture = "InternLM3ForCausalLM|LlamaForCausalLM",
       .pad_id = 2,
       .keys = {.qkv_bias = "qkv_bias|attention_bias",
                .output_bias = "qkv_bias|attention_bias",
                .mlp_bias = "bias|mlp_bias"},
       .norm = kRms5,
       .kv_heads = 2,
       .head_size = 128,
       .max_positions = 32768},
      {.model_type = "iquestcoder",
       .architecture = "IQuestCoderForCausalLM|LlamaForCausalLM",
       .norm = kRms5,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 131072},
      {.model_type = "ministral",
       .architecture = "MinistralForCausalLM",
       .keys = {.qkv_bias = "", .output_bias = "", .mlp_bias = ""},
       .kv_heads = 8,
       .max_positions = 131072,
       .window_rule = WindowRule::types,
       .window = 4096},
      {.model_type = "ministral3",
       .architecture = "Ministral3ForCausalLM",
       .pad_id = 11,
       .keys = {.qkv_bias = "", .output_bias = "", .mlp_bias = ""},
       .norm = kRms5,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 262144,
       .rope_parameters = R"({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16, "beta_fast": 32, "beta_slow": 1,
                              "original_max_position_embeddings": 16384, "mscale": 1, "mscale_all_dim": 1,
                              "llama_4_scaling_beta": 0.1})",
       .scaled_queries = true,
       .window_rule = WindowRule::every},
      {.model_type = "seed_oss",
       .architecture = "SeedOssForCausalLM",
       .pad_id = 1,
       .keys = {.output_bias = "attention_out_bias"},
       .qkv_bias = true,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 524288},
      {.model_type = "exaone4",
       .architecture = "Exaone4ForCausalLM",
       .names = olmo2_names(),
       .keys = {.qkv_bias = "", .output_bias = "", .mlp_bias = ""},
       .norm = kRms5,
       .qk_norm = HeadNormKind::head,
       .kv_heads = 32,
       .rope = RopeRule::windowed_or_all,
       .window_rule = WindowRule::period,
       .window = 4096,
       .window_period = 4},
      {.model_type = "cwm",
       .architecture = "CwmForCausalLM",
       .keys = {.qkv_bias = "", .output_bias = ""},
       .norm = kRms5,
       .kv_heads = 8,
       .head_size = 128,
       .max_positions = 131072,
       .rope_base = 1e6,
       .rope_parameters = R"({"rope_type": "llama3", "rope_theta": 1e6, "factor": 16, "low_freq_factor": 1,
                              "high_freq_factor": 4, "original_max_position_embeddings": 8192})",
       .window_rule = WindowRule::but_first,
       .window = 8192,
       .window_period = 4},
      {.model_type = "arcee",
       .architecture = "ArceeForCausalLM",
       .norm = kRms5,
       .activation = "relu2",
       .gated_mlp = false,
       .max_positions = 4096},
      {.model_type = "vaultgemma",
       .architecture = "VaultGemmaForCausalLM",
       .pad_id = 0,
       .names = vaultgemma_names(),
       .keys = {.activation = "hidden_activation"},
       .norm = {.kind = NormKind::rms, .eps = 1e-6f, .weight_offset = 1},
       .activation = "gelu_pytorch_tanh",
       .tied_head = true,
       .scaled_embedding = true,
       .kv_heads = 4,
       .head_size = 256,
       .max_positions = 8192,
       .window_rule = WindowRule::even,
       .window = 4096,
       .finish = finish_gemma2},
      {.model_type = "olmo3",
       .architecture = "Olmo3ForCausalLM",
       .pad_id = 1,
       .names = olmo2_names(),
       .norm = kRms5,
       .qk_norm = HeadNormKind::whole,
       .rope_base = 500000,
       .local_rope_base = 500000,
       .window_rule = WindowRule::period,
       .window = 4096,
       .window_period = 4},
      {.model_type = "ernie4_5",
       .architecture = "Ernie4_5ForCausalLM",
       .pad_id = 0,
       .keys = {.qkv_bias = "use_bias", .output_bias = "use_bias", .mlp_bias = "use_bias"},
       .norm = kRms5,
       .tied_head = true,
       .kv_heads = 2,
       .head_size = 128,
       .max_positions = 131072,
       .rope_base = 500000,
       .rope_pairs = ops::RopePairs::neighbours},
      glm("glm", "GlmForCausalLM", false),
      glm("glm4", "Glm4ForCausalLM", true),
      {.model_type = "hunyuan_v1_dense",
       .architecture = "HunYuanDenseV1ForCausalLM",
       .pad_id = 0,
       .names = hunyuan_names(),
       .keys = {.head_size = "head_dim|attention_head_dim", .mlp_bias = ""},
       .norm = kRms5,
       .qk_norm = HeadNormKind::head,
       .qk_norm_after_rope = true,
       .rope_alpha = true},
      {.model_type = "helium",
       .architecture = "HeliumForCausalLM",
       .pad_id = 3,
       .keys = {.output_bias = ""},
       .norm = {.kind = NormKind::rms, .eps = 1e-8f},
       .kv_heads = 20,
       .head_size = 128,
       .max_positions = 4096,
       .rope_base = 100000,
       .rope_pairs = ops::RopePairs::neighbours},
      {.model_type = "nanochat",
       .architecture = "NanoChatForCausalLM",
       .pad_id = 1,
       .names = nanochat_names(),
       .keys = {.mlp_bias = ""},
       .norm = {.kind = NormKind::rms, .eps = 1e-6f, .weight = false},
       .activation = "relu2",
       .gated_mlp = false,
       .qk_norm = HeadNormKind::head,
       .qk_norm_after_rope = true,
       .qk_norm_weight = false,
       .rope_backwards = true,
       .finish = finish_nanochat},
      {.model_type = "exaone",
       .architecture = "ExaoneForCausalLM|LlamaForCausalLM",
       .pad_id = 0,
       .names = exaone_names(),
       .keys = {.layers = "num_layers|num_hidden_layers",
                .norm_eps = "layer_norm_epsilon|rms_norm_eps",
                .activation = "activation_function|hidden_act"},
       .norm = kRms5,
       .kv_heads = 8,
       .max_positions = 4096,
       .rope_base = 500000,
       .finish = finish_exaone},
      apertus("apertus", "ApertusForCausalLM"),
      apertus("apertus1p5_text", "Apertus1p5TextForCausalLM"),
      {.model_type = "bitnet",
       .architecture = "BitNetForCausalLM",
       .keys = {.mlp_bias = ""},
       .norm = kRms5,
       .activation = "relu2",
       .sublayer_norms = true,
       .kv_heads = 5,
       .rope_base = 500000},
      {.model_type = "granite_swa",
       .architecture = "GraniteSWAForCausalLM",
       .norm = kRms5,
       .tied_head = true,
       .kv_heads = 4,
       .max_positions = 8192,
       .window_rule = WindowRule::but_first,
       .window = 128,
       .window_period = 4,
       .finish = finish_granite_swa},
      {.model_type = "hyperclovax",
       .architecture = "HyperCLOVAXForCausalLM",
       .names = hyperclovax_names(),
       .finish = finish_hyperclovax},
  };
}

}  // namespace nibble
