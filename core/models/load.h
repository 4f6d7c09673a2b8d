#pragma once
// Decoders from Hugging Face directories and from random numbers.

#include <filesystem>

#include "nibble/core/models/decoder.h"

namespace nibble {

class CheckpointDir;

/// Wraps the maker of dense weights: a quantizer or a reader of packed weights takes the modules it knows and passes
/// the rest on to `dense`. `dense` reads module + ".weight" from the checkpoint.
using LinearMakerWrapper = std::function<LinearWeightMaker(const CheckpointDir& checkpoint, LinearWeightMaker dense)>;

struct LoadOptions {
  LinearMakerWrapper wrap_linear;  ///< empty: every Linear is dense
  /// Further tensors of the checkpoint that wrap_linear reads ("...weight.absmax"): not reported as unexpected.
  std::function<bool(const std::string& tensor)> expects;
  std::optional<DecoderConfig> config;      ///< instead of what config.json says: layers of kinds that no family has
  LayerRange layers;                        ///< a pipeline stage opens its own layers only
  const LayerSharding* sharding = nullptr;  ///< and of their weights some shards, see Decoder
  const ExpertExchange* experts = nullptr;  ///< and some of their experts: tensors of the others are not read
};

/// The model in `directory`, frozen. Dense weights and embeddings keep the file's dtype and are mapped from it (only
/// unaligned ones are copied, those in 8-bit floats become bf16, see read_fp8); norms and biases become f32. Throws
/// InputError naming file and tensor when one is missing, has another shape than the config says or a dtype that is no
/// float, and for tensors nobody asked for (the first five; buffers such as rotary_emb.inv_freq are known and ignored).
/// A head in the file beside a tied flag is accepted when both hold the same bytes, else refused.
Decoder load_decoder(const std::filesystem::path& directory, RankContext& rank, const LoadOptions& options = {});

/// Random weights as Hugging Face makes them: Linear and embedding weights normal(0, initializer_range), norms at the
/// value that does nothing, biases zero, all f32. A tensor's numbers depend on (seed, its name) only. layers, sharding
/// and experts: as in LoadOptions.
Decoder random_decoder(const DecoderConfig& config, uint64_t seed, RankContext& rank, LayerRange layers = {},
                       const LayerSharding* sharding = nullptr, const ExpertExchange* experts = nullptr);

/// One tensor of random_decoder: full name and shape -> f32 values.
std::shared_ptr<Parameter> random_parameter(const DecoderConfig& config, uint64_t seed, const std::string& name,
                                            const Shape& shape, MemoryPool& pool);

/// Dense weights of what `parameter` makes, stored as the family stores them. `config` must outlive it.
LinearWeightMaker dense_maker(const DecoderConfig& config, const ParameterMaker& parameter);

/// The model without bytes: names and shapes of everything (all f32, dense), to be visited but not computed with.
Decoder plan_decoder(const DecoderConfig& config, RankContext& rank, LayerRange layers = {});

/// Throws UsageError naming the first Linear whose weight is packed and cannot be trained.
void check_trainable(Decoder& decoder);

/// Makes every parameter of the decoder's own (not of adapters) trainable: f32 values with gradients, copied from the
/// mapped ones. Throws UsageError naming the first Linear whose weight is packed.
void make_trainable(Decoder& decoder, RankContext& rank);

/// Everything a checkpoint of the model holds: parameters in module order, then the parts of packed weights; adapters'
/// parameters are left out. A tied head comes once, as the embedding.
std::vector<NamedTensor> state_dict(Decoder& decoder);

/// What else Transformers wants in a checkpoint, f32 [] each: numbers that it keeps as tensors and that are never
/// trained (beta and eps of xIELU). It computes with whatever lies in memory where they are missing.
std::vector<NamedTensor> stored_constants(const DecoderConfig& config, MemoryPool& pool);

}  // namespace nibble
