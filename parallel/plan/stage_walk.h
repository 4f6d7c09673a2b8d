#pragma once
// One rank of a stage through its run, holding what the run holds: the walk behind plan_memory().

#include <algorithm>
#include <map>
#include <vector>

#include "nibble/parallel/plan/step_walk.h"

namespace nibble::detail {

/// One rank of a stage from the start of the run to its second step.
class StageWalk final : public PassWalk::Hooks {
 public:
  StageWalk(const PlanJob& job, const PlannedModel& model, const PlanLayout& layout, LayerRange range, int64_t stage,
            int64_t budget);

  /// Once.
  void run();

  PoolModel& pool() { return pool_; }
  /// Of the weights that layers leave between passes, those that are not mapped when most is resident.
  int64_t cached() const;
  const PassWalk::Spill& spill() const { return passes_.spill(); }

  void before_forward(int64_t layer) override;
  void after_forward(int64_t layer) override;
  void before_backward(int64_t layer) override;
  void after_backward(int64_t layer) override;

 private:
  // The head of a tied model needs the embedding too.
  template <typename Call>
  void for_each(int64_t layer, const Call& call) {
    const bool head = layer == model_.config.layers;
    if (head && model_.config.tied_head && range_.begin == 0) call(-1);
    if (std::ranges::find(own_, layer) != own_.end()) call(layer);
  }
  void gather(int64_t layer) {
    for_each(layer, [&](int64_t group) {
      const int64_t bytes = gathered_bytes(group);
      if (bytes > 0 && !gathered_.contains(group)) gathered_[group] = pool_.hold(MemoryUse::gathered, bytes);
    });
  }
  void release(int64_t layer) {
    for_each(layer, [&](int64_t group) { gathered_.erase(group); });
  }
  /// Mapped weights that a layer leaves after every pass (Decoder::recompute_below).
  bool leaves_mapped(int64_t group) const;
  void make_room(int64_t layer) {
    if (layer == model_.config.layers && leaves_mapped(layer)) pool_.trim();
  }
  // Of a table: with a row that is read the kernel maps what lies around it, kAroundRow at a time.
  int64_t bytes_around_rows(int64_t table) const;
  void touch(int64_t layer);
  void hold_mapped(int64_t group, int64_t bytes);
  /// All of a group's bytes that are cut.
  int64_t gathered_bytes(int64_t group) const;
  /// How a group's trained values lie in the shards' buffer.
  struct Flat {
    int64_t size = 0, largest_shard = 0;
  };
  const Flat& flat(int64_t group) const;
  int64_t padded_trained(int64_t group) const { return flat(group).size; }
  int64_t shard_values(int64_t group) const { return flat(group).largest_shard; }

  void keep(MemoryUse use, int64_t bytes) {
    if (bytes > 0) kept_.push_back(pool_.hold(use, bytes));
  }
  void load();
  void cut_groups();
  void trainable();
  void optimizer();
  void copy_for_checkpoint();
  void collect_adapter();
  void sum_buffers(int64_t bytes, int64_t ranks);
  void scatter_buffers(int64_t bytes, int64_t ranks);
  void step();
  void microbatches();

  const PlanJob& job_;
  const PlannedModel& model_;
  const PlanLayout& layout_;
  LayerRange range_;
  int64_t stage_;
  PoolModel pool_;
  PassWalk passes_;
  bool shards_ = false, cut_ = false, gathers_ = false, rounds_ = false;
  std::vector<int64_t> own_;
  mutable std::map<int64_t, Flat> flats_;
  std::vector<Held> kept_, gradients_;
  std::map<int64_t, Held> gathered_, block_gradients_;
  std::map<int64_t, int64_t> left_;  // mapped bytes that are resident during the group's passes only
  std::vector<Held> touched_;
  int64_t mapped_always_ = 0;
};

}  // namespace nibble::detail
