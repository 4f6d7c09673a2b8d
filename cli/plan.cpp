// nibble plan: memory, time and bytes moved before anything is loaded.

#include <cstdio>
#include <memory>

#include "nibble/cli/commands.h"
#include "nibble/core/io/json_file.h"
#include "nibble/parallel/launch.h"
#include "nibble/recipes/plan.h"

namespace nibble::cli {

namespace {

struct Flags {
  std::string recipe, max_memory, cluster;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool json = false;
};

void run(const Flags& flags) {
  PlanRequest request;
  request.ranks = flags.ranks;
  if (!flags.max_memory.empty()) request.budget = static_cast<int64_t>(parse_bytes(flags.max_memory));
  if (!flags.cluster.empty()) request.cluster = parse_cluster(read_text_file(flags.cluster), flags.cluster);
  const RecipePlan plan = plan_recipe(read_recipe(flags.recipe, flags.overrides), request);
  std::fputs((flags.json ? plan_json(plan) + "\n" : plan_text(plan)).c_str(), stdout);
}

}  // namespace

void add_plan_command(Command& nibble) {
  auto flags = std::make_shared<Flags>();
  Command command = nibble.subcommand("plan", "Memory, time and bytes moved of a run; loads no weights");
  command.option("recipe", flags->recipe, "RECIPE.json").required();
  command.option("overrides", flags->overrides, "Recipe keys to change: train.microbatch_size=2");
  command.option("--max-memory", flags->max_memory, "Memory budget of each rank: 2GiB");
  command.option("-n,--ranks", flags->ranks, "Ranks (the product of the recipe's degrees)").at_least(1);
  command.option("--cluster", flags->cluster, "Description of a cluster, JSON (this machine, which is measured)");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble plan qlora.json model.path=llama --max-memory 4GiB -n 4");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
