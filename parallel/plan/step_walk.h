#pragma once
// One rank's allocations in a training step, in their order. Each function mirrors the one of the same name in core/nn,
// core/models, parallel/ or core/train; tests/parallel/plan compares the peaks with those of real steps.

#include <map>
#include <memory>
#include <vector>

#include "nibble/parallel/plan/job.h"
#include "nibble/parallel/plan/pool_model.h"

namespace nibble::detail {

using Held = PoolModel::Held;

/// The passes of the layers a rank owns.
class PassWalk {
 public:
  /// Called around every layer's part of a pass: -1 the embedding, L the head.
  struct Hooks {
    virtual ~Hooks() = default;
    virtual void before_forward(int64_t) {}
    virtual void after_forward(int64_t) {}
    virtual void before_backward(int64_t) {}
    virtual void after_backward(int64_t) {}
  };
  /// What one microbatch keeps between its passes.
  struct Kept {
    std::map<int64_t, std::vector<Held>> layers;
    std::map<int64_t, std::vector<int64_t>> filed;  ///< sizes of those in the file, or on their way there
    Held gradient;
  };
  /// Bytes that the file of activations holds at most, and gets in one microbatch.
  struct Spill {
    int64_t file = 0, written = 0;
  };

  /// model: the part of a tensor-parallel rank.
  PassWalk(const PlanJob& job, const PlannedModel& model, LayerRange range, const PlanLayout& layout, PoolModel& pool,
           Hooks& hooks);

  /// Kept between passes of all microbatches: rotary tables.
  std::vector<Held> tables() const;
  Held forward(Kept& kept, Held below);
  void loss(Kept& kept, const Held& above);
  void backward(Kept& kept);
  const Spill& spill() const { return spill_; }

 private:
  int64_t element() const { return static_cast<int64_t>(dtype_size(job_.compute_dtype)); }
  Held act(int64_t columns, int64_t bytes) const;
  void sum_parts(int64_t rows) const;
  /// Whether the gradient has to reach below `layer`.
  bool trainable_below(int64_t layer) const { return lowest_trained_ < layer; }

  /// The Linears that a half's input enters.
  std::vector<std::string> attention_inputs() const;
  std::vector<std::string> mlp_inputs() const;
  bool any_trainable(const PlannedGroup& layer, const std::vector<std::string>& names) const;
  void linear_forward(const PlannedLinear& linear, int64_t rows, std::vector<Held>* saved);
  void linear_backward(const PlannedLinear& linear, int64_t rows, bool dx, bool accumulate, int64_t dx_bytes);
  Held norm_forward(int64_t columns, int64_t bytes, std::vector<Held>* saved) const;
  void attention_forward(const PlannedGroup& layer, std::vector<Held>* saved);
  void attention_backward(const PlannedGroup& layer, bool dx, Held& dinput);
  void mlp_forward(const PlannedGroup& layer, std::vector<Held>* saved);
  void mlp_backward(const PlannedGroup& layer, bool dx, Held& dinput);
  Held block_forward(const PlannedGroup& layer, const Held& x, std::vector<Held>* saved);
  void block_backward(const PlannedGroup& layer, bool dx);
  void put_away(Kept& kept, int64_t layer);
  std::vector<Held> bring_back(Kept& kept, int64_t layer);

  const PlanJob& job_;
  const PlannedModel& model_;
  const DecoderConfig& config_;
  LayerRange range_;
  const PlanLayout& layout_;
  bool in_parts_;  ///< tensor-parallel
  PoolModel& pool_;
  Hooks& hooks_;
  int64_t lowest_trained_ = 0;  ///< lowest group of the model with something trainable
  int64_t lowest_ = 0;          ///< lowest own layer with a backward pass
  std::vector<Held> leaving_;   ///< what was put away last: one block's is on its way, or stays until the next
  const std::vector<int64_t>* leaving_sizes_ = nullptr;  ///< its entry in Kept::filed
  int64_t in_file_ = 0;
  Spill spill_;
};

}  // namespace nibble::detail
