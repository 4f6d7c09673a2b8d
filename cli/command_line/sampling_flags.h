#pragma once
#include <vector>

#include "nibble/cli/command_line/command.h"
#include "nibble/core/models/generation/generate.h"

namespace nibble::cli {

/// --max-new-tokens, --temperature, --top-k, --top-p, --seed. Returns the last three, for check_sampling().
std::vector<Argument> add_sampling_flags(Command& command, GenerateOptions& options);

/// Throws UsageError for values out of range, and for one of `of_draws` where the temperature is 0: nothing is drawn.
void check_sampling(const SamplingOptions& options, const std::vector<Argument>& of_draws);

}  // namespace nibble::cli
