#pragma once
#include "nibble/cli/command_line/command.h"
#include "nibble/core/models/generation/generate.h"

namespace nibble::cli {

/// --max-new-tokens, --temperature, --top-k, --top-p, --seed.
void add_sampling_flags(Command& command, GenerateOptions& options);

}  // namespace nibble::cli
