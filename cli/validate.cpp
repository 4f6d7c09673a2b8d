// nibble validate: everything about a recipe that can be checked without training: schema, files, data, a first batch.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/recipes/plan/dry_run.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble::cli {

namespace {

struct ValidateFlags {
  std::string recipe;
  std::vector<std::string> overrides;
  bool json = false;
};

void run(const ValidateFlags& flags) {
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  Observer observer;
  observer.on_message = [](const std::string& line) { say(stderr, line); };
  const DryRun found = dry_run(recipe, observer);
  if (flags.json)
    return print_json({{"valid", true},
                       {"parameters", found.parameters},
                       {"adapted_modules", found.adapted_modules},
                       {"samples", found.report.samples},
                       {"empty_answers", found.report.empty_answers},
                       {"trained_share", found.report.trained_share()},
                       {"total_steps", found.total_steps},
                       {"first_batch_tokens", found.first_step.tokens},
                       {"first_batch_label_tokens", found.first_step.label_tokens}});
  std::printf("model: %s", count_text(found.parameters, "parameter").c_str());
  if (found.adapted_modules > 0) std::printf(", an adapter on %s", count_text(found.adapted_modules, "module").c_str());
  const std::string trained =
      trains_tokens(recipe) ? ", " + grouped_text(found.first_step.label_tokens) + " of them trained" : "";
  std::printf("\nvalid: %s, the first with %s%s\n", count_text(found.total_steps, "step").c_str(),
              count_text(found.first_step.tokens, "token").c_str(), trained.c_str());
}

}  // namespace

void add_validate_command(Command& nibble) {
  auto flags = std::make_shared<ValidateFlags>();
  Command command = nibble.subcommand("validate", "Check a recipe, its files and its data without training");
  command.option("recipe", flags->recipe, "RECIPE.json").required();
  command.option("overrides", flags->overrides, "Recipe keys to change: data.train=my.jsonl");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble validate qlora.json model.path=llama data.train=my.jsonl output.dir=runs/mine");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
