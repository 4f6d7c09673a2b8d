#pragma once
// Checkpoints of more than a language model, and where the text is in them.

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "nibble/core/models/decoder_config.h"

namespace nibble {

/// A checkpoint of more than a language model: config.json keeps the text's keys under text_config, and the names have
/// "language_model." behind their first part. The rest is passed over.
struct Composite {
  std::string_view model_type, architecture;
  std::string_view text;             ///< family of the text, where text_config does not say
  std::string_view defaults = "{}";  ///< JSON object of keys that may be absent in text_config
  bool text_adapters = false;        ///< PEFT's names are those of the text model alone: "model.layers"
  /// As published, config.json has the text's keys beside vision_config, and files have the names of the text model
  /// alone beside those of the tower (Qwen2.5-VL).
  bool flat = false;
  /// Where config.json does not say it outside of text_config, and files have no head, the head is the embedding.
  bool tied = false;
  bool peft_translates = false;  ///< see ExpertNames: PEFT goes by the model_type of the whole
};

std::span<const Composite> composites();

/// Null where it is a language model alone.
const Composite* find_composite(std::string_view model_type, std::string_view architecture);

/// What the config.json of one says of its language model, with what that leaves out or says outside of it; `place` is
/// the file.
nlohmann::json text_config(const nlohmann::json& whole, const Composite& composite, const std::string& place);

/// Makes of the language model that read from text_config the one beside its towers. files: null where there are none.
void place_beside_towers(const nlohmann::json& whole, const Composite& composite, const TensorShapes& files,
                         DecoderConfig& config);

}  // namespace nibble
