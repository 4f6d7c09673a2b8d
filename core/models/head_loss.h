#pragma once
// Final norm, head and cross-entropy in chunks of tokens, so that whole logits never exist.

#include <functional>
#include <optional>

#include "nibble/core/models/batch.h"
#include "nibble/core/nn/layer_sharding.h"
#include "nibble/core/nn/linear.h"
#include "nibble/core/nn/norms/norm.h"
#include "nibble/core/nn/streams/stream_ends.h"

namespace nibble {

/// Rows of logits, of `rows`, that are computed at a time, nearly as many each time: about 32 MiB in f32, or half of
/// what a weight [V, E] that is trained takes, or an eighth more, but enough that a product reads the weight to some
/// effect.
int64_t head_chunk_rows(int64_t rows, int64_t vocabulary, int64_t width, bool trained);

/// How many such chunks are computed together where that changes no bits: so many that each thread has about 1 MiB of
/// their logits, at least one.
int64_t head_chunks_at_once(int64_t chunk_rows, int64_t vocabulary, int64_t threads);

/// Which gradient a head computes: of the sum over label tokens of weight * -log p, times `scale`. That of the logits
/// is scale * weight * (softmax - onehot).
struct HeadGradient {
  float scale = 1;
  Tensor weights;            ///< [T] f32 on the host; undefined: all 1
  Tensor* hidden = nullptr;  ///< [T, D] f32 += that of the residual stream; null: not wanted
};

/// A loss that is a function of the logits themselves: of a score head, or beside those of a teacher.
struct LogitLoss {
  std::vector<int32_t> rows;  ///< of the batch, whose logits it wants
  bool at_once = false;       ///< all of them together, else in chunks
  /// Gets the logits [n, V] f32 of rows[first], rows[first + 1], ..., which `softcap` (0 = off) still has to cap, and
  /// returns the sum of their loss. scale, unless null: logits then become scale times its derivative by them.
  std::function<double(int64_t first, Tensor& logits, float softcap, const float* scale)> of;

  explicit operator bool() const { return static_cast<bool>(of); }
};

/// The end of a Decoder.
struct DecoderHead {
  std::optional<StreamEnds> streams;
  std::optional<Norm> norm;
  std::optional<Linear> project;  ///< [E, D], back to the embeddings' width (OPT 350M)
  Linear linear;                  ///< [V, E]; a tied one holds the embedding's parameter
  float scale = 1;                ///< multiplies the logits
  float softcap = 0;              ///< of the logits after that, 0 = off

  /// The stream that all else here calls hidden: x, or what is made of the N streams x [N T, D].
  Tensor stream(const Tensor& x, const StepContext& step, StreamEnds::Saved* saved) {
    return streams ? streams->join(x, step, saved) : x;
  }
  bool has_trainable() const;
  /// See head_chunk_rows; the same for all shards of a vocabulary.
  int64_t chunk_rows(int64_t rows);

  /// Calls sink(first row, logits [n, V] f32) for the chunks of hidden [N, D] f32 in order: of the whole vocabulary,
  /// wherever its rows are.
  void logits(const Tensor& hidden, const StepContext& step, const LayerSharding* sharding,
              const std::function<void(int64_t row, const Tensor& logits)>& sink);

  /// Sum of the cross-entropy (natural log) over the tokens that have a label, from the residual stream hidden [T, D]
  /// f32, with a gradient and no log_probs over those with a weight. log_probs [T] f32 on the host, 0 before, unless
  /// null, gets those of the labels; [1 + kTokenStatistics, T] each TokenStatistic behind them (cross_entropy.h). With
  /// `gradient` the head's own gradients are accumulated and the stream's, as that says. temperature: divides the
  /// logits, behind the cap. Throws InputError for a label outside [0, V).
  double loss_sum(const Tensor& hidden, const Batch& batch, const StepContext& step, const LayerSharding* sharding,
                  float temperature, const HeadGradient* gradient, Tensor* log_probs = nullptr);

  /// The same for a loss of logits. Throws UsageError where the vocabulary is sharded.
  double loss_sum(const Tensor& hidden, const LogitLoss& loss, const StepContext& step, const LayerSharding* sharding,
                  const HeadGradient* gradient);

  /// Kept from forward to backward.
  struct Saved {
    NormSaved norm;
    LinearSaved project, linear;
  };
  /// Logits [n, V] f32 before the cap, of hidden [n, D] f32.
  Tensor forward(const Tensor& hidden, const StepContext& step, Saved* saved);
  /// Calls of(picked rows, logits, gradient of the logits) for `chunk` of `rows` at a time; that gradient, where one is
  /// wanted, is undefined before and goes on to the parameters and to gradient->hidden.
  void each_chunk(const Tensor& hidden, std::span<const int32_t> rows, int64_t chunk, const StepContext& step,
                  const LayerSharding* sharding, const HeadGradient* gradient,
                  const std::function<void(std::span<const int32_t>, Tensor& logits, Tensor& dlogits)>& of);
  /// The gradient of hidden, f32, if `wanted`; dlogits [n, V] in the compute dtype is used up.
  Tensor backward(Tensor& dlogits, const StepContext& step, Saved&& saved, bool wanted, const LayerSharding* sharding);
};

}  // namespace nibble
