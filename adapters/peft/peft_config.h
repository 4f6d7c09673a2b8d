#pragma once
// adapter_config.json as PEFT 0.21 writes and reads it.

#include <string>
#include <string_view>

#include "nibble/adapters/options.h"

namespace nibble {

/// Reads the text of an adapter_config.json; `place` names it in errors. Absent keys have PEFT's defaults, unknown keys
/// are ignored. Throws InputError for another kind of adapter than LoRA, values of the wrong type or out of bounds, and
/// for options that would change the result and are not supported here.
AdapterOptions parse_peft_config(std::string_view json, const std::string& place);

/// The text of an adapter_config.json with every key of PEFT 0.21.
std::string peft_config_text(const AdapterOptions& options);

}  // namespace nibble
