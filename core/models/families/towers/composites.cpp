#include "nibble/core/models/families/towers/composites.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/families/family_names.h"

namespace nibble {

namespace {

constexpr Composite kComposites[] = {
    {"apertus1p5", "Apertus1p5ForConditionalGeneration", "apertus1p5_text"},
    {"cohere_compass", "CohereCompassForConditionalGeneration", "cohere_compass_text"},
    {"exaone4_5", "Exaone4_5_ForConditionalGeneration", "exaone4"},
    {"gemma3", "Gemma3ForConditionalGeneration", "gemma3_text",
     R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
         "num_attention_heads": 8})"},
    {"gemma3n", "Gemma3nForConditionalGeneration", "gemma3n_text"},
    {"gemma4", "Gemma4ForConditionalGeneration", "gemma4_text"},
    {"gemma4_unified", "Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text"},
    {"glm46v", "Glm46VForConditionalGeneration", "glm4v_text"},
    {"glm4v", "Glm4vForConditionalGeneration", "glm4v_text"},
    {.model_type = "glm4v_moe",
     .architecture = "Glm4vMoeForConditionalGeneration",
     .text = "glm4v_moe_text",
     .peft_translates = true},
    {.model_type = "internvl", .architecture = "InternVLForConditionalGeneration", .text = "qwen2", .tied = true},
    {"kimi_k25", "Kimi_K25ForConditionalGeneration", "deepseek_v3"},
    {.model_type = "lfm2_vl", .architecture = "Lfm2VlForConditionalGeneration", .text = "lfm2", .tied = true},
    {.model_type = "lfm3_vl", .architecture = "Lfm3VlForConditionalGeneration", .text = "lfm3", .tied = true},
    {.model_type = "lighton_ocr", .architecture = "LightOnOcrForConditionalGeneration", .text = "qwen3", .tied = true},
    {.model_type = "llama4",
     .architecture = "Llama4ForConditionalGeneration",
     .text = "llama4_text",
     .text_adapters = true},
    {"minicpmv4_6", "MiniCPMV4_6ForConditionalGeneration", "qwen3_5_text"},
    {"minicpmv4_7", "MiniCPMV4_7ForConditionalGeneration", "qwen3_5_text"},
    {.model_type = "mistral3", .architecture = "Mistral3ForConditionalGeneration", .text = "mistral", .tied = true},
    {.model_type = "qwen2_5_vl",
     .architecture = "Qwen2_5_VLForConditionalGeneration",
     .text = "qwen2_5_vl_text",
     .flat = true},
    {.model_type = "qwen2_vl",
     .architecture = "Qwen2VLForConditionalGeneration",
     .text = "qwen2_vl_text",
     .flat = true},
    {.model_type = "qwen3_5",
     .architecture = "Qwen3_5ForConditionalGeneration",
     .text = "qwen3_5_text",
     .text_adapters = true},
    {.model_type = "qwen3_5_moe",
     .architecture = "Qwen3_5MoeForConditionalGeneration",
     .text = "qwen3_5_moe_text",
     .text_adapters = true},
    {"qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text"},
    {"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text"},
};

constexpr const char* kText = "model.language_model.";

}  // namespace

std::span<const Composite> composites() { return kComposites; }

const Composite* find_composite(std::string_view model_type, std::string_view architecture) {
  const auto fits = [&](const Composite& composite) {
    return model_type.empty() ? architecture == composite.architecture : model_type == composite.model_type;
  };
  const auto* found = std::ranges::find_if(kComposites, fits);
  return found == std::end(kComposites) ? nullptr : found;
}

nlohmann::json text_config(const nlohmann::json& whole, const Composite& composite, const std::string& place) {
  nlohmann::json text = whole.value("text_config", nlohmann::json());
  if (composite.flat && text.is_null()) {
    text = whole;
    text.erase("model_type");
  }
  if (!text.is_object()) throw InputError(place, "text_config is not there or no object", "download config.json again");
  if (text.value("model_type", nlohmann::json()) == "exaone4_5_text") text["model_type"] = "exaone4";  // in other words
  const nlohmann::json defaults = parse_json(composite.defaults, place);
  for (const auto& [key, value] : defaults.items()) {
    if (!text.contains(key)) text[key] = value;
  }
  for (const char* key : {"tie_word_embeddings", "bos_token_id", "eos_token_id"}) {
    if (whole.contains(key)) text[key] = whole[key];
  }
  return text;
}

void place_beside_towers(const nlohmann::json& whole, const Composite& composite, const TensorShapes& files,
                         DecoderConfig& config) {
  config.model_type = composite.model_type;
  config.architecture = composite.architecture;
  const auto hold = [&](const std::string& module) { return files && files(module + ".weight"); };
  const TensorNames inside = inside_language_model(config.names);
  if (composite.flat && hold(config.names.embedding) && !hold(inside.embedding)) {
    config.file_prefix = "model.";
    config.adapter_prefix = kText;
  } else {
    config.names = inside;
  }
  if (composite.text_adapters) {
    config.file_prefix = kText;
    config.adapter_prefix = "model.";
  } else if (!composite.peft_translates) {
    config.names.block.experts.peft_translates = false;
  }
  if (composite.tied && files && !whole.contains("tie_word_embeddings") && !hold(config.names.head)) {
    config.tied_head = true;
  }
  config.towers = {"model.vision_tower.",    "model.multi_modal_projector.",
                   "model.visual.",          "model.vision_model.",
                   "model.audio_tower.",     "model.embed_vision.",
                   "model.embed_audio.",     "mtp.",
                   "vision_tower.",          "mm_projector.",
                   "model.mm_projector.",    "model.vision_tokenizer.",
                   "model.audio_tokenizer.", "model.merger.",
                   "model.vision_encoder.",  "model.vision_projection."};
}

}  // namespace nibble
