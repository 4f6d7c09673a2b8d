#pragma once
// What must be the same when a run is continued, beside the keys of its recipe: what the files that it names hold.

#include <filesystem>
#include <string>
#include <vector>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/train/run/run.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// Adds to `options` the fingerprint of the data (TrainingData::fingerprint: every token as the run sees it) and the
/// content of each other file that decides bits: "model.fingerprint/FILE" for config.json and weights (or model.init),
/// and for generation_config.json where answers are drawn; "adapter.fingerprint/FILE" for the adapter that is
/// continued, "tokenizer.fingerprint/FILE" for the files of `tokenizer` and a template file. Reads what is not
/// remembered (content_hash).
void add_fingerprints(RunOptions& options, const Recipe& recipe, const std::string& tokenizer,
                      const std::string& data_fingerprint);

/// The directory of the base that the adapter in a PEFT directory names: a path, or an ID in the Hugging Face cache.
/// Throws UsageError where it names none, IoError where that is no directory here.
std::filesystem::path find_base(const std::filesystem::path& adapter);

/// Writes down what an adapter keeps of its base. `base` (kBaseFile), JSON: the content of config.json and of each file
/// of weights, and "quantize", the 4 bits that a base of 16 bits was held in: {"files": {"config.json": "0123.."},
/// "quantize": "nf4"}; and "compute_dtype": "int8" where products with the base were in 8 bits. `bits_and_bytes`: those
/// 4 bits as Transformers makes them, which knows blocks of 64 only.
void record_base(AdapterCompanions& companions, const ModelRecipe& model);

/// Whether the record of the adapter in the directory `adapter` says so.
bool trained_in_int8(const std::filesystem::path& adapter);

/// What an adapter was trained on where that is not the base it meets; both empty where it is.
struct OtherBase {
  std::string what;      ///< end of a sentence that begins with "this adapter was trained on "
  std::string quantize;  ///< model.quantize of the training, where only that is another
};

/// Compares what the adapter in the directory `adapter` keeps of its base with `base`. A directory in 4 bits passes for
/// any base that was held in 4 bits, as does every base for an adapter without such a record.
OtherBase other_base(const std::filesystem::path& adapter, const ModelRecipe& base);

/// "warning: ..." where other_base finds one; `setting` is how its quantize is chosen: "--quantize ", `key` what named
/// the adapter, where it is not the one that is meant anyway. "" otherwise.
std::string base_warning(const std::filesystem::path& adapter, const ModelRecipe& base, const std::string& setting,
                         const std::string& key = "");

/// "warning: ..." where two of the adapters in these directories keep records of other bases; "" otherwise.
std::string bases_warning(const std::vector<std::string>& adapters);

}  // namespace nibble
