#include "nibble/adapters/peft/adapter_names.h"

#include <algorithm>
#include <cctype>

#include "nibble/adapters/peft/stored_tables.h"

namespace nibble {

namespace {

std::string replaced(std::string name, const std::string& from, const std::string& to) {
  const size_t at = name.find(from);
  return at == std::string::npos ? name : name.replace(at, from.size(), to);
}

// Earlier adapters call a router as the files do (Mixtral: "block_sparse_moe.gate", now "mlp.gate").
std::string router_name(const std::string& name, const DecoderConfig& config) {
  const ExpertNames& names = config.names.block.experts;
  const std::string earlier = "." + names.router + ".lora_";
  const size_t at = config.experts && names.router != names.peft_router ? name.find(earlier) : std::string::npos;
  if (at == std::string::npos) return name;
  return name.substr(0, at + 1) + names.peft_router + name.substr(at + earlier.size() - std::string(".lora_").size());
}

// Tensors of all experts are called as by PEFT already, Linears of one ("experts.3.up_proj") are not.
bool is_of_all_experts(const std::string& name, const DecoderConfig& config) {
  if (!config.experts) return false;
  const std::string& tensor = config.names.block.experts.peft_gate_up;
  const std::string module = "." + tensor.substr(0, tensor.rfind('.')) + ".";
  const size_t at = name.find(module);
  return at != std::string::npos && std::isdigit(static_cast<unsigned char>(name[at + module.size()])) == 0;
}

// Everything that names modules by their paths or the ends of these.
template <typename Renamed>
AdapterOptions with_names(AdapterOptions options, const Renamed& renamed) {
  for (auto* names : {&options.target_modules.names, &options.exclude_modules.names, &options.modules_to_save}) {
    for (std::string& name : *names) name = renamed(name);
  }
  for (auto& [key, value] : options.trainable_token_indices) key = renamed(key);
  return options;
}

PeftPaths paths_of(const DecoderConfig& config) {
  return {config.file_prefix, config.adapter_prefix, config.adapter_names};
}

bool is_plain_name(const std::string& key) {
  return std::ranges::all_of(key, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

}  // namespace

std::string file_name(const std::string& of, const DecoderConfig& config) {
  std::string name = "." + of;  // what is called otherwise may stand at its beginning
  if (!is_of_all_experts(name, config)) {
    for (const auto& [file, adapter] : config.adapter_names) name = replaced(name, adapter, file);
  }
  name.erase(0, 1);
  const bool same = config.file_prefix.empty() || name.starts_with(config.file_prefix);
  if (same || !name.starts_with(config.adapter_prefix)) return name;
  return config.file_prefix + name.substr(config.adapter_prefix.size());
}

AdapterOptions in_file_names(AdapterOptions asked, const DecoderConfig& config) {
  AdapterOptions options = with_names(std::move(asked), [&](const std::string& name) {
    std::string result = file_name(name + ".", config);
    result.pop_back();
    return result;
  });
  options.paths = paths_of(config);
  const auto rename_key = [&](std::string& key) {
    if (is_plain_name(key)) key = options.paths.of(key);
  };
  for (auto& [key, value] : options.rank_pattern) rename_key(key);
  for (auto& [key, value] : options.alpha_pattern) rename_key(key);
  return options;
}

PeftAdapter in_file_names(PeftAdapter adapter, const DecoderConfig& config) {
  adapter.options = in_file_names(std::move(adapter.options), config);
  std::map<std::string, Tensor> tensors;
  for (auto& [name, tensor] : adapter.tensors)
    tensors[router_name(file_name(name, config), config)] = std::move(tensor);
  adapter.tensors = std::move(tensors);
  drop_tied_copies(adapter, config);
  return adapter;
}

std::string PeftPaths::of(const std::string& path) const {
  std::string name = "." + path + ".";  // what is called otherwise may stand at its beginning or end
  for (const auto& [file, peft] : within) name = replaced(name, file, peft);
  name.erase(0, 1);
  if (!file_prefix.empty() && name.starts_with(file_prefix)) name.replace(0, file_prefix.size(), peft_prefix);
  name.pop_back();
  return name;
}

std::string peft_name(const std::string& of, const DecoderConfig& config) {
  const std::string prefix = kPeftPrefix;
  return of.starts_with(prefix) ? prefix + paths_of(config).of(of.substr(prefix.size())) : of;
}

AdapterOptions in_peft_names(AdapterOptions options, const DecoderConfig& config) {
  return with_names(std::move(options), [&](const std::string& name) { return paths_of(config).of(name); });
}

std::vector<std::pair<std::string, Tensor>> in_peft_names(std::vector<std::pair<std::string, Tensor>> tensors,
                                                          const DecoderConfig& config) {
  for (auto& [name, tensor] : tensors) name = peft_name(name, config);
  return tensors;
}

}  // namespace nibble
