// nibble init: a model of random weights from a config.json.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "nibble/cli/commands.h"
#include "nibble/recipes/init_model.h"

namespace nibble::cli {

void add_init_command(CLI::App& app) {
  auto request = std::make_shared<InitRequest>();
  CLI::App* command = app.add_subcommand("init", "Make a model directory of random weights");
  command->add_option("--config", request->config, "config.json of the model to make")->required();
  command->add_option("--out", request->out, "Directory to write")->required();
  command->add_option("--seed", request->seed, "Seed of the weights");
  command->add_option("--dtype", request->dtype, "Dtype of the weights: bf16, f32 or nf4")
      ->check(CLI::IsMember({"bf16", "f32", "nf4"}))
      ->capture_default_str();
  command->add_flag("--force", request->force, "Replace an existing directory");
  command->footer("Example: nibble init --config config.json --out fresh --dtype bf16");
  command->callback([request] {
    const InitReport report = init_model(*request);
    std::printf("%s: %lld weights in %.1f MB\n", request->out.c_str(), static_cast<long long>(report.weights),
                static_cast<double>(report.bytes) / 1e6);
  });
}

}  // namespace nibble::cli
