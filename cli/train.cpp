// nibble train: run a recipe.

#include <memory>

#include "nibble/cli/commands.h"
#include "nibble/cli/progress.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/train/stop_signal.h"
#include "nibble/recipes/train.h"

namespace nibble::cli {

namespace {

struct Flags {
  std::string recipe;
  std::vector<std::string> overrides;
  bool profile = false;
};

void run(const Flags& flags) {
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  LocalRank rank(static_cast<int>(recipe.train.threads), static_cast<uint64_t>(recipe.train.seed));
  const StopSignal stop;
  ProgressPrinter printer(stderr);
  Observer observer = printer.observer();
  observer.stop_requested = [&] { return stop.requested(); };
  flags.profile ? train_profiled(recipe, rank.context(), observer) : train(recipe, rank.context(), observer);
}

}  // namespace

void add_train_command(Command& nibble) {
  auto flags = std::make_shared<Flags>();
  Command command = nibble.subcommand("train", "Run a recipe: fine-tune or pretrain");
  command.option("recipe", flags->recipe, "RECIPE.json").required();
  command.option("overrides", flags->overrides, "Recipe keys to change: train.steps=100 optimizer.lr=1e-4");
  command.flag("--profile", flags->profile, "Measure where the time goes: a trace in output.dir/profile, a summary");
  command.footer(
      "Stopped by SIGTERM or Ctrl-C it finishes the step, saves and exits with 75; the same command goes on from "
      "there.\n"
      "Example: nibble train qlora.json model.path=llama data.train=my.jsonl output.dir=runs/mine");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
