#include "nibble/cli/sampling_flags.h"

#include <CLI/CLI.hpp>

namespace nibble::cli {

void add_sampling_flags(CLI::App& command, GenerateOptions& options) {
  command.add_option("--max-new-tokens", options.max_new_tokens, "Tokens to generate at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--temperature", options.sampling.temperature, "0: greedy")->check(CLI::NonNegativeNumber);
  command.add_option("--top-k", options.sampling.top_k, "Sample from the k most probable tokens (0: all)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--top-p", options.sampling.top_p, "Sample from the most probable tokens that reach p together")
      ->check(CLI::Range(0.0, 1.0));
  command.add_option("--seed", options.sampling.seed, "Seed of the sampling");
}

}  // namespace nibble::cli
