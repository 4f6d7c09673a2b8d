#pragma once
// A decoder-only transformer of any family in DecoderConfig: embedding, blocks, final norm, head.

#include <functional>
#include <memory>
#include <vector>

#include "nibble/core/models/batch.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/kv_cache.h"
#include "nibble/core/nn/activation_store.h"
#include "nibble/core/nn/block.h"
#include "nibble/core/nn/embedding.h"
#include "nibble/core/nn/hooks.h"
#include "nibble/core/nn/makers.h"

namespace nibble {

class Decoder {
 public:
  Decoder(DecoderConfig config, const LinearWeightMaker& make_linear, const ParameterMaker& make_parameter,
          RankContext& rank);

  const DecoderConfig& config() const;
  /// After the embedding and the head have got another number of rows.
  void set_vocab_size(int64_t rows);
  void set_recompute(Recompute recompute);
  void set_hooks(BlockHooks* hooks);

  /// Every parameter once, in module order (a tied head is the embedding and comes once).
  void visit(const ParameterVisitor& visitor);
  /// Every Linear in module order, the head last (a tied head included).
  void visit_linears(const std::function<void(Linear&)>& visitor);
  /// The tokens' embedding, then that of the positions where they are learned.
  void visit_embeddings(const std::function<void(Embedding&)>& visitor);

  /// An empty cache for a document of this model, in the step's compute dtype.
  KvCache make_cache(const StepContext& step) const;

  /// Calls sink(first row, logits [n, V] f32) for chunks of rows in order. With a cache, the batch's single document
  /// continues the cached one; only_last: just the last row.
  void logits(const Batch& batch, const StepContext& step,
              const std::function<void(int64_t row, const Tensor& logits)>& sink, KvCache* cache = nullptr,
              bool only_last = false);

  /// Sum of the cross-entropy over the label tokens (natural log), in f64; no gradients.
  double loss_sum(const Batch& batch, const StepContext& step);

  /// loss_sum, and adds gradient_scale times its gradient to every trainable parameter.
  double loss_sum_and_gradients(const Batch& batch, const StepContext& step, float gradient_scale);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace nibble
