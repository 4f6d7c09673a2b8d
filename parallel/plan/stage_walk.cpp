#include "nibble/parallel/plan/stage_walk.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "nibble/core/models/decoder.h"
#include "nibble/core/ops/optimizer.h"
#include "nibble/parallel/plan/step_time.h"
#include "nibble/parallel/sharding/flat_layout.h"
#include "nibble/parallel/sharding/trainable_group.h"

namespace nibble::detail {

namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kBucketBytes = (int64_t{4} << 20) * kFloat;  // of sums over ranks, see tree_sum.cpp
// The kernel maps a file in pieces of up to 2 MiB: on average so much beyond the rows of a matrix that are read.
constexpr int64_t kBeyondRows = int64_t{1} << 20;
constexpr int64_t kAroundRow = int64_t{64} << 10;
constexpr int64_t kLargestCopy = int64_t{1} << 30;  // of a checkpoint, see CheckpointWriter

int64_t state_bytes(OptimizerKind kind, int64_t values) {
  if (kind == OptimizerKind::sgd) return 0;
  if (kind == OptimizerKind::adamw || values < ops::kEightBitMinimum) return 2 * kFloat * values;
  return 2 * (values + values / 64);
}

}  // namespace

StageWalk::StageWalk(const PlanJob& job, const PlannedModel& model, const PlanLayout& layout, LayerRange range,
                     int64_t stage, int64_t budget)
    : job_(job),
      model_(model),
      layout_(layout),
      range_(range),
      stage_(stage),
      pool_(budget),
      passes_(job, model, range, layout, pool_, *this) {
  shards_ = layout.mesh.shard > 1;
  cut_ = shards_ && (job.everything || layout.shard_adapters);
  gathers_ = shards_ && layout.zero >= 3;
  rounds_ = sums_in_rounds(job, layout);
  if (range.begin == 0) own_.push_back(-1);
  for (int64_t l = range.begin; l < range.end; ++l) own_.push_back(l);
  if (range.end == model.config.layers) own_.push_back(range.end);
}

void StageWalk::run() {
  load();
  trainable();
  optimizer();
  const std::vector<Held> tables = passes_.tables();
  step();
  if (job_.saves_midway && layout_.ranks() == 1) copy_for_checkpoint();
  step();
  collect_adapter();
}

int64_t StageWalk::cached() const {
  int64_t bytes = 0;
  for (const auto& [group, mapped] : left_) bytes += mapped;
  return bytes - std::min(bytes, pool_.mapped_when_most() - mapped_always_);
}

void StageWalk::before_forward(int64_t layer) {
  touch(layer);
  if (!gathers_) return;
  gather(layer);
  for (int64_t ahead = 1; ahead <= layout_.prefetch; ++ahead) gather(layer + ahead);
}

void StageWalk::after_forward(int64_t layer) {
  if (gathers_ && layout_.reshard_after_forward) release(layer);
  touched_.clear();
}

void StageWalk::before_backward(int64_t layer) {
  make_room(layer);
  touch(layer);
  if (gathers_) {
    gather(layer);
    for (int64_t ahead = 1; ahead <= layout_.prefetch; ++ahead) {
      if (layer - ahead >= range_.begin) gather(layer - ahead);
    }
  }
  if (!rounds_) return;
  for_each(layer, [&](int64_t group) {
    const int64_t size = padded_trained(group) * kFloat;
    if (size > 0 && !block_gradients_.contains(group)) {
      block_gradients_[group] = pool_.hold(MemoryUse::gathered, size);
    }
  });
}

void StageWalk::after_backward(int64_t layer) {
  if (gathers_ && layout_.reshard_after_forward) release(layer);
  touched_.clear();
  make_room(layer);
  if (!rounds_ || !block_gradients_.contains(layer)) return;
  scatter_buffers(padded_trained(layer) * kFloat, layout_.mesh.shard);
  block_gradients_.erase(layer);
}

bool StageWalk::leaves_mapped(int64_t group) const {
  if (job_.tokens < kTokensWorthFaults) return false;
  int64_t l = 0 <= group && group < range_.end ? group : range_.begin;
  while (l < range_.end && !layout_.recomputes(l)) ++l;
  return l < range_.end;
}

int64_t StageWalk::bytes_around_rows(int64_t table) const {
  const double pieces = std::max(1.0, static_cast<double>(table) / static_cast<double>(kAroundRow));
  return static_cast<int64_t>(static_cast<double>(table) *
                              -std::expm1(-static_cast<double>(kTokensWorthFaults) / pieces));
}

void StageWalk::touch(int64_t layer) {
  for_each(layer, [&](int64_t group) {
    const auto found = left_.find(group);
    if (found == left_.end()) return;
    touched_.push_back(pool_.map(layer < 0 ? bytes_around_rows(found->second) : found->second));
  });
}

void StageWalk::hold_mapped(int64_t group, int64_t bytes) {
  if (leaves_mapped(group)) {
    left_[group] += bytes;
  } else {
    kept_.push_back(pool_.map(bytes));
    mapped_always_ += bytes;
  }
}

int64_t StageWalk::gathered_bytes(int64_t group) const {
  const PlannedGroup& of = model_.group(group);
  return (job_.everything ? 0 : of.frozen_bytes()) + (cut_ ? padded_trained(group) * kFloat : 0);
}

const StageWalk::Flat& StageWalk::flat(int64_t group) const {
  const auto found = flats_.find(group);
  if (found != flats_.end()) return found->second;
  const FlatLayout of(model_.group(group).trained_sizes(), static_cast<int>(layout_.mesh.shard), 16, 1 << 15);
  Flat made{of.size(), 0};
  for (size_t r = 0; r + 1 < of.cuts().size(); ++r) {
    made.largest_shard = std::max(made.largest_shard, of.cuts()[r + 1] - of.cuts()[r]);
  }
  return flats_.emplace(group, made).first->second;
}

// Frozen bytes, and values that are trained in place.
void StageWalk::load() {
  const bool frozen_cut = gathers_ && !job_.everything;
  std::map<int64_t, std::vector<Held>> whole;
  const auto table_here = [&](int64_t group) { return group >= 0 || range_.begin == 0 || model_.config.tied_head; };
  for (const int64_t group : own_) {
    const PlannedGroup& of = model_.group(group);
    for (const int64_t size : of.vectors) keep(MemoryUse::base, size * kFloat);
    const auto matrix = [&](int64_t values, int64_t stored, bool mapped, bool trained) {
      if (job_.everything) {
        if (cut_) {
          if (job_.random_start) whole[group].push_back(pool_.hold(MemoryUse::base, values * kFloat));
        } else {
          keep(MemoryUse::base, values * kFloat);
        }
        return;
      }
      if (trained) return keep(MemoryUse::base, values * kFloat);
      if (frozen_cut) {
        if (!mapped) whole[group].push_back(pool_.hold(MemoryUse::base, stored));
      } else if (mapped) {
        hold_mapped(group, stored + (layout_.tensor > 1 ? std::min(stored, kBeyondRows) : 0));
      } else {
        keep(MemoryUse::base, stored);
      }
    };
    for (const PlannedLinear& linear : of.linears) {
      if (job_.quantizes && linear.packed) {  // rows pass through in f32
        const Held rows = pool_.hold(MemoryUse::workspace, std::min(linear.size(), int64_t{1} << 22) * kFloat);
      }
      matrix(linear.size(), linear.stored, linear.mapped, linear.trained);
    }
    for (const PlannedTable& table : of.tables) {
      if (table_here(group)) matrix(table.size(), table.stored, table.mapped, table.trained);
    }
  }
  // The last stage holds a copy of a tied embedding.
  if (model_.config.tied_head && range_.end == model_.config.layers && range_.begin > 0) {
    const PlannedTable& table = model_.input.tables.front();
    if (job_.everything || table.trained) {
      keep(MemoryUse::base, table.size() * kFloat);
    } else if (table.mapped) {
      hold_mapped(model_.config.layers, table.stored);
    }
  }
  if (!frozen_cut) return;
  for (const int64_t group : own_) {
    const int64_t bytes = model_.group(group).frozen_bytes();
    keep(MemoryUse::base, (bytes + layout_.mesh.shard - 1) / layout_.mesh.shard);
    whole.erase(group);
  }
}

// What is trained, cut over the shard axis: values, gradients.
void StageWalk::cut_groups() {
  for (const int64_t group : own_) {
    const int64_t shard = shard_values(group), whole = padded_trained(group);
    if (whole == 0) continue;
    const MemoryUse use = job_.everything ? MemoryUse::base : MemoryUse::adapters;
    keep(use, (layout_.zero >= 3 ? shard : whole) * kFloat);
    keep(MemoryUse::gradients, shard * kFloat);
    if (!rounds_) keep(MemoryUse::gradients, whole * kFloat);
  }
}

void StageWalk::trainable() {
  std::vector<Held> apart;
  int64_t all = 0;
  for (const int64_t group : own_) {
    for (const int64_t size : model_.group(group).trained_sizes()) {
      if (!job_.everything) keep(MemoryUse::adapters, size * kFloat);
      if (!cut_) apart.push_back(pool_.hold(MemoryUse::gradients, size * kFloat));
      all += size;
    }
  }
  if (model_.config.tied_head && job_.everything && range_.end == model_.config.layers && range_.begin > 0) {
    apart.push_back(pool_.hold(MemoryUse::gradients, model_.input.tables.front().size() * kFloat));
  }
  if (cut_) return cut_groups();
  if (layout_.mesh.data() > 1) {  // side by side, so that they are summed without copies
    gradients_.push_back(pool_.hold(MemoryUse::gradients, all * kFloat));
  } else {
    gradients_ = std::move(apart);
  }
}

void StageWalk::optimizer() {
  const int64_t each = job_.optimizer == OptimizerKind::sgd ? 0 : 2;
  for (const int64_t group : own_) {
    if (cut_) {
      keep(MemoryUse::optimizer, state_bytes(job_.optimizer, shard_values(group)));
      continue;
    }
    for (const int64_t size : model_.group(group).trained_sizes()) {
      for (int64_t i = 0; i < each; ++i) keep(MemoryUse::optimizer, state_bytes(job_.optimizer, size) / 2);
    }
  }
  if (model_.config.tied_head && job_.everything && range_.end == model_.config.layers && range_.begin > 0) {
    keep(MemoryUse::optimizer, state_bytes(job_.optimizer, model_.input.tables.front().size()));
  }
}

void StageWalk::copy_for_checkpoint() {
  int64_t bytes = 0;
  for (const int64_t group : own_) {
    for (const int64_t size : model_.group(group).trained_sizes()) {
      bytes += size * kFloat + state_bytes(job_.optimizer, size);
    }
  }
  if (bytes > kLargestCopy) return;
  for (const int64_t group : own_) {
    for (const int64_t size : model_.group(group).trained_sizes()) {
      keep(MemoryUse::checkpoint, size * kFloat);
      for (int i = 0; i < 2; ++i) keep(MemoryUse::checkpoint, state_bytes(job_.optimizer, size) / 2);
    }
  }
}

// The first rank has all of an adapter when it is written.
void StageWalk::collect_adapter() {
  if (job_.everything || stage_ > 0 || (layout_.mesh.pipeline == 1 && layout_.tensor == 1 && !cut_)) return;
  for (int64_t l = -1; l <= model_.config.layers; ++l) {
    for (const int64_t size : job_.model.group(l).trained_sizes()) keep(MemoryUse::checkpoint, size * kFloat);
  }
}

// A sum over ranks (all_reduce_tree): parts that arrive, and their sum.
void StageWalk::sum_buffers(int64_t bytes, int64_t ranks) {
  if (ranks <= 1 || bytes == 0) return;
  const int64_t bucket = std::min(bytes, kBucketBytes);
  const Held received = pool_.hold(MemoryUse::workspace, bucket);
  const Held sum = pool_.hold(MemoryUse::workspace, bucket / ranks);
}

// The same where every rank keeps its share (reduce_scatter_tree): pieces of all shares are put side by side first.
void StageWalk::scatter_buffers(int64_t bytes, int64_t ranks) {
  const Held chosen = bytes > kBucketBytes ? pool_.hold(MemoryUse::workspace, kBucketBytes) : Held();
  sum_buffers(bytes, ranks);
}

// The microbatches of a step, as the stage's schedule runs them.
void StageWalk::microbatches() {
  const int64_t count = microbatches_of_rank(job_, layout_);
  const int stages = static_cast<int>(layout_.mesh.pipeline);
  std::map<int64_t, PassWalk::Kept> slots;
  std::map<int64_t, Held> streams;
  const int64_t stream_bytes = job_.tokens * model_.config.width * kFloat;
  const auto forward = [&](int64_t m) {
    Held below = range_.begin > 0 ? pool_.hold(MemoryUse::activations, stream_bytes) : Held();
    Held above = passes_.forward(slots[m], below);
    if (range_.end == model_.config.layers) passes_.loss(slots[m], above);
    if (range_.end < model_.config.layers) streams[m] = above;  // on its way
  };
  const auto backward = [&](int64_t m) {
    if (range_.end < model_.config.layers) slots[m].gradient = pool_.hold(MemoryUse::activations, stream_bytes);
    streams.erase(m);
    passes_.backward(slots[m]);
    slots.erase(m);
  };
  if (stages > 1) {
    const int64_t in_flight = layout_.in_flight > 0 ? layout_.in_flight : count;
    // What is held repeats once the schedule is full.
    const int64_t walked =
        std::min<int64_t>(count, layout_.schedule == PipelineSchedule::gpipe ? in_flight : stages + 1);
    for (const PipelineAction& action :
         pipeline_actions(layout_.schedule, stages, static_cast<int>(stage_), walked, std::min(in_flight, walked))) {
      action.forward ? forward(action.microbatch) : backward(action.microbatch);
    }
    return;
  }
  for (int64_t m = 0; m < std::min<int64_t>(count, 1); ++m) {
    forward(m);
    backward(m);
  }
}

void StageWalk::step() {
  const int64_t count = microbatches_of_rank(job_, layout_);
  // ids, targets, positions, keys of the rows
  std::vector<Held> batches;
  for (int64_t m = 0; m < std::min<int64_t>(count, 4096); ++m) {
    for (const int64_t bytes : {4, 4, 4, 8}) {
      batches.push_back(pool_.hold(MemoryUse::activations, job_.tokens * bytes));
    }
  }
  microbatches();
  if (job_.gradient_sum == GradientSum::tree && count > 1) {
    std::vector<Held> partial;
    const int depth = std::bit_width(static_cast<uint64_t>(count - 1));
    for (int d = 0; d < depth; ++d) {
      for (const int64_t group : own_) {
        if (cut_ && rounds_) {
          partial.push_back(pool_.hold(MemoryUse::gradients, shard_values(group) * kFloat));
          continue;
        }
        for (const int64_t size : model_.group(group).trained_sizes()) {
          partial.push_back(pool_.hold(MemoryUse::gradients, size * kFloat));
        }
      }
    }
    microbatches();
  }
  int64_t values = 0;
  for (const int64_t group : own_) values += model_.group(group).trained_values();
  if (cut_) {
    if (!rounds_) scatter_buffers(values * kFloat, layout_.mesh.shard);
    sum_buffers(values * kFloat / layout_.mesh.shard, layout_.mesh.replicate);
  } else {
    sum_buffers(values * kFloat, layout_.mesh.data());
  }
  gathered_.clear();
}

}  // namespace nibble::detail
