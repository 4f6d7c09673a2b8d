// nibble sagemaker-train: the entry of a SageMaker training container.

#include <cstdio>
#include <memory>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/progress.h"
#include "nibble/core/base/error.h"
#include "nibble/core/train/run/stop_signal.h"
#include "nibble/recipes/environment/sagemaker.h"

namespace nibble::cli {

namespace {

void run(const std::string& base) {
  StopSignal stop(StopSignal::End::resumable, StopPolicy::at_once);
  ProgressPrinter printer(stderr);
  Observer observer = printer.observer();
  stop.watch(observer);
  try {
    run_sagemaker_job(read_sagemaker_job(base), observer);
  } catch (const Interrupted&) {
    throw;  // the service stops the job, or takes the machine back and starts it again
  } catch (const std::exception& error) {
    write_sagemaker_failure(base, error.what());
    throw;
  }
}

}  // namespace

void add_sagemaker_command(Command& nibble) {
  auto base = std::make_shared<std::string>("/opt/ml");
  Command command = nibble.subcommand("sagemaker-train", "Run as a SageMaker training container does");
  command.option("--base", *base, "Where the service puts its files").not_empty().shows_default();
  command.footer(
      "Hyperparameters are recipe keys (lr or optimizer.lr) and `recipe`, a shipped recipe or a file of a channel.\n"
      "Channels: model, train, eval, tokenizer. The result goes to BASE/model, a reason to BASE/output/failure.\n"
      "Example: nibble sagemaker-train --base /opt/ml");
  command.run([base] { run(*base); });
}

}  // namespace nibble::cli
