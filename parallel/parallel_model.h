#pragma once
// Parallelism applied to a plain Decoder from outside: which rank computes what, and what is gathered and summed.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "nibble/core/models/decoder.h"
#include "nibble/core/nn/hooks.h"
#include "nibble/core/train/gradient_sum.h"
#include "nibble/core/train/run.h"
#include "nibble/parallel/mesh.h"
#include "nibble/parallel/sharding/trainable_group.h"

namespace nibble {

struct ParallelOptions {
  ShardLevel level = ShardLevel::weights;  ///< what the shard axis cuts
  /// Whether trainable parameters are cut, or only the frozen base (adapters are small: every rank keeps them whole).
  bool shard_trainable = true;
  bool reshard_after_forward = true;  ///< false: gathered weights stay until the update
  int64_t prefetch = 1;               ///< blocks gathered ahead; 0: none
  Wire wire;                          ///< of gradients
  GradientSum gradient_sum = GradientSum::running;
};

/// A Decoder (whole, or this rank's stage, or its part of either) on the data axes of a mesh, replicate and shard, and
/// on the tensor axis. Degree 1 costs nothing.
///
/// Sums: with GradientSum::tree the gradients have the same bits on 1, 2, 4 and 8 ranks.
class ParallelModel final : public BlockHooks {
 public:
  /// model: everything trainable is trainable, or (train_everything) still frozen as it was loaded and about to be
  /// trained. mesh and rank must outlive this. Shards what the options say: `model` is then computed with through the
  /// hooks this sets.
  ParallelModel(Decoder& model, bool train_everything, const ParallelOptions& options, const Mesh& mesh,
                RankContext& rank);
  ~ParallelModel() override;
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;

  /// What this rank's optimizer works on.
  std::vector<Parameter*> parameters() const;
  /// Microbatches of a step of `count` that this rank computes, kIdle where it only takes part in what the others
  /// exchange. Call before every step.
  std::vector<int64_t> begin_step(int64_t count);
  /// nibble::sum_gradients over the data and the tensor axis: afterwards the gradients of `parameters` are complete and
  /// the loss is that of all ranks. run is also called for numbers from `count` on, to take part in exchanges only.
  double sum_gradients(GradientSum kind, const std::vector<Parameter*>& parameters, int64_t count,
                       const std::function<double(int64_t)>& run);
  /// Sum of the squares of the gradients of this stage on all ranks, each counted once, in the model's order.
  double squares(const std::vector<Parameter*>& parameters) const;
  /// Elements of the parameter that one of parameters() is the part of on this rank.
  int64_t whole_size(const Parameter& part) const { return by_name_.at(part.name)->value.numel(); }
  /// What this rank holds of the gradient of a trained parameter that two pipeline stages have (a tied embedding): both
  /// hold the same part. Undefined where there is none.
  Tensor tied_gradient() const;
  /// How what parameters() hold is cut in checkpoints.
  Slicer slicer() const;
  /// The same for what this rank writes: nothing where another rank has the same.
  Slicer written_slicer() const;
  /// Microbatches that every rank of the data axes runs in the step begun, idle ones included.
  int64_t passes_in_step() const;
  /// After values of parameters() changed outside a step (a checkpoint was loaded).
  void share_values();
  /// Gathers block after block; visit() sees the Decoder's parameters and packed weights of block l (-1: embedding, L:
  /// norm and head) with their bytes.
  void visit_whole(const std::function<void(const std::vector<NamedTensor>&)>& visit);
  /// Calls body() while the trainable parameters of all blocks have their values: adapters, which are small.
  void with_trainable(const std::function<void()>& body);
  /// Whether passes are collective, so that a rank without a microbatch has to idle.
  bool collective() const { return gathers_ || rounds_; }
  const Mesh& mesh() const { return mesh_; }

  void before_forward(int64_t layer) override;
  void after_forward(int64_t layer) override;
  void before_backward(int64_t layer) override;
  void after_backward(int64_t layer) override;
  int parts() const override { return mesh_.tensor().size(); }
  int part() const override { return mesh_.tensor().rank(); }
  void sum_parts(std::string_view what, Tensor& values) override;

 private:
  struct Layer {
    std::optional<GatheredBytes> frozen;
    /// Partial gradients, and an embedding that is the head of another stage, are apart: all ranks that have to add
    /// them hold the same shards.
    std::unique_ptr<TrainableGroup> trainable, partial, tied;
    std::vector<TrainableGroup*> groups() const;
  };
  template <typename Call>
  void each_group(const Call& call) const;
  int64_t layer_of(const std::string& name) const;
  void shard_frozen(const std::set<const Parameter*>& trained);
  void shard_trainable(const std::vector<Parameter*>& trained);
  void replicate(const std::vector<Parameter*>& trained);

  template <typename Call>
  void with_layer(int64_t layer, const Call& call);
  void start(int64_t layer);
  void acquire(int64_t layer);
  void release(int64_t layer);

  std::vector<bool> present_in_round(int64_t round) const;
  /// Which ranks of the data axes have some of `count` microbatches.
  std::vector<bool> present(int64_t count) const;
  double sum_whole(GradientSum kind, int64_t count, const std::function<double(int64_t)>& run);
  double sum_rounds(GradientSum kind, const std::vector<Parameter*>& parameters,
                    const std::function<double(int64_t)>& run);
  void sum_over_replicas(const std::vector<bool>& present);
  void sum_partial_gradients();
  /// Whether the parameter is an embedding that two stages have, one of them as its head.
  bool is_tied(const std::string& parameter) const;
  /// Whether this rank, of those on the tensor and pipeline axes that have the parameter, counts and writes it.
  bool speaks_for(const std::string& parameter) const;
  std::map<std::string, double> squares_of_groups() const;

  Decoder& model_;
  ParallelOptions options_;
  const Mesh& mesh_;
  RankContext& rank_;
  bool gathers_ = false, rounds_ = false;
  std::map<int64_t, Layer> layers_;
  std::vector<Parameter*> order_;                    // trained parameters in the model's order
  std::vector<Parameter*> replicated_;               // those that are whole on every rank,
  Tensor replicated_gradients_;                      // and their gradients, side by side,
  Tensor partial_gradients_;                         // of which these lie last
  std::map<std::string, const Parameter*> by_name_;  // trained ones, as the model has them
  int64_t step_count_ = 0, round_ = 0;
  std::vector<int64_t> round_begins_;  // of the step
};

}  // namespace nibble
