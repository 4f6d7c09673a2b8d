#include "nibble/adapters/peft/adapter_names.h"

namespace nibble {

std::string file_name(const std::string& name, const DecoderConfig& config) {
  const bool same = config.file_prefix.empty() || name.starts_with(config.file_prefix);
  if (same || !name.starts_with(config.adapter_prefix)) return name;
  return config.file_prefix + name.substr(config.adapter_prefix.size());
}

PeftAdapter in_file_names(PeftAdapter adapter, const DecoderConfig& config) {
  std::map<std::string, Tensor> tensors;
  for (auto& [name, tensor] : adapter.tensors) tensors[file_name(name, config)] = std::move(tensor);
  adapter.tensors = std::move(tensors);
  return adapter;
}

std::string peft_name(const std::string& name, const DecoderConfig& config) {
  const std::string ours = kPeftPrefix + config.file_prefix;
  if (config.file_prefix.empty() || !name.starts_with(ours)) return name;
  return kPeftPrefix + config.adapter_prefix + name.substr(ours.size());
}

std::vector<std::pair<std::string, Tensor>> in_peft_names(std::vector<std::pair<std::string, Tensor>> tensors,
                                                          const DecoderConfig& config) {
  for (auto& [name, tensor] : tensors) name = peft_name(name, config);
  return tensors;
}

}  // namespace nibble
