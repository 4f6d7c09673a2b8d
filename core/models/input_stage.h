#pragma once
// From ids to the residual stream: embeddings, and what a family does to them before the first layer.

#include <optional>

#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/layer_inputs.h"
#include "nibble/core/nn/embedding.h"
#include "nibble/core/nn/layer_sharding.h"
#include "nibble/core/nn/linear.h"
#include "nibble/core/nn/makers.h"
#include "nibble/core/nn/norms/norm.h"
#include "nibble/core/nn/streams/stream_ends.h"
#include "nibble/core/nn/sublayer.h"

namespace nibble {

/// Kept from forward to backward.
struct InputSaved {
  LinearSaved project;
  NormSaved norm;
  LayerInputsSaved layer_inputs;
  StreamEnds::Saved streams;
};

/// Embedding, projection to the layers' width (OPT 350M), learned positions (GPT-2, OPT), norm (BLOOM): those a family
/// has, in this order; what layers have of their own, and further streams.
struct InputStage {
  Embedding embedding;  ///< [V, E]
  float embedding_scale = 1;
  float noise_scale = 1;               ///< of NEFTune's noise
  std::optional<Linear> project;       ///< [D, E]
  std::optional<Embedding> positions;  ///< [P + offset, D]
  FixedPositions fixed_positions = FixedPositions::none;
  int64_t position_offset = 0;  ///< row of position 0
  std::optional<Norm> norm;
  std::optional<LayerInputs> layer_inputs;
  std::optional<StreamEnds> streams;
  bool read_again = false;  ///< layers read the embeddings too

  bool has_trainable() const;
  /// The residual stream [T, D] f32, or the N of them [N T, D], from ids and positions [T] i32. saved == nullptr:
  /// inference. piece: a mapped table is left to the page cache after so many tokens, since with a row the system maps
  /// what lies around it; 0: it stays.
  Tensor forward(const Tensor& ids, const Tensor& at, const StepContext& step, InputSaved* saved,
                 const LayerSharding* sharding, PassState& state, int64_t piece = 0);
  /// Accumulates gradients from that of what forward gave.
  void backward(const Tensor& ids, const Tensor& at, const StepContext& step, InputSaved&& saved, Tensor gradient,
                const LayerSharding* sharding, PassState& state);
  void visit(const ParameterVisitor& visitor);
  void visit_linears(const std::function<void(Linear&)>& visitor);
};

}  // namespace nibble
