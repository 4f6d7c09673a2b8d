#pragma once
// One decoder layer, driven by data: the unit of loading, gathering, recomputing and placing.

#include <functional>
#include <memory>
#include <optional>

#include "nibble/core/nn/feed_forward/feed_forward.h"
#include "nibble/core/nn/layer_input.h"
#include "nibble/core/nn/mixers/mixer.h"
#include "nibble/core/nn/norms/norm.h"
#include "nibble/core/nn/streams/alt_up.h"

namespace nibble {

/// Module names of the norms below the layer's prefix; an empty name means the layer has no such norm. (In the families
/// the mixer is called attention, and the feed-forward an MLP.)
struct NormNames {
  std::string attention_norm = "input_layernorm";     ///< of the mixer's input
  std::string post_attention_norm;                    ///< of the mixer's output (Gemma 2)
  std::string mlp_norm = "post_attention_layernorm";  ///< of the feed-forward's input
  std::string post_mlp_norm;                          ///< of the feed-forward's output (Gemma 2)
};

/// Where attention_norm and mlp_norm stand; f is the mixer or the feed-forward.
enum class NormPlace : uint8_t {
  input,   ///< x + f(norm x)
  sum,     ///< norm(x + f(x)) (OPT 350M)
  stream,  ///< n + f(n), n = norm x (BLOOM with apply_residual_connection_post_layernorm)
};

struct BlockConfig {
  int64_t width = 0;  ///< D
  NormConfig norm;
  NormPlace norm_place = NormPlace::input;
  bool parallel_residual = false;  ///< x + mixer(norm x) + feed_forward(norm' x); without mlp_norm both share one norm
  float residual_scale = 1;        ///< multiplies what both add (Granite)
  float mixed_scale = 1;           ///< multiplies the stream between the two (Gemma 3n)
};

/// What the backward pass of one layer needs. What a sublayer computes on is computed again from the norm's input,
/// which is kept anyway: the same bits, two passes over [T, D] for 4 bytes an element less.
struct BlockSaved {
  NormSaved attention_norm, post_attention_norm, mlp_norm, post_mlp_norm;
  std::unique_ptr<SublayerSaved> mixer, feed_forward, layer_input, streams;
  bool mixer_input_dropped = false, feed_forward_input_dropped = false;

  /// Every tensor there is, in a fixed order.
  void visit(const TensorVisitor& visitor);
};

/// Neither knows nor asks what its sublayers are.
class Block final : public OfMembers<Block> {
 public:
  /// prefix: "model.layers.0."; one of the two sublayers may be absent (Nemotron-H), with the norms beside it.
  Block(const std::string& prefix, const NormNames& names, const BlockConfig& config, std::unique_ptr<Mixer> mixer,
        std::unique_ptr<FeedForward> feed_forward, const ParameterMaker& make,
        std::optional<LayerInput> layer_input = std::nullopt, std::optional<AltUp> alt_up = std::nullopt);

  /// The residual stream after this layer, [T, D] f32, from x [T, D] f32; with AltUp the N streams, [N T, D]. saved ==
  /// nullptr: inference (or the input is kept and recompute follows). With a cache (of make_cache) the tokens go on as
  /// context.continued says.
  Tensor forward(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
                 MixerCache* cache = nullptr);
  /// See Mixer::make_cache.
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const {
    return mixer_ ? mixer_->make_cache(sequences, dtype, pool) : nullptr;
  }
  /// What forward would keep, the same bits. The products whose results only the layer above needs are left out: the
  /// MLP's last one, a quarter of a Llama layer's operations, and the mixer's too where both see the same stream.
  BlockSaved recompute(const Tensor& x, const LayerContext& context, const StepContext& step);

  /// gradient [T, D] f32: of the output on entry, of the input on return. Accumulates the gradients of everything
  /// trainable inside. input_gradient = false: nothing below needs the input's gradient; `gradient` is then left
  /// undefined in value and the work for it is not done.
  void backward(Tensor& gradient, const LayerContext& context, const StepContext& step, BlockSaved&& saved,
                bool input_gradient);

  void each(const auto& use) {
    use(attention_norm_, mixer_, post_attention_norm_, mlp_norm_, feed_forward_, post_mlp_norm_, layer_input_, alt_up_);
  }

 private:
  // Takes the norms' outputs out of what is kept.
  void drop_inputs(BlockSaved& saved) const;
  void mix(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
           std::unique_ptr<SublayerSaved>* saved, MixerCache* cache);
  // forward, or recompute where the output is not wanted: undefined then.
  Tensor run(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
             MixerCache* cache, bool output_wanted);
  // forward with AltUp: the sublayers see one of the streams.
  Tensor run_streams(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
                     MixerCache* cache);
  void backward_one(Tensor& gradient, const LayerContext& context, const StepContext& step, BlockSaved&& saved,
                    bool input_gradient);
  // The two other places of the norms.
  Tensor run_around(const Tensor& x, const LayerContext& context, const StepContext& step, BlockSaved* saved,
                    MixerCache* cache, bool output_wanted);
  void backward_around(Tensor& gradient, const LayerContext& context, const StepContext& step, BlockSaved&& saved,
                       bool input_gradient);

  BlockConfig config_;
  std::optional<Norm> attention_norm_;
  std::unique_ptr<Mixer> mixer_;
  std::optional<Norm> post_attention_norm_, mlp_norm_;
  std::unique_ptr<FeedForward> feed_forward_;
  std::optional<Norm> post_mlp_norm_;
  std::optional<LayerInput> layer_input_;
  std::optional<AltUp> alt_up_;  // then the layer's input is AltUp's
};

}  // namespace nibble
