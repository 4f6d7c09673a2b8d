#include "nibble/core/models/families/latent_families.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/families/expert_families.h"
#include "nibble/core/models/families/expert_rules.h"
#include "nibble/core/models/families/gguf/gguf_rules.h"
#include "nibble/core/nn/mixers/latent_attention.h"

namespace nibble {

namespace {

constexpr int64_t kMaxRank = 1 << 16;

// Under yarn the scores are multiplied by what it has the magnitude grow, squared; absent: the row's rope_parameters.
double score_growth(const ConfigReader& file, std::string_view absent) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<ConfigReader> rope = file.object(key);
    if (!rope) continue;
    absent = "";
    if (rope->text("rope_type|type", "default") == "default") continue;
    const double factor = rope->number("factor", 1e-3, 1e6, 1), all = rope->number("mscale_all_dim", 0, 1e6, 0);
    const double growth = factor <= 1 || all == 0 ? 1 : 0.1 * all * std::log(factor) + 1;
    return growth * growth;
  }
  if (absent.empty()) return 1;
  const nlohmann::json row = {{"rope_parameters", parse_json(absent, "rope of a family")}};
  return score_growth(ConfigReader(row, "rope of a family"), "");
}

void finish_minicpm3(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config);
  const auto width = static_cast<double>(config.width), layers = static_cast<double>(config.layers);
  config.embedding_scale = static_cast<float>(file.number("scale_emb", 1e-9, 1e9, 12));
  if (!file.is_null("scale_depth")) {
    config.residual_scale = static_cast<float>(file.number("scale_depth", 1e-9, 1e9, 1.4) / std::sqrt(layers));
  }
  if (!file.is_null("dim_model_base")) {
    config.logit_scale = static_cast<float>(file.number("dim_model_base", 1e-9, 1e9, 256) / width);
  }
}

// The router of DeepSeek V3 with a softmax in the place of sigmoid and correction.
void finish_mistral4(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config);
  read_experts(file, config, "n_routed_experts|num_local_experts|num_experts", "moe_intermediate_size");
  read_sigmoid_router(file, config, 1);
  config.experts->routing.score = ops::RouterScore::softmax;
  read_shared_experts(file, config);
  use_experts_after_dense(file, config, 0);
}

TensorNames mistral4_names() {
  TensorNames names = deepseek_v3_names();
  ExpertNames& experts = names.block.experts;
  experts.correction = "";
  experts.fused_gate_up = experts.peft_gate_up;
  experts.fused_down = experts.peft_down;
  experts.peft_translates = false;
  return names;
}

}  // namespace

std::unique_ptr<Mixer> LatentAttentionMaker::operator()(const DecoderConfig&, int64_t, const std::string& prefix,
                                                        const Makers& makers) const {
  return std::make_unique<LatentAttention>(prefix, names, config, makers);
}

void use_latent_attention(const ConfigReader& file, DecoderConfig& config) {
  use_latent_attention(file, config, {}, false);
}

void use_latent_attention(const ConfigReader& file, DecoderConfig& config, const LatentAttentionNames& names,
                          bool gate) {
  LatentAttentionConfig latent = {.width = config.width, .heads = config.heads, .rotated = config.head_size};
  const bool may_lack = gate || config.model_type == "kimi_linear" || config.model_type == "sarvam_mla";
  const bool absent = !file.has("q_lora_rank") && (may_lack || file.is_null("q_lora_rank"));
  if (!absent) latent.query_rank = file.integer("q_lora_rank", 1, kMaxRank);
  latent.gate = gate;
  latent.rank = file.integer("kv_lora_rank", 1, kMaxRank);
  latent.plain = file.integer("qk_nope_head_dim", 1, kMaxRank);
  latent.value = file.integer("v_head_dim", 1, kMaxRank, config.width / config.heads);
  if (latent.value > latent.plain + latent.rotated) {
    file.fail("v_head_dim", "is larger than qk_nope_head_dim and qk_rope_head_dim together");
  }
  const Family* const row = family_of(config.family);
  const auto size = static_cast<double>(latent.plain + latent.rotated);
  latent.scale = static_cast<float>(score_growth(file, row ? row->rope_parameters : "") / std::sqrt(size));
  latent.bias = config.output_bias;
  latent.norm = {.kind = NormKind::rms, .eps = 1e-6f};  // whatever rms_norm_eps says
  if (!config.rope.empty() && !file.boolean("rope_interleave", true)) config.rope.at(0).pairs = ops::RopePairs::halves;
  for (LayerConfig& layer : config.layer) {
    layer.mixer_attends = true;
    latent.rotary = layer.rotary;
    latent.scaled_queries = layer.scaled_queries;
    layer.mixer = LatentAttentionMaker{latent, names};
  }
}

std::vector<Family> latent_families() {
  return {
      {.model_type = "youtu",
       .architecture = "YoutuForCausalLM",
       .keys = {.head_size = kLatentHeadKey, .kv_heads = "", .mlp_bias = ""},
       .norm = {.kind = NormKind::rms, .eps = 1e-6f},
       .tied_head = true,
       .head_size = 64,
       .max_positions = 131072,
       .rope_pairs = ops::RopePairs::neighbours,
       .finish = [](const ConfigReader& file, DecoderConfig& config) { use_latent_attention(file, config); },
       .gguf = kDeepseek2},
      {.model_type = "minicpm3",
       .architecture = "MiniCPM3ForCausalLM",
       .keys = {.head_size = kLatentHeadKey, .kv_heads = ""},
       .norm = {.kind = NormKind::rms, .eps = 1e-5f},
       .tied_head = true,
       .head_size = 32,
       .max_positions = 32768,
       .finish = finish_minicpm3},
      {.model_type = "mistral4",
       .architecture = "Mistral4ForCausalLM",
       .pad_id = 11,
       .names = mistral4_names(),
       .keys = {.head_size = kLatentHeadKey, .kv_heads = "", .rotary_share = "", .mlp_bias = ""},
       .head_size = 64,
       .max_positions = 1048576,
       .rope_parameters = R"({"rope_type": "yarn", "rope_theta": 1e4, "factor": 128, "beta_fast": 32, "beta_slow": 1,
                              "original_max_position_embeddings": 8192, "mscale": 1, "mscale_all_dim": 1,
                              "llama_4_scaling_beta": 0.1})",
       .rope_pairs = ops::RopePairs::neighbours,
       .scaled_queries = true,
       .finish = finish_mistral4},
  };
}

}  // namespace nibble
