#pragma once
// Where an adapter goes, decided on the names of the whole model: the same on every rank, whatever part of the model it
// has, and before any weight is read.

#include <string>
#include <utility>
#include <vector>

#include "nibble/adapters/options.h"
#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/adapters/tuners/fully_trained.h"
#include "nibble/adapters/tuners/trained_tokens.h"
#include "nibble/core/models/decoder_config.h"

namespace nibble {

class Decoder;

/// How ranks share the model.
struct ModelSplit {
  bool stages = false;  ///< embedding and head on different ranks (pipeline)
  bool tensor = false;  ///< a shard of every layer on each rank (tensor parallelism)
};

struct AdapterPlan {
  std::vector<std::string> linears;     ///< paths of all Linears of the model, the head included
  std::vector<std::string> modules;     ///< paths of embeddings and Linears with an adapter, in module order
  std::vector<std::string> parameters;  ///< paths of tensors of all experts with an adapter, as PEFT has them
  FullyTrained fully_trained;
  std::vector<TrainedTokens> tokens;
  /// Frozen weights of the base that the file replaces, and its names of them, see stored_tables.
  std::vector<std::pair<std::string, std::string>> tables;
  std::vector<std::string> notes;  ///< what of a mixture is adapted; entries, tensors and modules that fit nothing
  int64_t vocab_size = 0;          ///< of the model beside the adapter, which may have more rows
  bool base_changed = false;       ///< see AttachedAdapter, where the values of `tables` count too
};

/// A new adapter on a model of this config. Throws UsageError for options that select nothing, exclude each other or
/// need what a split model has nowhere.
AdapterPlan plan_adapter(const DecoderConfig& config, const AdapterOptions& options, const ModelSplit& split = {});

/// One from a directory: the modules are those of the file. Throws also InputError for a file that does not fit the
/// model's names.
AdapterPlan plan_adapter(const DecoderConfig& config, const PeftAdapter& adapter, const ModelSplit& split = {});

/// One that becomes part of a file: throws as the above where parts of it exclude each other, lack, or have another
/// rank than its config says, but not where it has more than the decoder (a tower's modules). adapter: in_file_names.
AdapterPlan plan_merge(const DecoderConfig& config, PeftAdapter adapter);

/// How the ranks of `decoder` share the model.
ModelSplit split_of(const Decoder& decoder);

}  // namespace nibble
