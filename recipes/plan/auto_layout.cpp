#include "nibble/recipes/plan/auto_layout.h"

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/recipes/plan/machine_speed.h"
#include "nibble/recipes/plan/plan.h"
#include "nibble/recipes/plan/plan_job.h"

namespace nibble {

namespace {

using nlohmann::json;

// speed: of these ranks.
json decide(const Recipe& recipe, const PlanJob& job, const MachineSpeed& speed, const RankContext& rank) {
  PlanRequest request;
  request.measure = [&](const PlanJob&, std::span<const int64_t>, int, int) { return speed; };
  request.ranks = rank.comm.size();
  request.budget = static_cast<int64_t>(rank.pool.budget());
  request.threads = rank.threads;
  const PlannedLayout chosen = plan_recipe(recipe, job, request).asked;
  const PlanLayout& layout = chosen.layout;
  const std::string needs = bytes_text(static_cast<double>(chosen.memory.needed_bytes())) + " a rank";
  const std::string budget = bytes_text(static_cast<double>(request.budget));
  json output = {{"degrees", {layout.mesh.pipeline, layout.mesh.replicate, layout.mesh.shard, layout.mesh.tensor}},
                 {"fits", chosen.fits},
                 {"text", describe(layout) + ", " + needs}};
  if (!chosen.fits) return output;
  output["text"] = "layout: " + describe(layout) + ": the least predicted time (" +
                   precise_seconds_text(chosen.time.seconds) + " a step) of what fits" +
                   (request.budget > 0 ? " " + budget : "") + ", " + needs;
  return output;
}

}  // namespace

Recipe with_layout(const Recipe& recipe, RankContext& rank, const Observer& observer) {
  const ParallelRecipe& degrees = recipe.parallel;
  const int ranks = rank.comm.size();
  if (ranks > 1 && degrees.pipeline == 1 && degrees.replicate == 1 && degrees.shard == 1 && degrees.tensor == 1) {
    Recipe copies = recipe;
    copies.parallel.replicate = ranks;
    if (rank.comm.rank() == 0) observer.message("layout: " + describe(plan_layout(copies)) + ", as no degree is given");
    return copies;
  }
  if (degrees.pipeline != 0 && degrees.replicate != 0 && degrees.shard != 0 && degrees.tensor != 0) return recipe;
  const PlanJob job = plan_job(recipe);
  const MachineSpeed speed =
      measure_machine(recipe, job, planned_tensor_degrees(recipe, job, rank.comm.size()), rank.threads, rank.comm);
  const std::string chosen_layout = rank.comm.rank() == 0 ? decide(recipe, job, speed, rank).dump() : "";
  const std::string text = rank.comm.broadcast_text("choose layout", chosen_layout, 0);
  const json output = json::parse(text);
  if (!output["fits"].get<bool>()) {
    throw UsageError("no layout of " + count_text(rank.comm.size(), "rank") +
                         " fits the memory budget; the least: " + output["text"].get<std::string>(),
                     "raise --max-memory, start more ranks, or use a 4-bit base", "parallel");
  }
  Recipe chosen = recipe;
  chosen.parallel.pipeline = output["degrees"][0];
  chosen.parallel.replicate = output["degrees"][1];
  chosen.parallel.shard = output["degrees"][2];
  chosen.parallel.tensor = output["degrees"][3];
  if (rank.comm.rank() == 0) observer.message(output["text"].get<std::string>());
  return chosen;
}

}  // namespace nibble
