#pragma once
// Optimizers over named parameters.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/nn/parameter.h"
#include "nibble/core/ops/optimizer.h"
#include "nibble/core/tensor/memory_pool.h"

namespace nibble {

enum class OptimizerKind : uint8_t { adamw, adamw8bit, sgd };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  ///< not of sgd
  double weight_decay = 0;                        ///< of every trainable tensor, as torch.optim.AdamW
  /// Tensors without decay: a pattern matches when it occurs in the name; `*` stands for any text and `?` for one
  /// character ("norm", "layers.*.bias").
  std::vector<std::string> no_decay;
  /// LoRA+ (Hayou et al. 2024) with the groups of PEFT's create_loraplus_optimizer: B and trained vectors learn at this
  /// multiple of the rate, the adapter of an embedding at `embedding_lr_ratio`; biases, and weights of norms if these
  /// are torch.nn.LayerNorm, have no decay. 0: one rate for all.
  double loraplus_lr_ratio = 0;
  double embedding_lr_ratio = 1;
  bool layer_norms = false;
};

/// Holds the state of every parameter it is given (f32 tensors from `pool`) and updates values from gradients.
/// adamw keeps exp_avg and exp_avg_sq (8 bytes for each weight), adamw8bit the same in 2.03 bytes (tensors of less than
/// ops::kEightBitMinimum values stay in f32, as in bitsandbytes), sgd keeps nothing. The parameters must outlive it.
class Optimizer {
 public:
  /// Throws UsageError when there are no parameters (unless another rank may have some: may_be_empty) or two have one
  /// name, and std::logic_error when one is not trainable f32. global_shape: that of the tensor that a parameter is a
  /// shard of, where it is one; shards begin with whole blocks of 8-bit state.
  Optimizer(std::vector<Parameter*> parameters, OptimizerOptions options, MemoryPool& pool, bool may_be_empty = false,
            const std::function<Shape(const Parameter&)>& global_shape = {});

  /// One update of all parameters from their gradients, each multiplied by gradient_scale first (clipping).
  void step(double lr, double gradient_scale = 1.0);

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  const OptimizerOptions& options() const { return options_; }
  /// Number of trainable values.
  int64_t size() const;

  /// Updates done so far (t of Adam's bias correction); set when a run resumes.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  /// The state by name, "<parameter>.exp_avg" and so on (in 8 bits u8 codes, and "<parameter>.exp_avg.absmax"), sharing
  /// the bytes: written to checkpoints and read into.
  std::vector<NamedTensor> state() const;

 private:
  struct State {
    double lr_ratio = 1;
    float weight_decay = 0;
    Tensor exp_avg, exp_avg_sq;                  // f32
    ops::EightBitState exp_avg_8, exp_avg_sq_8;  // or these
  };
  std::vector<Parameter*> parameters_;
  OptimizerOptions options_;
  std::vector<State> states_;
  int64_t updates_ = 0;
};

/// Whether `pattern` (see OptimizerOptions::no_decay) matches `name`.
bool name_matches(std::string_view pattern, std::string_view name);

}  // namespace nibble
