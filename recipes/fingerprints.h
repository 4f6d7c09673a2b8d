#pragma once
// What must be the same when a run is continued, beside the keys of its recipe: what the files that it names hold.

#include <filesystem>
#include <string>

#include "nibble/core/train/run/run.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// Adds to `options` the fingerprint of the data (TrainingData::fingerprint: every token as the run sees it) and the
/// content of each other file that decides bits: "model.fingerprint/FILE" for config.json and weights (or model.init),
/// "adapter.fingerprint/FILE" for the adapter that is continued, "tokenizer.fingerprint/FILE" for the files of
/// `tokenizer` and a template file. Reads what is not remembered (content_hash).
void add_fingerprints(RunOptions& options, const Recipe& recipe, const std::string& tokenizer,
                      const std::string& data_fingerprint);

/// What an adapter keeps of its base (kBaseFile), JSON: the content of config.json and of each file of weights, and
/// "quantize", the 4 bits that a base of 16 bits was held in: {"files": {"config.json": "0123.."}, "quantize": "nf4"};
/// and "compute_dtype": "int8" where products with the base were in 8 bits.
std::string base_record(const ModelRecipe& model);

/// Whether the record of the adapter in the directory `adapter` says so.
bool trained_in_int8(const std::filesystem::path& adapter);

/// Why the model in the directory `base` is not what the adapter in the directory `adapter` was trained on, as the end
/// of a sentence that begins with "this adapter was trained on "; "" where it is, or where the adapter keeps no record.
std::string other_base(const std::filesystem::path& adapter, const std::filesystem::path& base);

}  // namespace nibble
