// nibble init: a model of random weights from a config.json.

#include <cstdio>
#include <memory>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/recipes/models/init_model.h"

namespace nibble::cli {

void add_init_command(Command& nibble) {
  auto request = std::make_shared<InitRequest>();
  Command command = nibble.subcommand("init", "Make a model directory of random weights");
  command.option("--config", request->config, "config.json of the model to make").required();
  command.option("--out", request->out, "Directory to write").required().not_empty();
  command.option("--seed", request->seed, "Seed of the weights");
  command.option("--dtype", request->dtype, "Dtype of the weights: bf16, f32, nf4, or mxfp4 (experts)")
      .one_of({"bf16", "f32", "nf4", "mxfp4"})
      .shows_default();
  command.force_flag(request->replace, "a directory that nibble wrote");
  command.footer("Example: nibble init --config config.json --out fresh --dtype bf16");
  command.run([request] {
    const InitReport report = init_model(*request);
    say(stdout, "%s: %s in %s", request->out.c_str(), count_text(report.weights, "weight").c_str(),
        bytes_text(static_cast<double>(report.bytes)).c_str());
  });
}

}  // namespace nibble::cli
