#pragma once
// What a plan is made for: a model by its shapes, how it is trained, and how ranks share it. No weights are read.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nibble/core/models/decoder.h"
#include "nibble/core/objectives/options.h"
#include "nibble/core/train/gradient_sum.h"
#include "nibble/core/train/optimizer.h"
#include "nibble/parallel/mesh.h"
#include "nibble/parallel/pipeline/schedule.h"

namespace nibble {

/// A matrix of the model, W [out, in], and what hangs on it.
struct PlannedLinear {
  std::string module;
  int64_t out = 0, in = 0;
  bool bias = false;
  int64_t stored = 0;    ///< bytes of W while it is frozen, scales included
  bool packed = false;   ///< in 4 bits
  int64_t blocks = 0;    ///< of packed elements, each with a scale
  bool mapped = false;   ///< frozen bytes stay in the file's map
  bool trained = false;  ///< W itself
  int64_t r = 0;         ///< rank of its adapter; 0: none
  bool dora = false;

  bool operator==(const PlannedLinear&) const = default;
  /// The same but for the name.
  bool is_like(const PlannedLinear& other) const;
  int64_t size() const { return out * in; }
  int64_t adapter_size() const { return r * (out + in) + (dora ? out : 0); }
  bool has_trainable() const { return trained || r > 0; }
};

/// A table of embeddings.
struct PlannedTable {
  std::string name;
  int64_t rows = 0, width = 0;
  int64_t stored = 0;
  bool mapped = false, trained = false;
  int64_t trained_rows = 0;  ///< rows trained alone, or the rank's share of an adapter: extra values

  int64_t size() const { return rows * width; }
};

/// The tensors that are gathered and placed together: a layer, the input, the head.
struct PlannedGroup {
  std::vector<PlannedLinear> linears;
  std::vector<PlannedTable> tables;
  std::vector<int64_t> vectors;  ///< sizes of norms and biases
  bool vectors_trained = false;

  /// The same but for names.
  bool is_like(const PlannedGroup& other) const;
  bool has_trainable() const;
  int64_t weights() const;         ///< values of the model itself
  int64_t frozen_bytes() const;    ///< of what is not trained
  int64_t adapter_values() const;  ///< of adapters
  /// Sizes of all tensors that are trained, in values.
  std::vector<int64_t> trained_sizes() const;
  int64_t trained_values() const;
};

struct PlannedModel {
  DecoderConfig config;
  PlannedGroup input;                ///< embeddings
  std::vector<PlannedGroup> layers;  ///< [L]
  PlannedGroup head;                 ///< final norm and head; a tied head is no linear of it
  bool head_trained = false;         ///< by itself or with the embedding

  PlannedGroup& group(int64_t layer);  ///< -1: input, L: head
  const PlannedGroup& group(int64_t layer) const { return const_cast<PlannedModel*>(this)->group(layer); }
  int64_t weights() const;
  int64_t trained_values() const;
};

/// Names and shapes from the config; `complete` fills in what the config does not say (how each is stored, what is
/// trained), before anything is counted.
PlannedModel plan_model(const DecoderConfig& config, const std::function<void(PlannedLinear&)>& linear,
                        const std::function<void(PlannedTable&)>& table, bool vectors_trained);

/// Makes a rank's part of the model as the run opens it, with its adapter, in the memory of rank.pool, whose device has
/// no bytes; what the run maps from files is mapped (MetaDevice::mapped). config: the job's, or one of fewer layers.
using ModelMaker = std::function<Decoder(const DecoderConfig& config, LayerRange layers, const LayerSharding* sharding,
                                         RankContext& rank)>;

namespace detail {
struct StageRuns;
}

struct PlanJob {
  PlannedModel model;
  ModelMaker make_model;
  mutable std::shared_ptr<detail::StageRuns> runs = {};  ///< what plan_memory has run, for all copies
  bool everything = false;                               ///< every weight is trained: full fine-tuning, pretraining
  OptimizerKind optimizer = OptimizerKind::adamw;
  GradientSum gradient_sum = GradientSum::tree;
  DType compute_dtype = DType::bf16;
  int64_t tokens = 0;           ///< of a microbatch
  int64_t document_length = 0;  ///< tokens that see each other
  double label_share = 1;       ///< tokens with a label
  int64_t accumulate = 1;       ///< microbatches in a step, over all ranks
  ObjectiveOptions objective;
  bool saves_midway = false;  ///< a checkpoint is written while training goes on
  int64_t program_bytes = 0;  ///< of tokenizer and data
};

/// How the ranks share the work, and what a pass keeps.
struct PlanLayout {
  MeshShape mesh;
  int64_t tensor = 1;
  int64_t zero = 3;  ///< see ShardLevel; counts when mesh.shard > 1
  bool shard_adapters = false;
  bool reshard_after_forward = true;
  int64_t prefetch = 1;
  DType wire_dtype = DType::f32;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int64_t in_flight = 0;
  std::vector<int64_t> stages;  ///< layers of each stage; empty: placed by predicted time
  Recompute recompute = Recompute::none;
  std::vector<bool> recomputed;  ///< [L] instead, layer by layer; empty: as `recompute` says
  bool offload = false;          ///< activations wait in a file

  int64_t ranks() const { return mesh.ranks() * tensor; }
  bool recomputes(int64_t layer) const;
};

/// The part of the model that one of `degree` tensor-parallel ranks computes: heads, hidden width and vocabulary are
/// divided, norms and the residual stream are whole.
PlannedModel tensor_part(const PlannedModel& model, int64_t degree);

/// The lowest layer of `range` that has a backward pass; range.end: none.
int64_t lowest_with_backward(const PlannedModel& model, const LayerRange& range);

/// "shard 4, zero 3", "pipeline 2 x shard 2, zero 3, blocks recomputed", "one rank, 9 of 22 blocks recomputed"
std::string describe(const PlanLayout& layout);

/// Whether gradients are added over the ranks after every microbatch, and only shards of them are kept (FullySharded).
bool sums_in_rounds(const PlanJob& job, const PlanLayout& layout);

/// Microbatches that one rank (one column of a pipeline) computes or waits for in a step, at most.
int64_t microbatches_of_rank(const PlanJob& job, const PlanLayout& layout);

}  // namespace nibble
