#include "nibble/quant/quantization_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/text/matching/nearest.h"
#include "nibble/quant/tables.h"

namespace nibble {

namespace {

constexpr const char* kKey = "quantization_config";

// The values of an object that may come from anywhere. Absent and null mean the default.
class Values {
 public:
  Values(const nlohmann::json& object, const std::string& place) : object_(object), place_(place) {}

  bool flag(const char* key) const {
    const nlohmann::json* const value = find(key);
    if (value != nullptr && !value->is_boolean()) refuse(key, "is neither true nor false");
    return value != nullptr && value->get<bool>();
  }
  std::string text(const char* key, const std::string& otherwise) const {
    const nlohmann::json* const value = find(key);
    if (value != nullptr && !value->is_string()) refuse(key, "is no text");
    return value == nullptr ? otherwise : value->get<std::string>();
  }
  std::optional<std::vector<std::string>> names(const char* key) const {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) return std::nullopt;
    std::vector<std::string> list;
    if (!value->is_array()) refuse(key, "is no list");
    for (const nlohmann::json& entry : *value) {
      if (!entry.is_string()) refuse(key, "has an entry that is no text");
      list.push_back(entry.get<std::string>());
    }
    return list;
  }
  [[noreturn]] void refuse(const char* key, const std::string& reason) const {
    throw InputError(place_, std::string(kKey) + "." + key + " " + reason, "correct config.json");
  }

 private:
  const nlohmann::json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  const nlohmann::json& object_;
  const std::string& place_;
};

// In checkpoints with a tower it may stand with the keys of the text. Null where there is none.
const nlohmann::json* stored_config(const nlohmann::json& config) {
  if (!config.is_object()) return nullptr;
  const auto found = config.find(kKey), text = config.find("text_config");
  if (found != config.end() && !found->is_null()) return &*found;
  return text == config.end() ? nullptr : stored_config(*text);
}

// Blocks of other sizes are those of models that nibble does not open (MXFP8 of Inkling 2).
void check_fp8_blocks(const nlohmann::json& stored, const std::string& place) {
  const nlohmann::json blocks = stored.value("weight_block_size", nlohmann::json());
  if (blocks.is_null() || blocks == nlohmann::json{kFp8Block, kFp8Block}) return;
  throw InputError(place, std::string(kKey) + ".weight_block_size is not [128, 128]", "use the model in bf16");
}

/// The nearest of the parts between the dots of these paths, numbers left out.
std::string nearest_part(std::string_view word, std::span<const std::string> paths) {
  std::set<std::string> parts;
  for (const std::string& path : paths) {
    std::istringstream rest(path);
    for (std::string part; std::getline(rest, part, '.');) parts.insert(part);
  }
  std::erase_if(parts, [](const std::string& part) { return part.find_first_not_of("0123456789") == part.npos; });
  return nearest(word, {parts.begin(), parts.end()});
}

}  // namespace

bool is_eight_bit(const nlohmann::json& config, const std::string& place) {
  const nlohmann::json* const found = stored_config(config);
  if (found == nullptr || !found->is_object()) return false;
  const Values values(*found, place);
  return values.text("quant_method", "bitsandbytes") == "bitsandbytes" &&
         (values.flag("load_in_8bit") || values.flag("_load_in_8bit"));
}

std::optional<QuantizationConfig> read_quantization_config(const nlohmann::json& config, const std::string& place) {
  const nlohmann::json* const found = stored_config(config);
  if (found == nullptr) return std::nullopt;
  if (!found->is_object()) throw InputError(place, std::string(kKey) + " is no object", "correct config.json");
  const Values values(*found, place);
  const std::string method = values.text("quant_method", "bitsandbytes");
  if (method == "mxfp4") {
    QuantizationConfig published;
    published.type = QuantType::mxfp4;
    return published;
  }
  if (method == "fp8") {
    check_fp8_blocks(*found, place);
    return std::nullopt;
  }
  if (method != "bitsandbytes") {
    throw InputError(place, "the model is quantized by " + method.substr(0, 40) + ", which nibble cannot read",
                     "use the 16-bit model, or one quantized by bitsandbytes in 4 bits");
  }
  if (values.flag("load_in_8bit") || values.flag("_load_in_8bit")) {
    throw InputError(place, "the model is quantized to 8 bits: it can be loaded, but not quantized or merged into",
                     "use the 16-bit model, or one quantized by bitsandbytes in 4 bits");
  }
  if (!values.flag("load_in_4bit") && !values.flag("_load_in_4bit")) return std::nullopt;
  QuantizationConfig read;
  const std::string type = values.text("bnb_4bit_quant_type", "fp4");
  const std::optional<QuantType> known = find_quant_type(type);
  if (!known) values.refuse("bnb_4bit_quant_type", "is neither nf4 nor fp4");
  read.type = *known;
  read.double_quant = values.flag("bnb_4bit_use_double_quant");
  read.compute_dtype = values.text("bnb_4bit_compute_dtype", "float32");
  read.skip_modules = values.names("llm_int8_skip_modules");
  return read;
}

bool is_four_bit(const nlohmann::json& config, const std::string& place) {
  return !is_eight_bit(config, place) && read_quantization_config(config, place).has_value();
}

nlohmann::json quantization_config_json(const QuantizationConfig& config) {
  if (config.type == QuantType::mxfp4) return {{"quant_method", "mxfp4"}};
  return {
      {"quant_method", "bitsandbytes"},
      {"load_in_4bit", true},
      {"_load_in_4bit", true},
      {"load_in_8bit", false},
      {"_load_in_8bit", false},
      {"bnb_4bit_quant_type", quant_type_name(config.type)},
      {"bnb_4bit_use_double_quant", config.double_quant},
      {"bnb_4bit_compute_dtype", config.compute_dtype},
      {"bnb_4bit_quant_storage", "uint8"},
      {"llm_int8_skip_modules", config.skip_modules ? nlohmann::json(*config.skip_modules) : nlohmann::json(nullptr)},
      {"llm_int8_threshold", 6.0},
      {"llm_int8_enable_fp32_cpu_offload", false},
      {"llm_int8_has_fp16_weight", false}};
}

std::string module_of_weight(const std::string& weight) {
  constexpr std::string_view kEnd = ".weight";
  return weight.ends_with(kEnd) ? weight.substr(0, weight.size() - kEnd.size()) : weight;
}

SkipRule::SkipRule(const std::optional<std::vector<std::string>>& skip_modules,
                   const std::vector<std::string>& default_modules) {
  for (const std::string& entry : skip_modules ? *skip_modules : default_modules) {
    entries_.push_back({entry, PythonRegex("(?:" + entry + ")(?:(?<=\\.)|(?=\\.|$))")});
  }
}

bool SkipRule::Entry::skips(const std::string& module) const {
  return module.ends_with(suffix) || pattern.matches_start(module);
}

bool SkipRule::skips(const std::string& module) const {
  return std::ranges::any_of(entries_, [&](const Entry& entry) { return entry.skips(module); });
}

void SkipRule::require_used(std::span<const std::string> modules, const std::string& key) const {
  for (const Entry& entry : entries_) {
    const bool is_name = entry.suffix.find_first_of("*+?[](){}|^$\\") == entry.suffix.npos;
    if (!is_name || std::ranges::any_of(modules, [&](const std::string& module) { return entry.skips(module); }))
      continue;
    const std::string near = nearest_part(entry.suffix, modules);
    if (near == entry.suffix) {  // of what a name means in Transformers
      throw UsageError("no module of the model is called or begins with \"" + near + "\"",
                       "for what is inside of it write \".*" + near + "\"", key);
    }
    throw UsageError("\"" + entry.suffix + "\" is no module of the model",
                     near.empty() ? "name one, such as " + modules.back() : "did you mean " + near + "?", key);
  }
}

}  // namespace nibble
