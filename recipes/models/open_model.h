#pragma once
// Where model, quantization and adapter meet: a ready Decoder from what the sections `model` and `adapter` name.

#include <optional>
#include <string>

#include "nibble/adapters/adapter_plan.h"
#include "nibble/adapters/attach.h"
#include "nibble/core/models/decoder.h"
#include "nibble/core/train/telemetry/observer.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// f32 or bf16 for "f32", "bf16", "auto" (bf16 where the CPU has it). Throws UsageError for anything else.
DType compute_dtype_of(const std::string& name);

/// The recipe itself, whose models and adapters are all there. Throws IoError naming the key of one that is not.
const Recipe& with_all_directories(const Recipe& recipe);

/// The config that model.path or model.init names.
DecoderConfig model_config(const ModelRecipe& base);

/// model.tokenizer, or where it is not given the one that adapter.path keeps if it is another than the model's, which
/// the observer is notified, or else the model's own directory.
std::string tokenizer_path_of(const Recipe& recipe, const Observer& observer = {});

/// The recipe with the chat template of the adapter that it continues, where neither data.template nor model.tokenizer
/// is given and the model has another one, which is reported to the observer. (Where the adapter keeps another
/// tokenizer than the model's, its template comes with that: tokenizer_path_of.)
Recipe with_adapters_template(Recipe recipe, const Observer& observer);

/// Loads the base, frozen, quantized if asked. Throws InputError for what the files lack, UsageError for quantizing a
/// base that is already quantized.
Decoder open_base(const ModelRecipe& base, RankContext& rank, LayerRange layers = {},
                  const LayerSharding* sharding = nullptr, const ExpertExchange* experts = nullptr);

/// Computes with the frozen weights of the layers in 8 bits, as open_base does where the recipe says so. Throws
/// UsageError on a CPU that cannot.
void use_int8(Decoder& model, RankContext& rank);

/// Throws UsageError where the ranks of parallel.experts cannot share the experts of a model of this config, or, where
/// all of it is trained, the state of their optimizer. What an adapter adds to that plan_adapter says.
void check_experts(const Recipe& recipe, const DecoderConfig& config);

/// Where open_adapter will put the recipe's adapter in a model of this config that gets `rows` rows for its tokens;
/// nothing without an adapter. Throws what training would throw for names, options (also check_continued) and what the
/// ranks' layout has no place for, before any weight is read.
std::optional<AdapterPlan> plan_adapter(const Recipe& recipe, DecoderConfig config, int64_t rows);

/// Throws UsageError where objective.reference is the model without its adapter and `base_changed` (AttachedAdapter).
void check_reference(const ObjectiveOptions& objective, bool base_changed);

/// The teacher of a recipe that distills, as open_base takes it: in 4 bits where its files are, or else as they are.
ModelRecipe teacher_of(const Recipe& recipe);
/// Throws InputError for a teacher, or a model that objective.reference names, whose vocabulary is not that of the
/// model that is trained, which has `rows` rows for its tokens.
void check_vocabularies(const Recipe& recipe, int64_t rows);

/// Attaches the adapter of a recipe, trainable: a new one, or the one at adapter.path. Throws UsageError when nothing
/// matches; InputError when the directory does not fit.
AttachedAdapter open_adapter(Decoder& model, const ModelRecipe& base, const AdapterRecipe& recipe, RankContext& rank,
                             const Observer& observer);

/// The section with the rows [config.vocab_size, rows) of embedding and head among its trainable_token_indices; as it
/// is where modules_to_save has the embedding, or where it continues an adapter.
AdapterRecipe with_added_tokens(AdapterRecipe recipe, const DecoderConfig& config, int64_t rows);

/// What is trainable after opening.
enum class Train : uint8_t { nothing, adapter, everything };

/// Loads the base and the PEFT directory `adapter` (empty: none). Throws as above; Train::everything asks for a base
/// that is not quantized (UsageError otherwise). The process computes as base.products() says from then on.
Decoder open_model(const ModelRecipe& base, const std::string& adapter, Train train, RankContext& rank);

/// Sixteen hex digits over config.json and the weight files (their sizes, headers and ends, not every byte), so that a
/// run does not go on with another base.
std::string base_fingerprint(const std::string& path);

}  // namespace nibble
