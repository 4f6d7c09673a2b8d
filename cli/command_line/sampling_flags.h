#pragma once
#include <vector>

#include "nibble/cli/command_line/command.h"
#include "nibble/core/models/generation/generate.h"

namespace nibble::cli {

/// --max-new-tokens, --temperature, --top-k, --top-p, --seed. Returns the last three, for check_sampling().
std::vector<Argument> add_sampling_flags(Command& command, GenerateOptions& options);

/// Throws UsageError for values out of range; notes those of `of_draws` that are given where the temperature is 0.
void check_sampling(const SamplingOptions& options, const std::vector<Argument>& of_draws);

}  // namespace nibble::cli
