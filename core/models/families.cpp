#include "nibble/core/models/families.h"

#include <algorithm>

namespace nibble {

namespace {

// The names of Llama serve most families.
const TensorNames kLlamaNames;

const std::vector<Family>& rows() {
  static const std::vector<Family> table = {
      {.model_type = "llama", .architecture = "LlamaForCausalLM", .names = kLlamaNames},
      {.model_type = "mistral",
       .architecture = "MistralForCausalLM",
       .names = kLlamaNames,
       .kv_heads = 8,
       .max_positions = 131072,
       .window_rule = WindowRule::every,
       .window = 4096},
      {.model_type = "qwen2",
       .architecture = "Qwen2ForCausalLM",
       .names = kLlamaNames,
       .qkv_bias = true,
       .kv_heads = 32,
       .max_positions = 32768,
       .window_rule = WindowRule::from_layer,
       .window = 4096},
      {.model_type = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .names = kLlamaNames,
       .qk_norm = true,
       .kv_heads = 32,
       .head_size = 128,
       .max_positions = 32768,
       .window_rule = WindowRule::from_layer,
       .window = 4096},
  };
  return table;
}

std::string known() {
  std::string list;
  for (const Family& family : rows()) list += (list.empty() ? "" : ", ") + std::string(family.model_type);
  return list;
}

bool same_letters(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::span<const Family> families() { return rows(); }

const Family& find_family(std::string_view model_type, std::string_view architecture, const std::string& place) {
  for (const Family& family : rows()) {
    const bool type_fits = model_type.empty() ? !architecture.empty() : model_type == family.model_type;
    // The first conversions of Llama wrote LLaMAForCausalLM.
    const bool architecture_fits = architecture.empty() || same_letters(architecture, family.architecture);
    if (type_fits && architecture_fits) return family;
  }
  const std::string asked = model_type.empty()     ? std::string(architecture)
                            : architecture.empty() ? std::string(model_type)
                                                   : std::string(model_type) + " (" + std::string(architecture) + ")";
  throw InputError(place, asked.empty() ? "says neither model_type nor architectures" : "unknown architecture " + asked,
                   "known: " + known());
}

}  // namespace nibble
