#pragma once
// A model family as data: everything in which one decoder differs from another.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/nn/block.h"
#include "nibble/core/nn/feed_forward/experts_config.h"
#include "nibble/core/nn/feed_forward/router_balance.h"
#include "nibble/core/nn/mixers/attention.h"
#include "nibble/core/nn/shared/shared_block.h"

namespace nibble {

/// Module names below a layer's prefix.
struct BlockNames : NormNames {
  LayerInputNames layer_input;
  AltUpNames alt_up;
  AttentionNames attention;
  MlpNames mlp;
  ExpertNames experts;
  SharedBlockNames shared;
};

/// Where the layers' own inputs come from (Gemma 3n and 4).
struct LayerInputTableNames {
  std::string embedding = "model.embed_tokens_per_layer", projection = "model.per_layer_model_projection";
  std::string norm = "model.per_layer_projection_norm";
};

/// Module names in the family's checkpoints. Internal names are these names, so nothing is ever mapped.
struct TensorNames {
  std::string embedding = "model.embed_tokens";
  std::string positions;       ///< learned positions (GPT-2, OPT), empty = none
  std::string embedding_norm;  ///< of the embeddings (BLOOM), empty = none
  /// Linears between embeddings of another width and the layers, and back before the head (OPT 350M); empty = none
  std::string project_in, project_out;
  std::string layers = "model.layers.";
  std::string final_norm = "model.norm";  ///< empty = none
  std::string head = "lm_head";
  LayerInputTableNames layer_inputs;
  /// Lists of Linears that make further residual streams, and one of all (Gemma 3n)
  std::string split_streams = "model.altup_projections", join_streams = "model.altup_unembed_projections";
  BlockNames block;
};

struct DecoderConfig;
/// Makes a sublayer of one kind for layer l; prefix: "model.layers.0."
template <typename Kind>
using SublayerMaker = std::function<std::unique_ptr<Kind>(const DecoderConfig& config, int64_t l,
                                                          const std::string& prefix, const Makers& makers)>;

/// What may differ between the layers of one model.
struct LayerConfig {
  int64_t window = 0;            ///< position i sees i-window+1..i; 0 = all before it
  int64_t chunk = 0;             ///< position i sees those of its chunk, i / chunk; 0 = all before it
  int rotary = 0;                ///< index into DecoderConfig::rope, -1 = no rope
  float attention_scale = 0;     ///< of the scores, where it is not DecoderConfig's; 0 = as there
  bool qk_norm = true;           ///< where DecoderConfig has one
  bool scaled_queries = false;   ///< see QueryScaling
  bool sinks = true;             ///< where DecoderConfig has them
  bool post_mlp_norm = true;     ///< where the names have one
  bool values_are_keys = false;  ///< see AttentionConfig, as the next ones
  int64_t keys_from = -1, shared_as = -1;
  int64_t block_of = -1;  ///< the first layer with the SharedBlock's parameters that this one has; -1 = it has none
  int64_t heads = 0, kv_heads = 0, head_size = 0, mlp_width = 0;  ///< the same
  std::optional<float> gate_cutoff;                               ///< see MlpConfig
  SublayerMaker<Mixer> mixer;                                     ///< of another kind than Attention
  SublayerMaker<FeedForward> feed_forward;                        ///< of another kind than Mlp
  std::optional<NormNames> norms;                                 ///< where the layer has others
  bool has_mixer = true, has_feed_forward = true;                 ///< one may be absent, with its norm (Nemotron-H)
  bool mixer_attends = false;                                     ///< `mixer` is one of ops::attention_forward too
};

/// Queries at position p are multiplied by 1 + beta ln(1 + floor((p + offset) / length)) (Ministral 3, Llama 4).
struct QueryScaling {
  double beta = 0;
  int64_t length = 1, offset = 0;
};

/// How positions bias the attention scores (ALiBi).
enum class Alibi : uint8_t {
  none,
  exact,    ///< BLOOM
  rounded,  ///< Falcon: ALiBi's slopes and their products with positions in bf16, then scaled like the scores
};

/// What is added to the embeddings, where it is neither learned nor rope: sines of a position, then cosines, with
/// frequencies 1 / 10000^e (Vaswani et al. 2017).
enum class FixedPositions : uint8_t {
  none,
  xglm,  ///< e = i / (D / 2 - 1)
  ctrl,  ///< e = 2 i / D
};

struct DecoderConfig {
  std::string model_type;    ///< "llama", "mistral", "qwen2", ...
  std::string family;        ///< the same, but of a checkpoint with towers that of its text: see family_of
  std::string architecture;  ///< "LlamaForCausalLM"

  int64_t vocab_size = 0;       ///< V
  int64_t width = 0;            ///< D
  int64_t embedding_width = 0;  ///< D but where names.project_in says otherwise
  int64_t mlp_width = 0;        ///< F
  int64_t layers = 0;           ///< L
  int64_t heads = 0;            ///< H
  int64_t kv_heads = 0;         ///< G
  int64_t head_size = 0;        ///< K
  int64_t max_positions = 0;    ///< longest text the model was made for

  NormConfig norm;
  ops::Activation activation = ops::Activation::silu;
  bool gated_mlp = true;
  float mlp_gate_scale = 1, mlp_output_scale = 1;  ///< see MlpConfig
  NormPlace norm_place = NormPlace::input;
  bool parallel_residual = false;
  float residual_scale = 1;  ///< multiplies what attention and MLP add (Granite)
  float mixed_scale = 1;     ///< see BlockConfig
  std::optional<HeadNormConfig> qk_norm, v_norm;
  bool qk_norm_after_rope = false;
  bool attention_sinks = false;
  int64_t value_size = 0;  ///< see AttentionConfig, as the next one
  float value_scale = 1;
  OutputGate attention_gate = OutputGate::none;
  bool sublayer_norms = false;  ///< of what enters the last projection of attention and MLP (BitNet)
  bool xielu = false;           ///< see MlpConfig
  QueryScaling query_scaling;
  int64_t layer_input_size = 0;            ///< P of every layer's own input, 0 = none
  int64_t layer_input_vocabulary = 0;      ///< rows of their table
  bool scaled_layers = false;              ///< each has a scale, see LayerInput
  int64_t streams = 1, active_stream = 0;  ///< residual streams, see AltUpConfig
  bool scaled_stream = true;               ///< the same
  float qkv_clip = 0;                      ///< bound of queries, keys and values (OLMo), 0 = off
  bool qkv_bias = false, output_bias = false, mlp_bias = false, head_bias = false;
  int64_t qkv_groups = 1;         ///< layout of a fused projection, see AttentionConfig
  bool value_before_key = false;  ///< the same
  Alibi alibi = Alibi::none;
  FixedPositions fixed_positions = FixedPositions::none;

  std::vector<RopeConfig> rope;     ///< one for each kind of layer
  std::vector<LayerConfig> layer;   ///< [L]
  float attention_scale = 0;        ///< of the scores
  float attention_softcap = 0;      ///< 0 = off
  float logit_softcap = 0;          ///< 0 = off
  float logit_scale = 1;            ///< multiplies the logits (Granite, Cohere), before the cap
  float embedding_scale = 1;        ///< multiplies the embeddings (Gemma: sqrt(D))
  bool noise_is_scaled = false;     ///< by embedding_scale: Transformers' embedding module does not multiply (Granite)
  bool transposed_linears = false;  ///< weights of Linears but the head are stored [in, out] (Conv1D of GPT-2)
  int64_t position_offset = 0;      ///< row of the learned positions that belongs to position 0 (OPT: 2)
  bool tied_head = false;           ///< the head is the embedding

  float initializer_range = 0.02f;  ///< standard deviation of random weights
  int32_t bos_id = -1;              ///< -1 = none
  std::vector<int32_t> eos_ids;     ///< ids that end a text, from config.json and generation_config.json

  TensorNames names;
  /// Beginnings of the names of what else is in the files: towers of vision or sound, which a Decoder is without.
  std::vector<std::string> towers;
  /// Where modules are called otherwise in PEFT's adapters: how names begin in the files, and there.
  std::string file_prefix, adapter_prefix;
  std::vector<std::pair<std::string, std::string>> adapter_names;  ///< the same for what stands within a name

  std::optional<ExpertsConfig> experts;    ///< of the layers that have them, see use_experts()
  float router_aux_loss_coef = 0;          ///< of RouterBalance in the loss, 0 = off
  std::vector<FusedTensor> fused_tensors;  ///< that the files have, and which modules' they are
  std::string passed_over;         ///< what of the layers has this in its name is not looked at either; empty = nothing
  int64_t longest_text = 0;        ///< tokens of a document that can be computed; 0 = any number
  int64_t layers_passed_over = 0;  ///< in the files behind the last one: they predict tokens after the next

  int64_t output_vocab_size = 0;  ///< tokens that the head has rows for, the first of V; 0 = all (Apertus 1.5)
  int64_t score_labels = 0;       ///< rows of a score head in the place of the head, see with_score_head(); 0 = none
  std::string replaced_head;  ///< names.head of files that have no score head: a new one takes its place; empty: none
  std::string problem_type;   ///< of a score head, as config.json has it; empty: the labels tell
  int32_t pad_id = -1;        ///< -1 = none
  int32_t padding = -1;       ///< Embedding::set_padding of the tables of tokens

  /// Norms and places of a layer's sublayers.
  BlockConfig block() const;
  /// A layer's sublayers, where it does not say that they are of another kind.
  AttentionConfig attention(int64_t l) const;
  MlpConfig mlp(int64_t l) const;
  /// Layers read activations of earlier ones, or of the embedding, beside the residual stream.
  bool layers_share_activations() const;
  /// UsageError for a Decoder of some layers of such a model.
  void check_stages(bool all_layers) const;
  /// Layers that have a SharedBlock read the embeddings again.
  bool has_shared_blocks() const;
  /// Of a step, where the loss has a part for the balance of the experts.
  std::optional<RouterBalance> router_balance() const;
  /// Layer l has `experts` instead of an MLP.
  void use_experts(int64_t l);
  /// Rows of the head: tokens it can give, or labels.
  int64_t head_rows() const;
  /// Positions below this can be computed; learned ones end, others do not.
  int64_t position_limit() const;
  /// Whether documents that share a beginning (ops::AttentionSpan) have the results of whole ones: where all layers
  /// attend, positions count from the document's first, no document's length and no other one changes what a token is.
  bool documents_may_share() const;
  /// Whether keys cached for the first `before` tokens are still right when the text has grown to `after`: longrope
  /// turns all of them otherwise once a text outgrows its original length.
  bool cache_holds(int64_t before, int64_t after) const;
};

/// Shape of a tensor that stands in a model's files; nullopt: they have none of the name.
using TensorShapes = std::function<std::optional<Shape>(const std::string& tensor)>;

inline constexpr const char* kScoreHead = "score";
/// The model as Transformers' *ForSequenceClassification has it: "score" [labels, D] without a bias in the place of the
/// head. Files that do not have it: a new one is drawn as random_decoder() draws it.
DecoderConfig with_score_head(DecoderConfig config, int64_t labels, bool in_files);
/// "LlamaForSequenceClassification" of "LlamaForCausalLM".
std::string score_architecture(const DecoderConfig& config);

/// Reads config.json of a Hugging Face directory (keys as published, or as Transformers 5 writes them), and
/// generation_config.json for the ids that end a text if it is there. Throws InputError naming file and key when a
/// value is missing, of the wrong type or out of bounds, and for an unknown architecture, rope type or activation with
/// the list of known ones.
DecoderConfig read_decoder_config(const std::filesystem::path& directory);

/// The same from the text of a config.json; `place` names it in errors.
DecoderConfig parse_decoder_config(std::string_view json, const std::string& place);

}  // namespace nibble
