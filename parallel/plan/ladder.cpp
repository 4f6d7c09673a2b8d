#include "nibble/parallel/plan/ladder.h"

#include <algorithm>
#include <numeric>
#include <ranges>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"

namespace nibble {

namespace {

double bytes_of(const Traffic& traffic) {
  return std::accumulate(traffic.begin(), traffic.end(), 0.0,
                         [](double sum, const auto& entry) { return sum + entry.second; });
}

PlanLayout with_degrees(PlanLayout layout, int64_t pipeline, int64_t replicate, int64_t shard, Recompute recompute) {
  layout.mesh.pipeline = pipeline;
  layout.mesh.replicate = replicate;
  layout.mesh.shard = shard;
  if (pipeline != static_cast<int64_t>(layout.stages.size())) layout.stages.clear();
  layout.mesh.tensor = 1;
  if (layout.mesh.data() % layout.mesh.experts != 0) layout.mesh.experts = 1;
  layout.recompute = recompute;
  layout.recomputed.clear();
  return layout;
}

bool possible(const PlanJob& job, const PlanLayout& layout) {
  return layout.mesh.pipeline <= job.model.config.layers && (!job.takes || job.takes(layout.mesh));
}

}  // namespace

PlannedLayout plan_layout_costs(const PlanJob& job, const PlanLayout& layout, const LayoutCosts& costs,
                                bool all_layers) {
  PlannedLayout planned{.rung = describe(layout), .layout = layout};
  planned.stages = place_stages(job, layout, costs.threads, costs.budget);
  planned.memory = plan_memory(job, layout, planned.stages, costs.threads, costs.budget, all_layers);
  planned.time = costs.time
                     ? costs.time(layout, planned.memory)
                     : step_time(job, layout, planned.memory, pass_seconds(job, layout, costs.cluster), costs.cluster);
  if (layout.offload) {
    planned.file_bytes = std::ranges::max(planned.memory.stages | std::views::transform(&StageMemory::file));
    planned.spilled_bytes = std::ranges::max(planned.memory.stages | std::views::transform(&StageMemory::written));
    if (!costs.time_has_offload) add_spill(planned.time, static_cast<double>(planned.spilled_bytes), costs.cluster);
  }
  planned.traffic = traffic_of(job, layout, planned.memory);
  planned.fits = planned.memory.fits(costs.budget);
  if (!planned.fits) {
    planned.why_not = "needs " + bytes_text(static_cast<double>(planned.memory.needed_bytes())) + " a rank" +
                      (planned.memory.largest().cached > 0 ? " with its page cache" : "") + ", the budget is " +
                      bytes_text(static_cast<double>(costs.budget));
  }
  return planned;
}

std::vector<PlannedLayout> walk_ladder(const PlanJob& job, const PlanLayout& base, int64_t ranks,
                                       const LayoutCosts& costs) {
  std::vector<PlannedLayout> ladder;
  PlanLayout kept = base;
  kept.offload = false;
  const auto planned = [&](const std::string& name, const PlanLayout& layout) -> PlannedLayout {
    if (!possible(job, layout)) {
      return {.rung = name, .layout = layout, .fits = false, .why_not = "not possible for this model"};
    }
    PlannedLayout result = plan_layout_costs(job, layout, costs);
    result.rung = name;
    return result;
  };
  const auto rung = [&](const std::string& name, const PlanLayout& layout) { ladder.push_back(planned(name, layout)); };
  rung(ranks > 1 ? "data parallel" : "one rank", with_degrees(kept, 1, ranks, 1, Recompute::none));
  rung("checkpointing", with_degrees(kept, 1, ranks, 1, Recompute::block));
  if (ranks > 1) {
    PlanLayout sharded = with_degrees(kept, 1, 1, ranks, Recompute::block);
    sharded.zero = 2;
    rung("zero 2", sharded);
    sharded.zero = 3;
    rung("zero 3", sharded);
    rung("pipeline", with_degrees(kept, ranks, 1, 1, Recompute::block));
  }
  const auto offloaded = [&](const PlannedLayout& of) {
    PlanLayout layout = of.layout;
    layout.offload = true;
    return planned("offload", layout);
  };
  PlannedLayout last = offloaded(ladder.back());
  if (ranks > 1) {
    PlannedLayout other = offloaded(ladder[ladder.size() - 2]);
    const bool there = !other.memory.stages.empty();
    if (there && (last.memory.stages.empty() || other.memory.needed_bytes() < last.memory.needed_bytes())) {
      last = std::move(other);
    }
  }
  ladder.push_back(std::move(last));
  return ladder;
}

// With as few blocks recomputed as fit.
PlanLayout with_fitted_recomputation(const PlanJob& job, PlanLayout layout, const LayoutCosts& costs, bool all_layers) {
  const std::vector<int64_t> stages = place_stages(job, layout, costs.threads, costs.budget);
  layout.recomputed = layers_to_recompute(job, layout, stages, costs.threads, costs.budget, costs.budget, all_layers);
  layout.stages.clear();
  for (size_t s = 0; s + 1 < stages.size(); ++s) layout.stages.push_back(stages[s + 1] - stages[s]);
  return layout;
}

PlannedLayout choose_layout(const PlanJob& job, const PlanLayout& base, int64_t ranks, const GivenDegrees& given,
                            const LayoutCosts& costs) {
  std::vector<PlannedLayout> tried;
  const auto choices = [](int64_t fixed, int64_t left) {
    std::vector<int64_t> degrees;
    for (int64_t d = 1; d <= left; ++d) {
      if (left % d == 0 && (fixed == 0 || d == fixed)) degrees.push_back(d);
    }
    return degrees;
  };
  const auto fitted = [&](const PlanLayout& layout, bool all_layers) {
    const bool free = given.recompute_is_free && costs.budget > 0;
    return free ? with_fitted_recomputation(job, layout, costs, all_layers) : layout;
  };
  const Recompute policy = given.recompute_is_free ? Recompute::none : base.recompute;
  const DecoderConfig& config = job.model.config;
  for (const int64_t tensor : choices(given.tensor, ranks)) {
    if (config.heads % tensor != 0 || config.kv_heads % tensor != 0 || config.mlp_width % tensor != 0) continue;
    for (const int64_t pipeline : choices(given.pipeline, ranks / tensor)) {
      for (const int64_t shard : choices(given.shard, ranks / tensor / pipeline)) {
        const int64_t replicate = ranks / tensor / pipeline / shard;
        if (given.replicate != 0 && given.replicate != replicate) continue;
        if (replicate * shard % base.mesh.experts != 0) continue;
        PlanLayout layout = with_degrees(base, pipeline, replicate, shard, policy);
        layout.mesh.tensor = tensor;
        if (!possible(job, layout)) continue;
        tried.push_back(plan_layout_costs(job, fitted(layout, false), costs, false));
      }
    }
  }
  if (tried.empty()) {
    throw UsageError("no layout of " + count_text(ranks, "rank") + " has the degrees given",
                     "start another number of ranks, or set more of them to \"auto\"", "parallel");
  }
  // Predictions are not exact: what is within 2% counts as equal.
  const auto better = [](const PlannedLayout& a, const PlannedLayout& b) {
    if (a.fits != b.fits) return a.fits;
    if (!a.fits) return a.memory.needed_bytes() < b.memory.needed_bytes();
    if (a.time.seconds < 0.98 * b.time.seconds) return true;
    return a.time.seconds <= b.time.seconds * 1.02 && bytes_of(a.traffic) < bytes_of(b.traffic);
  };
  for (;;) {
    PlannedLayout* best = &tried.front();
    for (PlannedLayout& one : tried) {
      if (better(one, *best)) best = &one;
    }
    const bool seemed_to_fit = best->fits;
    *best = plan_layout_costs(job, fitted(best->layout, true), costs);
    if (best->fits || !seemed_to_fit) return *best;
  }
}

}  // namespace nibble
