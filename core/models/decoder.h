#pragma once
// A decoder-only transformer of any family in DecoderConfig: embedding, blocks, final norm, head.

#include <functional>
#include <memory>
#include <vector>

#include "nibble/core/models/batch.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/generation/kv_cache.h"
#include "nibble/core/models/head_loss.h"
#include "nibble/core/nn/activation_store.h"
#include "nibble/core/nn/block.h"
#include "nibble/core/nn/embedding.h"
#include "nibble/core/nn/hooks.h"
#include "nibble/core/nn/layer_sharding.h"
#include "nibble/core/nn/makers.h"

namespace nibble {

/// The layers [begin, end) that a Decoder owns: a pipeline stage. Whoever owns layer 0 has the embedding, whoever owns
/// the last layer has the final norm and the head (and, tied, a copy of the embedding under its name).
struct LayerRange {
  int64_t begin = 0;
  int64_t end = -1;  ///< -1: the last layer is included
};

/// Gets the logits [n, V] f32 of n tokens from the `row`-th on.
using LogitSink = std::function<void(int64_t row, const Tensor& logits)>;

/// A loss that is a function of the log-probabilities of a batch's labels, [T] f32 on the host, 0 where a token has no
/// label: returns it and sets weights [T] (0 before), minus its derivative by each.
struct TokenLoss : std::function<double(const Tensor& log_probs, Tensor& weights)> {
  using function::function;
  /// log_probs is [1 + ops::kTokenStatistics, T]: behind its first row each ops::TokenStatistic.
  bool wants_statistics = false;
  /// Instead of the function: a loss of logits, in one pass over the head.
  LogitLoss of_logits = {};
  float temperature = 1;  ///< log-probabilities and gradients are those of logits / this
  /// Where the weights do not depend on log-probabilities: sets them, so that one pass over the head has both. Empty
  /// otherwise.
  std::function<void(Tensor& weights)> weigh = {};
};

/// A pass of fewer tokens computes too little with a weight to map it anew.
constexpr int64_t kMinTokensToUnmap = 256;

class Decoder {
 public:
  /// The makers are asked for global weights. sharding: of which only shards are kept, and completes what they compute;
  /// must outlive the Decoder, as experts: which of the experts are made here, and where the others are.
  Decoder(DecoderConfig config, const LinearWeightMaker& make_linear, const ParameterMaker& make_parameter,
          RankContext& rank, LayerRange range = {}, const LayerSharding* sharding = nullptr,
          const ExpertExchange* experts = nullptr);

  /// Of the whole model.
  const DecoderConfig& config() const;
  /// Null where the weights are not sharded.
  const LayerSharding* sharding() const;
  /// Null where all experts are here.
  const ExpertExchange* experts() const;
  /// After the embedding and the head have got another number of rows.
  void set_vocab_size(int64_t rows);
  /// With `end` as a number.
  LayerRange range() const;
  bool has_embedding() const;
  bool has_head() const;
  /// Layers of the whole model below `layer` keep only their input for the backward pass and run again. Nor do they
  /// keep weights mapped between passes of kMinTokensToUnmap and more tokens, or the embedding and the head if there
  /// are such layers: the page cache keeps these then.
  void recompute_below(int64_t layer);
  /// All layers, or none.
  void set_recompute(Recompute recompute);
  /// Where activations wait for the backward pass; null (as it starts): in memory. Must outlive all training passes.
  void set_spill(SpillFile* spill);
  /// Layer numbers in the hooks: -1 is the embedding, config().layers the final norm with the head. In training the
  /// head's forward and backward run between before_backward and after_backward.
  void set_hooks(BlockHooks* hooks);
  /// Whether an earlier stage has something trainable, so that the gradient has to reach this stage's lower end.
  void set_trainable_below(bool trainable);

  /// Every parameter once, in module order (a tied head is the embedding, and layers may share a block).
  void visit(const ParameterVisitor& visitor);
  /// Every Linear in module order, the head last (a tied head included; those of layers that share a block: each
  /// one's).
  void visit_linears(const std::function<void(Linear&)>& visitor);
  /// The tokens' embedding, then that of the positions where they are learned.
  void visit_embeddings(const std::function<void(Embedding&)>& visitor);

  /// An empty cache for `sequences` sequences in the layers and heads that are here, in the step's compute dtype.
  KvCache make_cache(const StepContext& step, int64_t sequences = 1) const;

  /// Products of the layers' frozen weights in 8 bits (LinearWeight::set_int8), but not the routers' and the head's.
  void set_int8(MemoryPool& pool);

  /// Calls sink for chunks of rows in order. With a cache, each document continues one of its sequences
  /// (Batch::sequences).
  void logits(const Batch& batch, const StepContext& step, const LogitSink& sink, KvCache* cache = nullptr);
  /// Logits [documents, V] f32 of the last token of each document, which continues a sequence of the cache.
  Tensor next_logits(const Batch& batch, const StepContext& step, KvCache& cache);

  /// Sum of the cross-entropy over the label tokens (natural log), in f64, or the loss given; no gradients.
  double loss_sum(const Batch& batch, const StepContext& step, const TokenLoss& loss = {});

  /// loss_sum, and adds gradient_scale times its gradient to every trainable parameter.
  double loss_sum_and_gradients(const Batch& batch, const StepContext& step, float gradient_scale,
                                const TokenLoss& loss = {});

  /// Call the hooks as a DecoderPass's forward with the head (training or not) or without, and its backward do, and
  /// compute nothing: how a rank without a microbatch takes part in what the hooks exchange.
  void idle_forward(bool training, bool head = true);
  void idle_backward();

 private:
  friend class DecoderPass;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// One microbatch on its way through the layers a Decoder owns, for callers that interleave several (a pipeline). The
/// batch must outlive it.
class DecoderPass {
 public:
  /// training: what the backward pass needs is kept.
  DecoderPass(Decoder& decoder, const Batch& batch, const StepContext& step, bool training);
  /// The documents continue sequences of `cache`, which this Decoder made and which must outlive the pass.
  DecoderPass(Decoder& decoder, const Batch& batch, const StepContext& step, KvCache& cache);
  ~DecoderPass();

  /// The residual stream [T, D] f32, or all of them [N T, D], above the last own layer. x: the stream below the first
  /// one; undefined where the Decoder has the embedding.
  Tensor forward(Tensor x);
  /// Decoders with a head: the sum of the loss from the stream above the last layer. In training the head's gradients
  /// are accumulated and `gradient` becomes the stream's, both times gradient_scale. Without `loss` it is the
  /// cross-entropy, in one pass over the head; with it the log-probabilities come first, and for the gradients the head
  /// runs once more.
  double loss_sum(const Tensor& x, float gradient_scale, Tensor& gradient, const TokenLoss& loss = {});
  /// What of the stream, or of all, belongs to some of the tokens.
  Tensor pick(const Tensor& x, std::span<const int32_t> tokens) const;
  /// Decoders with a head: the logits of the stream's rows, and [documents, V] of each document's last row.
  void logits(const Tensor& x, const LogitSink& sink);
  Tensor last_logits(const Tensor& x);
  /// For a caller that has to wait before backward(): starts to read what that needs first.
  void prepare_backward();
  /// Accumulates gradients of everything trainable, from the gradient of the stream above; returns the one below,
  /// undefined where nothing below is trainable.
  Tensor backward(Tensor gradient);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
