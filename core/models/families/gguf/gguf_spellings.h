#pragma once
// What config.json calls the numbers of a GGUF file.

#include <string>

#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/models/families/families.h"

namespace nibble {

/// The message with the keys of `file` in the place of those of config.json that are made of them:
/// "qwen3moe.expert_count is 0" of "num_experts is 0". Keys that the file does not have stay.
std::string in_keys_of_file(const std::string& message, const GgufFile& file, const Family& family);

}  // namespace nibble
