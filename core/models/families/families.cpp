#include "nibble/core/models/families/families.h"

#include <algorithm>

#include "nibble/core/formatting/joined.h"
#include "nibble/core/models/families/expert_families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/families/family_rules.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"
#include "nibble/core/models/families/hybrid_rules.h"

namespace nibble {

namespace {

constexpr NormConfig kLayerNorm = {.kind = NormKind::layer, .eps = 1e-5f, .bias = true};
constexpr NormConfig kGemmaNorm = {.kind = NormKind::rms, .eps = 1e-6f, .weight_offset = 1};

constexpr Composite kComposites[] = {
    {"gemma3", "Gemma3ForConditionalGeneration", "gemma3_text",
     R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
         "num_attention_heads": 8})"},
    {"gemma3n", "Gemma3nForConditionalGeneration", "gemma3n_text", "{}"},
    {"gemma4", "Gemma4ForConditionalGeneration", "gemma4_text", "{}"},
    {"gemma4_unified", "Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text", "{}"},
    {"kimi_k25", "Kimi_K25ForConditionalGeneration", "deepseek_v3", "{}"},
    {"mistral3", "Mistral3ForConditionalGeneration", "mistral", "{}"},
    {"llama4", "Llama4ForConditionalGeneration", "llama4_text", "{}", true},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text", "{}", true},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", "{}", true},
};

std::vector<Family> dense_families() {
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
      {.model_type = "gpt_neox",
       .architecture = "GPTNeoXForCausalLM",
       .padded_table = false,
       .names = gpt_neox_names(),
       .keys = {.head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_eps",
                .rotary_share = "rotary_pct",
                .rope_base = "rotary_emb_base"},
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .biases = true,
       .rotary_share = 0.25,
       .finish = finish_gpt_neox,
       .gguf = {.architecture = "gptneox",
                .biases = true,
                .needs_biases = true,
                .own_head = true,
                .says_parallel = true,
                .config = gguf_gpt_neox},
       .peft_targets = {"query_key_value"}},
      {.model_type = "falcon",
       .architecture = "FalconForCausalLM",
       .padded_table = false,
       .names = falcon_names(),
       .keys = {.width = "n_embed|hidden_size",
                .mlp_width = "ffn_hidden_size",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_epsilon",
                .activation = "activation"},
       .norm = kLayerNorm,
       .activation = "gelu",
       .gated_mlp = false,
       .tied_head = true,
       .mlp_share = 4,
       .finish = finish_falcon,
       .gguf = {.architecture = "falcon",
                .only_parallel = true,
                .attn_norm_2 = true,
                .own_mix = true,
                .config = gguf_falcon},
       .peft_targets = {"query_key_value"}},
      {.model_type = "gpt2",
       .architecture = "GPT2LMHeadModel",
       .padded_table = false,
       .names = gpt2_names(),
       .keys = gpt2_keys(),
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .mlp_share = 4,
       .max_positions = 1024,
       .rope = RopeRule::none,
       .finish = finish_gpt2,
       .gguf = {.architecture = "gpt2", .biases = true},
       .peft_targets = {"c_attn"}},
      {.model_type = "opt",
       .architecture = "OPTForCausalLM",
       .pad_id = 1,
       .names = opt_names(),
       .keys = {.mlp_width = "ffn_dim",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_eps",
                .activation = "activation_function"},
       .norm = kLayerNorm,
       .activation = "relu",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .position_offset = 2,
       .rope = RopeRule::none,
       .finish = finish_opt,
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "stablelm",
       .architecture = "StableLmForCausalLM",
       .names = stablelm_names(),
       .keys = {.head_size = "", .norm_eps = "layer_norm_eps"},
       .norm = kLayerNorm,
       .kv_heads = 32,
       .max_positions = 4096,
       .rotary_share = 0.25,
       .finish = finish_stablelm,
       .gguf = {.architecture = "stablelm",
                .biases = true,
                .own_head = true,
                .says_parallel = true,
                .config = gguf_stablelm},
       .peft_targets = {"q_proj", "v_proj"}},
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
      {.model_type = "olmo",
       .architecture = "OlmoForCausalLM",
       .pad_id = 1,
       .keys = {.norm_eps = ""},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f, .weight = false},
       .finish = finish_olmo,
       .gguf = {.architecture = "olmo", .rope_pairs = true, .clipped_qkv = true, .config = gguf_olmo}},
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
      {.model_type = "starcoder2",
       .architecture = "Starcoder2ForCausalLM",
       .names = starcoder2_names(),
       .keys = {.norm_eps = "norm_epsilon"},
       .norm = kLayerNorm,
       .activation = "gelu_pytorch_tanh",
       .gated_mlp = false,
       .tied_head = true,
       .kv_heads = 2,
       .max_positions = 4096,
       .window_rule = WindowRule::every,
       .finish = finish_starcoder2,
       .gguf = {.architecture = "starcoder2", .biases = true, .needs_biases = true, .config = gguf_starcoder2}},
      {.model_type = "gpt_bigcode",
       .architecture = "GPTBigCodeForCausalLM",
       .padded_table = false,
       .names = gpt2_names(),
       .keys = gpt2_keys(),
       .norm = kLayerNorm,
       .activation = "gelu_pytorch_tanh",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .mlp_share = 4,
       .max_positions = 1024,
       .rope = RopeRule::none,
       .finish = finish_gpt_bigcode,
       .gguf = {.architecture = "starcoder", .biases = true, .config = gguf_bigcode},
       .peft_targets = {"c_attn"}},
      {.model_type = "bloom",
       .architecture = "BloomForCausalLM",
       .padded_table = false,
       .names = bloom_names(),
       .keys = {.width = "n_embed|hidden_size",
                .layers = "n_layer|num_hidden_layers",
                .heads = "n_head|num_attention_heads",
                .mlp_width = "",
                .max_positions = "seq_length",
                .head_size = "",
                .kv_heads = "",
                .norm_eps = "layer_norm_epsilon",
                .activation = ""},
       .norm = kLayerNorm,
       .activation = "gelu_pytorch_tanh",
       .gated_mlp = false,
       .biases = true,
       .tied_head = true,
       .mlp_share = 4,
       .rope = RopeRule::none,
       .finish = finish_bloom,
       .gguf = {.architecture = "bloom", .biases = true, .alibi = true},
       .peft_targets = {"query_key_value"}},
      {.model_type = "gptj",
       .architecture = "GPTJForCausalLM",
       .padded_table = false,
       .names = gptj_names(),
       .keys = gpt2_keys(),
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .parallel_residual = true,
       .mlp_share = 4,
       .rope = RopeRule::none,
       .finish = finish_gptj,
       .peft_targets = {"q_proj", "v_proj"}},
      {.model_type = "codegen",
       .architecture = "CodeGenForCausalLM",
       .padded_table = false,
       .names = codegen_names(),
       .keys = gpt2_keys(),
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .parallel_residual = true,
       .mlp_share = 4,
       .rope = RopeRule::none,
       .finish = finish_codegen,
       .peft_targets = {"qkv_proj"}},
      {.model_type = "phi",
       .architecture = "PhiForCausalLM",
       .names = phi_names(),
       .keys = {.norm_eps = "layer_norm_eps"},
       .norm = kLayerNorm,
       .activation = "gelu_new",
       .gated_mlp = false,
       .parallel_residual = true,
       .biases = true,
       .rotary_share = 0.5,
       .finish = finish_phi,
       .gguf = {.architecture = "phi2", .biases = true, .own_head = true},
       .peft_targets = {"q_proj", "v_proj", "fc1", "fc2"}},
      {.model_type = "cohere",
       .architecture = "CohereForCausalLM",
       .pad_id = 0,
       .names = cohere_names(),
       .keys = {.norm_eps = "layer_norm_eps"},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f},
       .parallel_residual = true,
       .tied_head = true,
       .max_positions = 8192,
       .rope_base = 500000,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = finish_cohere,
       .gguf = {.architecture = "command-r", .only_tied = true, .logit_scale = true, .config = gguf_cohere}},
      {.model_type = "cohere2",
       .architecture = "Cohere2ForCausalLM",
       .pad_id = 0,
       .names = cohere_names(),
       .keys = {.norm_eps = "layer_norm_eps"},
       .norm = {.kind = NormKind::layer, .eps = 1e-5f},
       .parallel_residual = true,
       .tied_head = true,
       .max_positions = 8192,
       .rope = RopeRule::windowed,
       .rope_pairs = ops::RopePairs::neighbours,
       .window_rule = WindowRule::period,
       .window = 4096,
       .window_period = 4,
       .finish = finish_cohere,
       .gguf = {.architecture = "cohere2", .only_tied = true, .logit_scale = true, .config = gguf_cohere2}},
  };
}

const std::vector<Family>& rows() {
  static const std::vector<Family> table = [] {
    std::vector<Family> all = dense_families();
    for (const auto& more : {rms_norm_families(), layer_norm_families(), gemma4_families(), latent_families(),
                             without_rope_families(), expert_families(), sigmoid_families(), hybrid_families()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return table;
}

// What decoder-only types of Transformers, and checkpoints around them, need that no family here has.
struct Missing {
  std::string_view model_type, architecture, mechanism;
  std::string_view all_keys = {};  // up to so many tokens the indexer that it has too chooses every key
};

// Said of a checkpoint with towers and of its text alike.
constexpr std::string_view kBounded = "dense MLPs whose gates are bounded";
constexpr std::string_view kDots = "latent attention with gates, scaled latents and sizes by layer";
constexpr std::string_view kBlocks = "index_topk_blocks * index_block_size";
constexpr std::string_view kInkling = "relative positions in the scores and convolutions within attention";
constexpr std::string_view kInkling2 = "dynamic convolutions and residual attention over blocks";
constexpr std::string_view kQwen4 = "attention to blocks, n-gram embeddings and hyper-connections";

constexpr Missing kMissing[] = {
    {"axk2", "AXK2ForCausalLM", "gated norms and a gate of latent attention", "index_topk"},
    {"beam", "BeamForCausalLM", "a biased gate of attention and residuals scaled by depth"},
    {"cpmant", "CpmAntForCausalLM", "relative position buckets and segment embeddings"},
    {"dbrx", "DbrxForCausalLM", "experts stacked along rows and weighed by a p-norm"},
    {"deepseek_v4", "DeepseekV4ForCausalLM", "compressed sparse attention, hyper-connections and a hash router"},
    {"diffllama", "DiffLlamaForCausalLM", "the difference of two softmaxes"},
    {"doge", "DogeForCausalLM", "an attention mask that values make"},
    {"dots3_note_text", "Dots3NoteForCausalLM", kDots, "index_topk"},
    {"dots3_note", "Dots3NoteForConditionalGeneration", kDots, "index_topk"},
    {"hrm_text", "HrmTextForCausalLM", "stacks of layers that run in cycles"},
    {"hy_v4", "HYV4ForCausalLM", "hyper-connections, and sinks of latent attention", "index_topk"},
    {"inkling_text", "InklingForCausalLM", kInkling},
    {"inkling2_text", "Inkling2ForCausalLM", kInkling2},
    {"inkling_mm_model", "InklingForConditionalGeneration", kInkling},
    {"inkling2", "Inkling2ForConditionalGeneration", kInkling2},
    {"jetmoe", "JetMoeForCausalLM", "experts for the queries and the output of attention"},
    {"longcat_flash", "LongcatFlashForCausalLM", "two attentions around one mixture, and experts that do nothing"},
    {"minimax", "MiniMaxForCausalLM", "lightning attention"},
    {"minimax_m3_vl_text", "MiniMaxM3VLForCausalLM", kBounded, kBlocks},
    {"minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", kBounded, kBlocks},
    {"modernbert-decoder", "ModernBertDecoderForCausalLM", "a head of two layers"},
    {"qwen4_exp_text", "Qwen4ExpForCausalLM", kQwen4},
    {"qwen4_exp", "Qwen4ExpForConditionalGeneration", kQwen4},
    {"recurrent_gemma", "RecurrentGemmaForCausalLM", "the RG-LRU recurrence"},
    {"rwkv", "RwkvForCausalLM", "the RWKV time mix"},
    {"xlstm", "xLSTMForCausalLM", "mLSTM cells"},
    {"zamba", "ZambaForCausalLM", "one attention block that several layers share"},
    {"zaya", "ZayaForCausalLM", "convolutional attention and a router with a state across layers"},
};

// Null for a type that is not in the table. Either argument may be empty.
const Missing* find_missing(std::string_view model_type, std::string_view architecture) {
  const auto asked = [&](const Missing& row) {
    return model_type.empty() ? row.architecture == architecture : row.model_type == model_type;
  };
  const auto* found = std::find_if(std::begin(kMissing), std::end(kMissing), asked);
  return found == std::end(kMissing) ? nullptr : found;
}

std::string known() {
  return joined(rows(), ", ", &Family::model_type) + ", " + joined(kComposites, ", ", &Composite::model_type);
}

bool same_letters(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

// The first conversions of Llama wrote LLaMAForCausalLM.
bool is_one_of(std::string_view architecture, std::string_view known) {
  for (size_t end = 0; !known.empty(); known = known.substr(end)) {
    end = known.find('|');
    if (same_letters(architecture, known.substr(0, end))) return true;
    end = end == std::string_view::npos ? known.size() : end + 1;
  }
  return false;
}

}  // namespace

std::span<const Family> families() { return rows(); }

const Family* family_of(std::string_view family) {
  const auto found = std::ranges::find(rows(), family, &Family::model_type);
  return found == rows().end() ? nullptr : &*found;
}

const Composite* find_composite(std::string_view model_type, std::string_view architecture) {
  const auto fits = [&](const Composite& composite) {
    return model_type.empty() ? same_letters(architecture, composite.architecture) : model_type == composite.model_type;
  };
  const auto* found = std::find_if(std::begin(kComposites), std::end(kComposites), fits);
  return found == std::end(kComposites) ? nullptr : found;
}

const Family& find_family(std::string_view model_type, std::string_view architecture, const std::string& place) {
  const std::string_view type = model_type == "kimi_k2" ? "deepseek_v3" : model_type;  // in other words
  for (const Family& family : rows()) {
    const bool type_fits = type.empty() ? !architecture.empty() : type == family.model_type;
    const bool architecture_fits = architecture.empty() || is_one_of(architecture, family.architecture);
    if (type_fits && architecture_fits) return family;
  }
  if (const Missing* const missing = find_missing(model_type, architecture)) {
    std::string reason = "model_type \"" + std::string(model_type.empty() ? architecture : model_type) + "\" needs " +
                         std::string(missing->mechanism) + ", which nibble does not have";
    if (!missing->all_keys.empty()) {
      reason += " (its indexer would be no hindrance: up to " + std::string(missing->all_keys) +
                " tokens it chooses all keys)";
    }
    throw InputError(place, reason, "take a model of another family: docs/models.md lists them");
  }
  const std::string asked = model_type.empty()     ? std::string(architecture)
                            : architecture.empty() ? std::string(model_type)
                                                   : std::string(model_type) + " (" + std::string(architecture) + ")";
  throw InputError(place, asked.empty() ? "says neither model_type nor architectures" : "unknown architecture " + asked,
                   "known: " + known());
}

}  // namespace nibble
