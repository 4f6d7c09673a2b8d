#include "nibble/core/models/families/families.h"

#include <algorithm>

#include "nibble/core/formatting/joined.h"
#include "nibble/core/models/families/expert_families.h"
#include "nibble/core/models/families/hybrid_rules.h"
#include "nibble/core/models/families/towers/composites.h"

namespace nibble {

namespace {

const std::vector<Family>& rows() {
  static const std::vector<Family> table = [] {
    std::vector<Family> all;
    for (const auto& more :
         {rms_norm_families(), layer_norm_families(), gemma4_families(), latent_families(), without_rope_families(),
          expert_families(), sigmoid_families(), hybrid_families(), tower_text_families()})
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
constexpr std::string_view kLoop = "what inkling2_text needs and layers that run several times";
constexpr std::string_view kLarge4 = "rope with learned frequencies and latents that layers share";
constexpr std::string_view kQwen4 = "attention to blocks, n-gram embeddings and hyper-connections";

constexpr Missing kMissing[] = {
    {"axk2", "AXK2ForCausalLM", "gated norms and a gate of latent attention", "index_topk"},
    {"beam", "BeamForCausalLM", "a biased gate of attention and residuals scaled by depth"},
    {"cpmant", "CpmAntForCausalLM", "relative position buckets and segment embeddings"},
    {"dbrx", "DbrxForCausalLM", "experts stacked along rows and weighed by a p-norm"},
    {"deepseek_v4", "DeepseekV4ForCausalLM", "compressed sparse attention, hyper-connections and a hash router"},
    {"diffllama", "DiffLlamaForCausalLM", "the difference of two softmaxes"},
    {"doge", "DogeForCausalLM", "an attention mask that values make"},
    {"dory", "DoryForCausalLM", "hidden states on a sphere and layers that run several times"},
    {"dots3_note_text", "Dots3NoteForCausalLM", kDots, "index_topk"},
    {"dots3_note", "Dots3NoteForConditionalGeneration", kDots, "index_topk"},
    {"hrm_text", "HrmTextForCausalLM", "stacks of layers that run in cycles"},
    {"hy_v4", "HYV4ForCausalLM", "hyper-connections, and sinks of latent attention", "index_topk"},
    {"inkling_text", "InklingForCausalLM", kInkling},
    {"inkling2_text", "Inkling2ForCausalLM", kInkling2},
    {"inkling2_loop_text", "Inkling2LoopForCausalLM", kLoop},
    {"inkling_mm_model", "InklingForConditionalGeneration", kInkling},
    {"inkling2", "Inkling2ForConditionalGeneration", kInkling2},
    {"inkling2_loop", "Inkling2LoopForConditionalGeneration", kLoop},
    {"jetmoe", "JetMoeForCausalLM", "experts for the queries and the output of attention"},
    {"longcat_flash", "LongcatFlashForCausalLM", "two attentions around one mixture, and experts that do nothing"},
    {"minimax", "MiniMaxForCausalLM", "lightning attention"},
    {"minimax_m3_vl_text", "MiniMaxM3VLForCausalLM", kBounded, kBlocks},
    {"minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", kBounded, kBlocks},
    {"mistral_large4_text", "MistralLarge4TextModel", kLarge4, "index_topk"},
    {"mistral_large4", "MistralLarge4ForConditionalGeneration", kLarge4, "index_topk"},
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
  return joined(rows(), ", ", &Family::model_type) + ", " + joined(composites(), ", ", &Composite::model_type);
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
