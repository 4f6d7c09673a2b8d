#include "nibble/adapters/peft/adapter_names.h"

#include <cctype>
#include <cstring>

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

// How an expression begins that is no longer a plain name: "model\\.layers\\.", or "^model.layers.".
struct PlainBegin {
  std::string name;  // without backslashes and ^
  size_t length;     // in the expression
};

PlainBegin plain_begin(const std::string& expression) {
  PlainBegin begin{"", expression.starts_with('^') ? size_t{1} : size_t{0}};
  while (begin.length < expression.size()) {
    const bool escaped = expression.compare(begin.length, 2, "\\.") == 0;
    const size_t next = begin.length + (escaped ? 2 : 1);
    const char c = escaped ? '.' : expression[begin.length];
    const bool repeats = next < expression.size() && std::strchr("*+?{", expression[next]) != nullptr;
    if (repeats || (c != '.' && c != '_' && std::isalnum(static_cast<unsigned char>(c)) == 0)) break;
    begin.name += c;
    begin.length = next;
  }
  return begin;
}

// Everything that names modules by their paths or the ends of these, expressions too where they begin with a name;
// `renamed` takes what ends in a dot.
template <typename Renamed>
AdapterOptions with_names(AdapterOptions options, const Renamed& renamed) {
  const auto rename = [&](std::string& name) {
    name = renamed(name + ".");
    name.pop_back();
  };
  for (auto* names : {&options.target_modules.names, &options.exclude_modules.names, &options.modules_to_save}) {
    for (std::string& name : *names) rename(name);
  }
  const auto rename_begin = [&](std::string& expression) {
    const PlainBegin begin = plain_begin(expression);
    std::string name = begin.name;
    begin.length == expression.size() ? rename(name) : void(name = renamed(name));
    if (name == begin.name) return;
    const bool escapes = expression.substr(0, begin.length).find('\\') != std::string::npos;
    std::string text = expression.starts_with('^') ? "^" : "";
    for (const char c : name) text += c == '.' && escapes ? "\\." : std::string(1, c);
    expression.replace(0, begin.length, text);
  };
  for (auto& [key, value] : options.rank_pattern) rename_begin(key);
  for (auto& [key, value] : options.alpha_pattern) rename_begin(key);
  for (auto* selector : {&options.target_modules, &options.exclude_modules}) {
    if (!selector->pattern.empty() && !selector->all_linear()) rename_begin(selector->pattern);
  }
  for (auto& [key, value] : options.trainable_token_indices) rename(key);
  return options;
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

AdapterOptions in_file_names(AdapterOptions options, const DecoderConfig& config) {
  return with_names(std::move(options), [&](const std::string& name) { return file_name(name, config); });
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

std::string peft_name(const std::string& of, const DecoderConfig& config) {
  if (!of.starts_with(kPeftPrefix)) return of;
  std::string name = of;
  for (const auto& [file, adapter] : config.adapter_names) name = replaced(name, file, adapter);
  const std::string ours = kPeftPrefix + config.file_prefix;
  if (config.file_prefix.empty() || !name.starts_with(ours)) return name;
  return kPeftPrefix + config.adapter_prefix + name.substr(ours.size());
}

AdapterOptions in_peft_names(AdapterOptions options, const DecoderConfig& config) {
  const std::string prefix = kPeftPrefix;
  return with_names(std::move(options),
                    [&](const std::string& name) { return peft_name(prefix + name, config).substr(prefix.size()); });
}

std::vector<std::pair<std::string, Tensor>> in_peft_names(std::vector<std::pair<std::string, Tensor>> tensors,
                                                          const DecoderConfig& config) {
  for (auto& [name, tensor] : tensors) name = peft_name(name, config);
  return tensors;
}

}  // namespace nibble
