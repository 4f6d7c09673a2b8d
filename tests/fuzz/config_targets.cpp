#include <nlohmann/json.hpp>

#include "nibble/adapters/peft/peft_config.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/json/yaml.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/quant/quantization_config.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/tests/fuzz/memory_files.h"

namespace nibble::fuzz {

void config(Bytes bytes) {
  try {
    parse_decoder_config(as_text(bytes), "config.json");
  } catch (const Error&) {
  }
  // The second reader of the same file looks for one key only.
  if (as_text(bytes).find("quantization_config") == std::string_view::npos) return;
  try {
    const auto quantization = read_quantization_config(parse_json(as_text(bytes), "config.json"), "config.json");
    if (quantization) SkipRule(quantization->skip_modules, {"lm_head"}).skips("model.layers.0.mlp.up_proj");
  } catch (const Error&) {
  }
}

void adapter_config(Bytes bytes) {
  try {
    const AdapterOptions options = parse_peft_config(as_text(bytes), "adapter_config.json");
    parse_peft_config(peft_config_text(options), "what we wrote");
  } catch (const Error&) {
  }
}

namespace {

void read_recipe_text(const std::string& text, const std::string& place, const std::vector<std::string>& overrides) {
  Recipe read;
  try {
    read = parse_recipe(text, place, overrides);
  } catch (const Error&) {
    return;
  }
  // What was accepted reads back as the same recipe.
  const std::string written = to_json(read);
  if (to_json(parse_recipe(written, "written")) != written) std::abort();
}

}  // namespace

// The first line is an override, the rest the recipe.
void recipe(Bytes bytes) {
  const std::string text(as_text(bytes));
  const size_t line = text.find('\n');
  const std::string override = line == std::string::npos ? "" : text.substr(0, line);
  read_recipe_text(line == std::string::npos ? text : text.substr(line + 1), "recipe.json",
                   override.empty() ? std::vector<std::string>{} : std::vector<std::string>{override});
}

void yaml(Bytes bytes) {
  const std::string text(as_text(bytes));
  try {
    const nlohmann::ordered_json value = parse_yaml(text, "f.yaml", {.max_depth = 64});
    const std::string json = value.dump();  // which says all of it but infinity and NaN
    if (nlohmann::ordered_json::parse(json).dump() != json) std::abort();
  } catch (const Error&) {
    return;
  }
  read_recipe_text(text, "recipe.yaml", {});
}

}  // namespace nibble::fuzz
