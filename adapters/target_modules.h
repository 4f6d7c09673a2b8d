#pragma once
// Which Linears get an adapter, by the rules of PEFT 0.21 (peft/tuners/tuners_utils.py, check_target_module_exists).

#include <span>
#include <string>
#include <vector>

#include "nibble/adapters/options.h"

namespace nibble {

/// What the options select in one model.
struct TargetModules {
  std::vector<std::string> modules;            ///< paths that get an adapter, in the order given
  std::vector<std::string> unmatched_entries;  ///< names and patterns of the options that select nothing
};

/// PEFT's default target_modules for a `model_type` of config.json. Throws UsageError for a type without one.
std::vector<std::string> default_target_modules(const std::string& model_type);

/// `linears`: path of every Linear, output head included; `head`: path of the output head ("lm_head"), left out by
/// "all-linear", as are `embeddings`, which come first in the result; model_type as in config.json, for empty
/// target_modules; `tensors`: of experts, with adapters that rank_pattern and alpha_pattern may mean too. Throws
/// UsageError, listing the kinds of modules there are, when nothing is selected.
TargetModules match_target_modules(std::span<const std::string> linears, const std::string& head,
                                   const std::string& model_type, const AdapterOptions& options,
                                   std::span<const std::string> embeddings = {},
                                   std::span<const std::string> tensors = {});

/// The path of the module that a tensor is of: its name without the last part.
inline std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }
/// What a path ends in, without dots: q_proj.
inline std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }
/// Whether a path is a name or ends in it.
inline bool is_named(const std::string& path, const std::string& name) {
  return path == name || path.ends_with("." + name);
}

/// r and lora_alpha of one module: the first key of the pattern that matches its path, else the general value. Of a
/// router in target_parameters ("gate.weight") the tensor's path counts, as in PEFT.
int64_t rank_of(const AdapterOptions& options, const std::string& module);
double alpha_of(const AdapterOptions& options, const std::string& module);
/// Throws InputError, of `file`, for a rank of its factors that the options cannot mean: they mean the number beside
/// any key of rank_pattern that matches the module's path, not only the first (PEFT sorts the keys when it saves), or
/// the general one where none does.
void check_rank(const AdapterOptions& options, const std::string& module, int64_t r, const std::string& file);

/// alpha / r, or alpha / sqrt(r) with use_rslora.
double lora_scaling(const AdapterOptions& options, const std::string& module, int64_t r);

/// Whether a path is one of modules_to_save (PEFT: plain end of the path, no dot needed).
bool is_module_to_save(const AdapterOptions& options, const std::string& module);

/// The targets as a list of names for adapter_config.json: what "all-linear" and defaults stand for, with the other
/// options as they are. Last parts of the paths where these select the same modules, else the paths.
std::vector<std::string> target_names(std::span<const std::string> matched, std::span<const std::string> linears,
                                      const AdapterOptions& options, const std::string& head);

}  // namespace nibble
