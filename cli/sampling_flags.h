#pragma once
#include "nibble/core/models/generate.h"

namespace CLI {
class App;
}

namespace nibble::cli {

/// --max-new-tokens, --temperature, --top-k, --top-p, --seed.
void add_sampling_flags(CLI::App& command, GenerateOptions& options);

}  // namespace nibble::cli
