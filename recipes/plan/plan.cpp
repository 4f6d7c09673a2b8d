#include "nibble/recipes/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/plan/machine_speed.h"
#include "nibble/recipes/plan/plan_job.h"

namespace nibble {

namespace {

using OrderedJson = nlohmann::ordered_json;

// Costs of layouts from what was measured on this machine.
LayoutCosts measured_costs(const Recipe& recipe, const RecipePlan& plan, const PlanRequest& request) {
  const std::vector<int64_t> tensors = planned_tensor_degrees(recipe, plan.job, plan.ranks);
  const int ranks =
      static_cast<int>(std::min(plan.ranks, std::max<int64_t>(kMeasuredRanks, std::ranges::max(tensors))));
  const MachineSpeed speed = request.measure ? request.measure(plan.job, tensors, plan.threads, ranks)
                                             : measure_machine(recipe, plan.job, tensors, plan.threads, ranks);
  LayoutCosts costs{.threads = plan.threads, .budget = request.budget};
  costs.cluster.name = "this machine";
  costs.time_has_offload = !speed.offloaded.empty();
  costs.time = [&job = plan.job, speed](const PlanLayout& layout, const MemoryPlan& planned) {
    return step_time_here(job, layout, planned, speed);
  };
  return costs;
}

OrderedJson split_json(const MemorySplit& split) {
  OrderedJson output = OrderedJson::object();
  for (size_t use = 0; use < kMemoryUses; ++use) {
    output[memory_use_name(static_cast<MemoryUse>(use))] = split.bytes[use];
  }
  return output;
}

OrderedJson layout_json(const PlannedLayout& planned) {
  const PlanLayout& layout = planned.layout;
  OrderedJson output = {
      {"name", planned.rung},       {"pipeline", layout.mesh.pipeline},      {"replicate", layout.mesh.replicate},
      {"shard", layout.mesh.shard}, {"tensor", layout.mesh.tensor},          {"experts", layout.mesh.experts},
      {"zero", layout.zero},        {"offload_activations", layout.offload}, {"fits", planned.fits}};
  const int64_t layers = planned.stages.empty() ? 0 : planned.stages.back();
  int64_t recomputed = 0;
  for (int64_t l = 0; l < layers; ++l) recomputed += layout.recomputes(l) ? 1 : 0;
  output["gradient_checkpointing"] = recomputed > 0 ? "block" : "none";
  output["recomputed_blocks"] = recomputed;
  if (!planned.why_not.empty()) output["why_not"] = planned.why_not;
  if (planned.memory.stages.empty()) return output;
  output["peak_memory_bytes"] = planned.memory.resident_bytes();
  output["cached_bytes"] = planned.memory.largest().cached;
  output["memory"] = split_json(planned.memory.largest().split);
  output["ranks"] = OrderedJson::array();
  const int64_t each = layout.mesh.data() * layout.mesh.tensor;
  for (const StageMemory& stage : planned.memory.stages) {
    for (int64_t r = 0; r < each; ++r) output["ranks"].push_back(stage.resident());
  }
  output["stages"] = OrderedJson::array();
  for (const StageMemory& stage : planned.memory.stages) {
    output["stages"].push_back({{"layers", {stage.layers.begin, stage.layers.end}},
                                {"peak_memory_bytes", stage.resident()},
                                {"pool_peak_bytes", stage.pool_peak},
                                {"memory", split_json(stage.split)}});
  }
  output["step_seconds"] = planned.time.seconds;
  output["computing_seconds"] = planned.time.computing;
  output["communicating_seconds"] = planned.time.communicating;
  output["waiting_seconds"] = planned.time.waiting;
  if (layout.offload) {
    output["activation_file_bytes"] = planned.file_bytes;
    output["activation_bytes_written"] = planned.spilled_bytes;
    output["spilling_seconds"] = planned.time.spilling;
  }
  output["tokens_per_second"] = planned.time.tokens_per_second;
  output["bytes_sent"] = OrderedJson::object();
  for (const auto& [operation, bytes] : planned.traffic) output["bytes_sent"][operation] = static_cast<int64_t>(bytes);
  return output;
}

// As the run would be refused; "auto" is what choose_layout finds.
void check_ranks(const PlanLayout& layout, int64_t ranks) {
  const int64_t given = layout.mesh.ranks();
  if (given <= 1 || given == ranks) return;
  throw UsageError("pipeline x replicate x shard x tensor is " + std::to_string(given) + " (" + describe(layout) +
                       "), the plan is for " + count_text(ranks, "rank"),
                   "plan with -n " + std::to_string(given) + ", change the degrees, or set some to \"auto\"",
                   "parallel");
}

std::string explain(const RecipePlan& plan) {
  if (plan.budget == 0) return "no budget was given (--max-memory): " + plan.ladder.front().rung + " comes first";
  std::string before;
  for (const PlannedLayout& rung : plan.ladder) {
    if (!rung.fits) {
      before += (before.empty() ? "" : "; ") + rung.rung + ": " + rung.why_not;
      continue;
    }
    return "first that fits: " + rung.rung + " with " + bytes_text(static_cast<double>(rung.memory.needed_bytes())) +
           " a rank" + (before.empty() ? "" : " (" + before + ")");
  }
  return "nothing fits: " + before;
}

}  // namespace

const PlannedLayout* RecipePlan::first_fit() const {
  const auto fitting = std::ranges::find_if(ladder, &PlannedLayout::fits);
  return fitting == ladder.end() ? nullptr : &*fitting;
}

std::vector<int64_t> planned_tensor_degrees(const Recipe& recipe, const PlanJob& job, int64_t ranks) {
  const PlanLayout layout = plan_layout(recipe);
  std::vector<int64_t> degrees = {1};
  const bool decided = layout.mesh.ranks() > 0;
  if (decided && layout.mesh.ranks() != ranks) return degrees;
  const DecoderConfig& config = job.model.config;
  for (int64_t d = 2; d <= ranks; ++d) {
    if (ranks % d != 0 || (layout.mesh.tensor != 0 && layout.mesh.tensor != d)) continue;
    const bool fits =
        config.heads % d == 0 && config.kv_heads % d == 0 && config.mlp_width % d == 0 && job.takes({.tensor = d});
    if (decided || fits) degrees.push_back(d);
  }
  return degrees;
}

RecipePlan plan_recipe(const Recipe& recipe, const PlanRequest& request) {
  return plan_recipe(recipe, plan_job(recipe), request);
}

RecipePlan plan_recipe(const Recipe& recipe, const PlanJob& job, const PlanRequest& request) {
  RecipePlan plan;
  plan.job = job;
  const PlanLayout layout = plan_layout(recipe);
  plan.ranks = request.ranks > 0 ? request.ranks : std::max<int64_t>(1, layout.mesh.ranks());
  check_ranks(layout, plan.ranks);
  plan.threads = request.threads > 0 ? request.threads : static_cast<int>(recipe.train.threads);
  if (plan.threads == 0) plan.threads = std::max(1, threads() / static_cast<int>(std::min<int64_t>(plan.ranks, 4096)));
  LayoutCosts costs{.threads = plan.threads, .budget = request.budget};
  if (request.cluster) {
    costs.cluster = *request.cluster;
    if (costs.budget == 0) costs.budget = static_cast<int64_t>(request.cluster->memory);
  } else {
    costs = measured_costs(recipe, plan, request);
  }
  plan.machine = costs.cluster.name;
  plan.budget = costs.budget;
  plan.budget_set_by = request.budget_set_by;
  const bool free_recompute = !recipe.train.gradient_checkpointing.has_value();
  const GivenDegrees given{layout.mesh.pipeline, layout.mesh.replicate, layout.mesh.shard, layout.mesh.tensor,
                           free_recompute};
  const bool matches = layout.mesh.ranks() > 0 && layout.mesh.ranks() == plan.ranks;
  if (matches && !free_recompute) {
    plan.asked = plan_layout_costs(plan.job, layout, costs);
  } else if (matches || layout.mesh.ranks() == 0) {
    plan.asked = choose_layout(plan.job, layout, plan.ranks, given, costs);
  } else {  // no degree is given
    plan.asked = choose_layout(plan.job, layout, plan.ranks, {.tensor = 1, .recompute_is_free = free_recompute}, costs);
  }
  plan.ladder = walk_ladder(plan.job, layout, plan.ranks, costs);
  plan.why = explain(plan);
  return plan;
}

std::string plan_json(const RecipePlan& plan) {
  OrderedJson output = layout_json(plan.asked);
  output["machine"] = plan.machine;
  output["world_size"] = plan.ranks;
  output["threads"] = plan.threads;
  output["max_memory_bytes"] = plan.budget;
  output["weights"] = plan.job.model.weights();
  output["trained_values"] = plan.job.model.trained_values();
  output["tokens_in_step"] = plan.job.tokens * plan.job.accumulate;
  if (plan.total_steps > 0) {
    output["total_steps"] = plan.total_steps;
    output["run_seconds"] = static_cast<double>(plan.total_steps) * plan.asked.time.seconds;
  }
  output["ladder"] = OrderedJson::array();
  for (const PlannedLayout& rung : plan.ladder) output["ladder"].push_back(layout_json(rung));
  const PlannedLayout* first = plan.first_fit();
  output["first_fit"] = first ? OrderedJson(first->rung) : OrderedJson(nullptr);
  output["why"] = plan.why;
  return output.dump();
}

std::string plan_text(const RecipePlan& plan) {
  const PlannedLayout& asked = plan.asked;
  std::string text = plan.job.model.config.architecture + ", " + grouped_text(plan.job.model.weights()) + " weights, " +
                     grouped_text(plan.job.model.trained_values()) + " trained, steps of " +
                     grouped_text(plan.job.tokens * plan.job.accumulate) + " tokens\n";
  text += asked.rung + " on " + plan.machine + ", " + count_text(plan.threads, "thread") + " a rank\n";
  text += "memory of " + std::string(plan.ranks > 1 ? "the rank that needs most: " : "the process: ") +
          bytes_text(static_cast<double>(asked.memory.largest().resident())) +
          (!asked.fits       ? ", which does not fit: " + asked.why_not
           : plan.budget > 0 ? " of " + bytes_text(static_cast<double>(plan.budget))
                             : "") +
          (plan.budget_set_by.empty() ? "" : (plan.ranks > 1 ? " a rank that " : " that ") + plan.budget_set_by) + "\n";
  for (size_t use = 0; use < kMemoryUses; ++use) {
    const int64_t bytes = asked.memory.largest().split.bytes[use];
    if (bytes > 0)
      text += formatted("  %-12s %s\n", memory_use_name(static_cast<MemoryUse>(use)),
                        bytes_text(static_cast<double>(bytes)).c_str());
  }
  if (const int64_t cached = asked.memory.largest().cached; cached > 0) {
    text += "  and " + bytes_text(static_cast<double>(cached)) +
            " of the base in the page cache, or every pass reads them from the disk\n";
  }
  const double speed = asked.time.tokens_per_second;
  text += "step: " + precise_seconds_text(asked.time.seconds) + ", " +
          (speed < 100 ? formatted("%.3g", speed) : grouped_text(std::llround(speed))) + " tokens/s (computing " +
          precise_seconds_text(asked.time.computing) + ", communicating " +
          precise_seconds_text(asked.time.communicating) + ", waiting " + precise_seconds_text(asked.time.waiting) +
          ")\n";
  if (plan.total_steps > 0) {
    text += "whole run: " + count_text(plan.total_steps, "step") + ", " +
            precise_seconds_text(static_cast<double>(plan.total_steps) * asked.time.seconds) +
            ", without evaluations and saves\n";
  }
  for (const auto& [operation, bytes] : asked.traffic) {
    text += formatted("  %-17s %s sent a step\n", operation.c_str(), bytes_text(bytes).c_str());
  }
  if (asked.layout.offload) {
    text += formatted("  %-17s %s written and read a step, a file of %s\n", "activations",
                      bytes_text(static_cast<double>(asked.spilled_bytes)).c_str(),
                      bytes_text(static_cast<double>(asked.file_bytes)).c_str());
  }
  text += "ladder:\n";
  for (const PlannedLayout& rung : plan.ladder) {
    text += formatted("  %-14s", rung.rung.c_str());
    if (!rung.memory.stages.empty()) {
      text += formatted(" %10s a rank  %8s", bytes_text(static_cast<double>(rung.memory.needed_bytes())).c_str(),
                        precise_seconds_text(rung.time.seconds).c_str());
    }
    text += rung.fits ? "  fits\n" : "  " + rung.why_not + "\n";
  }
  return text + plan.why + "\n";
}

}  // namespace nibble
