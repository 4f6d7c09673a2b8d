#pragma once
// Modules that PEFT calls otherwise than the files of the model do, because Transformers does.

#include <string>
#include <utility>
#include <vector>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/models/decoder_config.h"

namespace nibble {

/// A module's name in the model's files.
std::string file_name(const std::string& name, const DecoderConfig& config);
/// The modules that the options name, called so. Expressions stay as they are and are compared with PEFT's paths
/// (AdapterOptions::paths); keys of patterns that are plain names become PEFT's.
AdapterOptions in_file_names(AdapterOptions options, const DecoderConfig& config);
/// The adapter with its tensors and options called as the model's files would call them, which is how Linears are
/// called here, and without copies of what is tied. Tensors of all experts are taken apart into those of the files,
/// which share their bytes. Throws InputError for one of another shape.
PeftAdapter in_file_names(PeftAdapter adapter, const DecoderConfig& config);

/// "base_model.model.backbone.layers..." as PEFT writes it, "base_model.model.model.layers..."; other names as they
/// are, and those of the weights of single experts.
std::string peft_name(const std::string& name, const DecoderConfig& config);
/// PEFT's path of the tensor that a parameter of the files is, or is a part of: "model.layers.0.mlp.experts.down_proj".
std::string peft_tensor(const std::string& parameter, const DecoderConfig& config);
/// PEFT's word for an entry of modules_to_save.
std::string peft_module(const std::string& entry, const DecoderConfig& config);
AdapterOptions in_peft_names(AdapterOptions options, const DecoderConfig& config);
/// For write_peft_directory: the weights of a layer's experts, where all are there, as the pieces of one tensor.
std::vector<PeftTensor> in_peft_names(const std::vector<std::pair<std::string, Tensor>>& tensors,
                                      const DecoderConfig& config);

}  // namespace nibble
