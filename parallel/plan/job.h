#pragma once
// What a plan is made for: a model by its shapes, how it is trained, and how ranks share it. No weights are read.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nibble/core/models/decoder.h"
#include "nibble/core/objectives/options.h"
#include "nibble/core/train/gradient_sum.h"
#include "nibble/core/train/optimizer.h"
#include "nibble/parallel/mesh.h"
#include "nibble/parallel/pipeline/schedule.h"

namespace nibble {

/// A layer, what is below the layers (embeddings), or what is above them (norm and head), as the run has it.
struct PlannedGroup {
  std::string kind;          ///< the same for layers whose tensors are alike
  int64_t weights = 0;       ///< values of the model itself
  int64_t frozen_bytes = 0;  ///< of what is not trained, as it is held
  int64_t trained = 0;       ///< values that are trained, those of adapters included
  bool packed = false;       ///< something in it has 4 bits
};

struct PlannedModel {
  DecoderConfig config;
  std::vector<PlannedGroup> groups;  ///< [L + 2]: input, layers, head

  /// -1: input, L: head
  const PlannedGroup& group(int64_t layer) const { return groups.at(static_cast<size_t>(layer + 1)); }
  int64_t weights() const;
  int64_t trained_values() const;
};

/// Makes a rank's part of the model as the run opens it, with its adapter, in the memory of rank.pool, whose device has
/// no bytes; what the run maps from files is mapped (MetaDevice::mapped). config: the job's, or one of fewer layers.
using ModelMaker = std::function<Decoder(const DecoderConfig& config, LayerRange layers, const LayerSharding* sharding,
                                         const ExpertExchange* experts, RankContext& rank)>;

/// What `make` makes. everything: all of it is trained.
PlannedModel plan_model(const DecoderConfig& config, const ModelMaker& make, bool everything);

namespace detail {
struct PlannedRuns;
}
class StepExecutor;

/// What is computed of a block of answers before the steps that use it, as the run does; all empty where the objective
/// has none.
struct PlannedBlock {
  int64_t steps = 1;  ///< that use it
  /// Draws this rank's answers, or some of very many; go_on is called before every pass. Returns how many times as many
  /// there are. Empty: they are given.
  std::function<double(const Decoder& model, StepExecutor& executor, const std::function<bool()>& go_on)> draw = {};
  double share = 1;  ///< of the blocks, that are drawn so; the teacher draws the others,
  std::function<void(Decoder& teacher, StepExecutor& executor)> draw_by_teacher = {};  ///< or (empty) nobody
  int64_t longest = 0;  ///< tokens of a prompt and its answer
  /// The models whose score heads are rewards, on the rank that asks for rewards.
  std::vector<std::function<Decoder(RankContext& rank)>> scorers = {};
  /// Scores, and log-probabilities that the objective compares. value: PPO's value model, or null. reference: where it
  /// is a model of its own, or null. Returns as draw does.
  std::function<double(StepExecutor& executor, StepExecutor* value, StepExecutor* reference,
                       std::span<Decoder> scorers)>
      judge = {};
};

struct PlanJob {
  PlannedModel model;
  ModelMaker make_model;
  /// Of distillation: the frozen teacher, unsharded, in the memory of rank.pool; empty: none.
  std::function<Decoder(RankContext& rank)> make_teacher;
  /// Of PPO: the value model, which is trained as the policy is; empty: none.
  ModelMaker make_value;
  ModelMaker make_reference;  ///< of answers that are drawn, a model of its own; empty: none
  /// Whether a run takes these degrees, not only those that were asked for; empty: it does.
  std::function<bool(const MeshShape&)> takes = {};
  mutable std::shared_ptr<detail::PlannedRuns> runs = {};  ///< what has been run, for all copies
  bool everything = false;                                 ///< every weight is trained: full fine-tuning, pretraining
  OptimizerKind optimizer = OptimizerKind::adamw;
  GradientSum gradient_sum = GradientSum::tree;
  DType compute_dtype = DType::bf16;
  int64_t tokens = 0;            ///< of a microbatch
  int64_t document_length = 0;   ///< tokens that see each other
  double label_share = 1;        ///< tokens with a label
  int64_t answer_tokens = 0;     ///< above 0: at the end of each document, which alone have labels
  int64_t answers_together = 0;  ///< documents that follow each other and have what is before once; 0: none
  int64_t accumulate = 1;        ///< microbatches in a step, over all ranks
  ObjectiveOptions objective;
  PlannedBlock block = {};
  bool saves_midway = false;  ///< a checkpoint is written while training goes on
  int64_t program_bytes = 0;  ///< of tokenizer and data
  int64_t reading_bytes = 0;  ///< of tokenizer and data while they are read, before there is a model
};

/// How the ranks share the work, and what a pass keeps.
struct PlanLayout {
  MeshShape mesh;
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

  bool recomputes(int64_t layer) const;
};

/// The lowest layer of `range` that has a backward pass; range.end: none.
int64_t lowest_with_backward(const PlannedModel& model, const LayerRange& range);

/// "shard 4, zero 3", "pipeline 2 x shard 2, zero 3, blocks recomputed", "one rank, 9 of 22 blocks recomputed"
std::string describe(const PlanLayout& layout);

/// Whether gradients are added over the ranks after every microbatch: where only shards of them are kept
/// (FullySharded), or experts have those of all ranks' tokens.
bool sums_in_rounds(const PlanJob& job, const PlanLayout& layout);

/// Microbatches that one rank (one column of a pipeline) computes or waits for in a step, at most.
int64_t microbatches_of_rank(const PlanJob& job, const PlanLayout& layout);

}  // namespace nibble
