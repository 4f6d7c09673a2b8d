#include "nibble/cli/command_line/sampling_flags.h"

#include "nibble/cli/printing/say.h"

namespace nibble::cli {

std::vector<Argument> add_sampling_flags(Command& command, GenerateOptions& options) {
  command.option("--max-new-tokens", options.max_new_tokens, "Tokens to generate at most").at_least(1).shows_default();
  command.option("--temperature", options.sampling.temperature, "0: greedy").at_least(0).shows_default();
  return {
      command.option("--top-k", options.sampling.top_k, "Sample from the k most probable tokens (0: all)").at_least(0),
      command.option("--top-p", options.sampling.top_p, "Sample from the most probable tokens that reach p together")
          .between(0, 1),
      command.option("--seed", options.sampling.seed, "Seed of the sampling")};
}

void check_sampling(const SamplingOptions& options, const std::vector<Argument>& of_draws) {
  check(options);
  if (options.temperature > 0) return;
  for (const Argument& argument : of_draws) {
    if (argument.given()) say(stderr, "note: " + argument.name() + " has no effect at temperature 0: nothing is drawn");
  }
}

}  // namespace nibble::cli
