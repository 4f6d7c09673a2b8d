#pragma once
// `quantization_config` in the config.json of a 4-bit model, as Transformers' BitsAndBytesConfig writes it, and which
// modules stay unquantized.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nibble/core/text/matching/python_regex.h"
#include "nibble/quant/quantized_matrix.h"

namespace nibble {

struct QuantizationConfig {
  QuantType type = QuantType::fp4;  ///< bnb_4bit_quant_type; absent means fp4. mxfp4: of gpt-oss
  bool double_quant = false;        ///< bnb_4bit_use_double_quant
  std::string compute_dtype = "float32";
  std::optional<std::vector<std::string>> skip_modules;  ///< llm_int8_skip_modules; absent means the head
};

/// Whether config["quantization_config"] is that of an LLM.int8 model. `place` names config.json in errors.
bool is_eight_bit(const nlohmann::json& config, const std::string& place);

/// Reads config["quantization_config"], or that of its text_config; nothing when there is none, and for weights in
/// 8-bit floats (fp8), which are read as plain ones (see read_fp8). `place` names config.json in errors. InputError
/// when it is of another method than these, bitsandbytes and mxfp4 (of which the type is all that counts), 8-bit, or a
/// value has the wrong type.
std::optional<QuantizationConfig> read_quantization_config(const nlohmann::json& config, const std::string& place);

/// Whether it says that weights are in 4 bits; throws for other methods as read_quantization_config does.
bool is_four_bit(const nlohmann::json& config, const std::string& place);

/// The object to store under "quantization_config", with all keys that Transformers writes.
nlohmann::json quantization_config_json(const QuantizationConfig& config);

/// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight"; other names (of tensors of all experts) are the
/// module's already.
std::string module_of_weight(const std::string& weight);

/// Modules that stay unquantized: an entry skips the modules whose path it matches as a regular expression from the
/// start up to a dot or the end, or ends (transformers.quantizers should_convert_module).
class SkipRule {
 public:
  /// `skip_modules` replaces `default_modules` (the output head) as a whole.
  SkipRule(const std::optional<std::vector<std::string>>& skip_modules,
           const std::vector<std::string>& default_modules);
  bool skips(const std::string& module) const;
  /// Throws UsageError, of `key`, for a name that skips none of all modules. Expressions may be those of several
  /// models.
  void require_used(std::span<const std::string> modules, const std::string& key) const;

 private:
  struct Entry {
    std::string suffix;
    PythonRegex pattern;
    bool skips(const std::string& module) const;
  };
  std::vector<Entry> entries_;
};

}  // namespace nibble
