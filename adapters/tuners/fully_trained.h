#pragma once
// Weights of the base that are trained beside an adapter: modules_to_save and biases.

#include <map>
#include <set>
#include <string>

#include "nibble/adapters/options.h"
#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/models/decoder.h"

namespace nibble {

/// Fully trained parameters -> their names in the adapter ("lm_head.weight", "....q_proj.base_layer.bias").
using FullyTrained = std::map<std::string, std::string>;

/// Whether an entry of modules_to_save names the module of a parameter, or one that it is inside ("mlp"), by the end of
/// its path: the one in PEFT, whose modules have tensors of all experts.
bool names_module_of(const std::string& entry, const std::string& parameter, const DecoderConfig& config);
/// The same by the path in the files, where single experts have modules. It counts for entries that fit none of PEFT's.
bool names_file_module_of(const std::string& entry, const std::string& parameter);

/// The biases and modules_to_save that the options name in the whole model, whose tied head or embedding is untied
/// where one of them is trained. `targeted`: paths of the Linears with an adapter; `stored`, if any: the file that they
/// are from, whose entries mean also what it has by names of the files. Throws UsageError for a name that fits nothing.
FullyTrained find_fully_trained(Decoder& model, const AdapterOptions& options, const std::set<std::string>& targeted,
                                const PeftAdapter* stored = nullptr);

/// Gives those that are here values of their own (f32, writable), under their PEFT names; with gradients if trainable.
/// A tied head or embedding is untied first, so that the other keeps its weight. Throws UsageError for a 4-bit module.
void train_fully(Decoder& decoder, const AdapterOptions& options, const FullyTrained& parameters, bool trainable,
                 RankContext& rank);

}  // namespace nibble
