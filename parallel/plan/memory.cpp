#include "nibble/parallel/plan/memory.h"

#include <algorithm>
#include <ranges>

#include "nibble/parallel/plan/stage_run.h"
#include "nibble/parallel/plan/step_time.h"

namespace nibble {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// What a process of this program has resident before it holds anything, and for every thread (buffers of products, see
// gemm_workspace.h, and stacks); a rank of a job has the MPI library besides. From whole runs of small models, less
// their pools: the program's part is 20 MiB of mapped files, 11 of them its own code, which grows, and a heap of 2 to 3
// without the data (/proc/PID/smaps).
constexpr int64_t kProgramBytes = 22 * kMiB, kThreadBytes = 5 * kMiB / 2, kMpiBytes = 9 * kMiB;
constexpr int64_t kReadingProgramBytes = 14 * kMiB;  // while it reads, with less of its code

}  // namespace

const StageMemory& MemoryPlan::largest() const {
  return *std::ranges::max_element(stages, {}, [](const StageMemory& stage) { return stage.needed(); });
}

int64_t MemoryPlan::resident_bytes() const {
  return std::ranges::max(stages | std::views::transform(&StageMemory::resident));
}

bool MemoryPlan::fits(int64_t budget) const {
  if (budget == 0) return true;
  return needed_bytes() <= budget && std::ranges::all_of(stages, &StageMemory::fits_pool);
}

namespace {

using detail::StageRun, detail::StageSizes;

/// The stages of one layout.
class Stages {
 public:
  Stages(const PlanJob& job, const PlanLayout& layout, int threads)
      : job_(job), layout_(layout), threads_(threads), count_(microbatches_of_rank(job, layout)) {
    const PlannedModel& model = job.model;
    for (int64_t l = 1; l < model.config.layers; ++l) alike_ = alike_ && model.group(l).kind == model.group(0).kind;
  }

  /// recomputed: by layer of the whole model.
  StageMemory memory(const LayerRange& range, int64_t stage, const std::vector<bool>& recomputed, int64_t budget,
                     bool all_layers = false) {
    int64_t again = 0;
    for (int64_t l = range.begin; l < range.end; ++l) {
      if (recomputed[static_cast<size_t>(l)]) again = l + 1 - range.begin;
    }
    const StageRun run = run_of(range, again, in_flight(stage), all_layers);
    const StageRun::Peak& most = run.largest();
    StageMemory memory{.layers = range, .split = most.split};
    for (const StageRun::Peak& peak : run.peaks) memory.pool_peak = std::max(memory.pool_peak, peak.pool);
    memory.fits_pool = budget == 0 || memory.pool_peak <= budget;
    // The pool returns pages that no block fills before it holds more than its budget.
    const int64_t blocks = most.split.total() - most.mapped;
    const int64_t room = std::max<int64_t>(0, std::max(budget, memory.pool_peak) - blocks);
    memory.split[MemoryUse::margin] = budget > 0 ? std::min(run.margin, room) : run.margin;
    memory.cached = std::max<int64_t>(0, run.used_maps - most.mapped);
    memory.file = run.file;
    memory.written = run.written;
    memory.costs = run.costs;
    memory.split[MemoryUse::workspace] += threads_ * kThreadBytes;
    const int64_t mpi = layout_.mesh.ranks() > 1 ? kMpiBytes : 0;
    memory.split[MemoryUse::program] += kProgramBytes + job_.program_bytes + mpi;
    const int64_t reading = kReadingProgramBytes + job_.reading_bytes + mpi;
    memory.split[MemoryUse::program] += std::max<int64_t>(0, reading - memory.resident());
    return memory;
  }

 private:
  static constexpr StageSizes kFew = {5, 5, 3}, kStep = {2, 2, 1};

  /// Microbatches between their passes on this stage, at most.
  int64_t in_flight(int64_t stage) const {
    const auto stages = static_cast<int>(layout_.mesh.pipeline);
    if (stages == 1) return 1;
    const int64_t limit = layout_.in_flight > 0 ? std::min(layout_.in_flight, count_) : count_;
    const bool alternates = layout_.schedule == PipelineSchedule::one_f_one_b;
    const int64_t played = std::max<int64_t>(1, alternates ? std::min<int64_t>(limit, stages) : limit);
    int64_t now = 0, most = 1;
    for (const PipelineAction& action :
         pipeline_actions(layout_.schedule, stages, static_cast<int>(stage), played, played)) {
      now += action.forward ? 1 : -1;
      most = std::max(most, now);
    }
    return most;
  }

  StageRun run_of(const LayerRange& range, int64_t again, int64_t in_flight, bool all_layers) {
    first_ = range.begin == 0;
    last_ = range.end == job_.model.config.layers;
    const StageSizes sizes = {range.end - range.begin - again, again, in_flight};
    if (!alike_) {
      begin_ = range.begin;
      return once(sizes, [&] { return of_largest_shard(job_.model.config, {range, again, in_flight, threads_}); });
    }
    StageRun run = along(sizes, 0);
    if (all_layers) run.margin = along(sizes, 2).margin;
    return run;
  }

  // Every number of a run lies on a straight line in each of the sizes once they are not the smallest.
  StageRun along(const StageSizes& sizes, size_t size) {
    if (size == sizes.size()) return few(sizes);
    if (sizes[size] <= kFew[size]) return along(sizes, size + 1);
    StageSizes low = sizes, high = sizes;
    high[size] = kFew[size];
    low[size] = kFew[size] - kStep[size];
    return detail::grown(along(low, size + 1), along(high, size + 1),
                         static_cast<double>(sizes[size] - kFew[size]) / static_cast<double>(kStep[size]));
  }

  const StageRun& few(const StageSizes& sizes) {
    return once(sizes, [&] {
      const auto& [kept, again, in_flight] = sizes;
      DecoderConfig config = job_.model.config;
      const int64_t below = first_ ? 0 : 1, end = below + kept + again;
      config.layers = end + (last_ ? 0 : 1);
      if (!config.layer.empty()) config.layer.resize(static_cast<size_t>(config.layers), config.layer.front());
      return of_largest_shard(config, {{below, end}, again, in_flight, threads_});
    });
  }

  /// What `run` gives, which is called where no layout of the job has had such a stage before.
  template <typename Run>
  const StageRun& once(const StageSizes& sizes, const Run& run) {
    const auto key = std::pair(settings(), sizes);
    auto& runs = detail::runs_of(job_).stages;
    if (const auto found = runs.find(key); found != runs.end()) return found->second;
    return runs.emplace(key, run()).first->second;
  }

  // Shards begin where tensors or blocks end: the first and the last are the most uneven. Of large ones it does not
  // matter.
  StageRun of_largest_shard(const DecoderConfig& config, detail::StageRank rank) const {
    StageRun first = detail::run_stage(job_, config, layout_, rank);
    constexpr int64_t kLargeShard = int64_t{1} << 21;  // values; many times the 2^15 that are not parted
    const int64_t shards = layout_.mesh.shard;
    if (shards == 1 || job_.model.group(0).weights / shards > kLargeShard) return first;
    rank.shard = layout_.mesh.shard - 1;
    const StageRun last = detail::run_stage(job_, config, layout_, rank);
    return last.largest().split.total() > first.largest().split.total() ? last : first;
  }

  // All else that a run depends on.
  detail::PlannedRuns::Settings settings() const {
    const auto number = [](auto value) { return static_cast<int64_t>(value); };
    return {begin_,
            first_,
            last_,
            layout_.mesh.pipeline > 1,
            layout_.mesh.replicate,
            layout_.mesh.shard,
            layout_.mesh.tensor,
            layout_.mesh.experts,
            layout_.zero,
            layout_.shard_adapters,
            layout_.reshard_after_forward,
            layout_.prefetch,
            number(layout_.wire_dtype),
            number(layout_.schedule),
            layout_.offload,
            threads_,
            count_,
            job_.tokens,
            job_.document_length,
            number(job_.compute_dtype),
            number(job_.optimizer),
            number(job_.gradient_sum)};
  }

  const PlanJob& job_;
  const PlanLayout& layout_;
  int threads_;                // of a rank
  int64_t count_, begin_ = 0;  // the stage's lowest layer, where layers differ
  bool alike_ = true, first_ = true, last_ = true;
};

std::vector<bool> recomputed_layers(const PlanJob& job, const PlanLayout& layout) {
  std::vector<bool> recomputed;
  for (int64_t l = 0; l < job.model.config.layers; ++l) recomputed.push_back(layout.recomputes(l));
  return recomputed;
}

}  // namespace

MemoryPlan plan_memory(const PlanJob& job, const PlanLayout& layout, const std::vector<int64_t>& stages, int threads,
                       int64_t budget, bool all_layers) {
  Stages of_layout(job, layout, threads);
  MemoryPlan plan;
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    plan.stages.push_back(of_layout.memory({stages[s], stages[s + 1]}, static_cast<int64_t>(s),
                                           recomputed_layers(job, layout), budget, all_layers));
  }
  return plan;
}

std::vector<bool> layers_to_recompute(const PlanJob& job, const PlanLayout& layout, const std::vector<int64_t>& stages,
                                      int threads, int64_t room, int64_t budget, bool all_layers) {
  Stages of_layout(job, layout, threads);
  std::vector<bool> chosen(static_cast<size_t>(job.model.config.layers), false);
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    const LayerRange range{stages[s], stages[s + 1]};
    const auto below = [&](int64_t layer) {
      std::vector<bool> again = chosen;
      std::fill(again.begin() + range.begin, again.begin() + layer, true);
      return again;
    };
    const auto fits = [&](int64_t layer) {
      const StageMemory memory = of_layout.memory(range, static_cast<int64_t>(s), below(layer), budget, all_layers);
      return memory.needed() <= room && memory.fits_pool;
    };
    int64_t least = range.begin, most = range.end;  // least: not tried, or does not fit
    const int64_t lowest = lowest_with_backward(job.model, range);
    if (lowest == range.end || fits(lowest)) continue;
    for (least = lowest; most - least > 1;) {
      const int64_t middle = least + (most - least) / 2;
      (fits(middle) ? most : least) = middle;
    }
    chosen = below(most);
    std::fill(chosen.begin() + range.begin, chosen.begin() + lowest, false);
  }
  return chosen;
}

std::vector<int64_t> place_stages(const PlanJob& job, const PlanLayout& layout, int threads, int64_t budget) {
  std::vector<std::vector<int64_t>> placements = stage_placements(job, layout);
  if (budget == 0 || placements.size() == 1) return placements.front();
  const std::vector<int64_t>* best = nullptr;
  int64_t least = 0;
  // In the order of time; of many some, so that a plan takes no longer than it is worth.
  constexpr size_t kTried = 8;
  const size_t tried = std::min(placements.size(), kTried);
  for (size_t i = 0; i < tried; ++i) {
    const std::vector<int64_t>& one = placements[tried > 1 ? i * (placements.size() - 1) / (tried - 1) : 0];
    const MemoryPlan plan = plan_memory(job, layout, one, threads, budget, false);
    if (plan.fits(budget)) return one;
    if (!best || plan.needed_bytes() < least) {
      best = &one;
      least = plan.needed_bytes();
    }
  }
  return *best;
}

}  // namespace nibble
