#include "nibble/adapters/peft/adapter_names.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "nibble/adapters/peft/stored_tables.h"
#include "nibble/core/base/error.h"
#include "nibble/core/models/families/expert_tensors.h"

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
  const std::string &file = config.file_prefix, &peft = config.adapter_prefix;  // the longer one may begin as the other
  if (file.empty() || !name.starts_with(peft) || (file.size() > peft.size() && name.starts_with(file))) return name;
  return file + name.substr(peft.size());
}

namespace {

// [E, out, in] as [E out, in].
Tensor matrices_of(const Tensor& all, const std::string& name, const std::vector<ExpertPiece>& experts,
                   const PeftAdapter& adapter, const DecoderConfig& config) {
  const int64_t count = config.experts->experts, rows = experts.back().rows.end;
  if (all.rank() == 3 && all.dim(0) == count && all.dim(0) * all.dim(1) == rows) return all.reshape({rows, all.dim(2)});
  throw InputError(adapter.file(),
                   name + " has shape " + to_string(all.shape()) + ", the model needs " + std::to_string(rows / count) +
                       " rows for each of " + std::to_string(count) + " experts",
                   "use the model that the adapter was trained on");
}

}  // namespace

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
  for (const auto& [name, tensor] : adapter.tensors) {
    const std::string file = router_name(file_name(name, config), config);
    const std::vector<ExpertPiece> experts = expert_pieces(config, file);
    if (experts.empty()) tensors[file_parameter(config, file)] = tensor;
    for (const auto& [parameter, rows] : experts) {
      tensors[parameter] = matrices_of(tensor, name, experts, adapter, config).rows(rows.begin, rows.end);
    }
  }
  adapter.tensors = std::move(tensors);
  drop_tied_copies(adapter, config);
  return adapter;
}

std::string PeftPaths::of(const std::string& path) const {
  std::string name = "." + path + ".";  // what is called otherwise may stand at its beginning or end
  for (const auto& [file, peft] : within) name = replaced(name, file, peft);
  name.erase(0, 1);
  const bool is_named = peft_prefix.size() > file_prefix.size() && name.starts_with(peft_prefix);
  if (!file_prefix.empty() && name.starts_with(file_prefix) && !is_named)
    name.replace(0, file_prefix.size(), peft_prefix);
  name.pop_back();
  return name;
}

std::string peft_name(const std::string& of, const DecoderConfig& config) {
  const std::string prefix = kPeftPrefix;
  if (!of.starts_with(prefix)) return of;
  const std::string path = of.substr(prefix.size());
  const ModuleTensor tensor = module_tensor(config, path);
  return prefix + paths_of(config).of(tensor.part ? path : tensor.name);
}

std::string peft_tensor(const std::string& parameter, const DecoderConfig& config) {
  return peft_name(kPeftPrefix + module_tensor(config, parameter).name, config).substr(std::strlen(kPeftPrefix));
}

std::string peft_module(const std::string& entry, const DecoderConfig& config) {
  const std::string name = peft_name(kPeftPrefix + module_path(config, entry) + ".", config);
  return name.substr(std::strlen(kPeftPrefix), name.size() - std::strlen(kPeftPrefix) - 1);
}

AdapterOptions in_peft_names(AdapterOptions options, const DecoderConfig& config) {
  std::vector<std::string> saved;
  for (const std::string& entry : options.modules_to_save) saved.push_back(peft_module(entry, config));
  options = with_names(std::move(options), [&](const std::string& name) { return paths_of(config).of(name); });
  options.modules_to_save = std::move(saved);
  return options;
}

std::vector<PeftTensor> in_peft_names(const std::vector<std::pair<std::string, Tensor>>& tensors,
                                      const DecoderConfig& config) {
  struct Stack {
    std::map<int64_t, Tensor> pieces;  // by their first rows
    int64_t rows = 0;
  };
  const auto tensor_of = [&](const std::string& name) {
    const bool saved = name.starts_with(kPeftPrefix);
    return saved ? module_tensor(config, name.substr(std::strlen(kPeftPrefix))) : ModuleTensor();
  };
  std::map<std::string, Stack> stacks;
  for (const auto& [name, value] : tensors) {
    const ModuleTensor of = tensor_of(name);
    if (!of.part) continue;
    Stack& stack = stacks[of.name];
    stack.pieces[of.part->first_row()] = value;
    stack.rows += value.dim(0);
  }
  std::vector<PeftTensor> result;
  for (const auto& [name, value] : tensors) {
    const ModuleTensor of = tensor_of(name);
    const int64_t all = of.part ? of.part->experts * of.part->outputs : 0;
    if (!of.part || stacks[of.name].rows != all) {
      result.push_back({peft_name(name, config), value.shape(), {value}});
    } else if (of.part->first_row() == 0) {
      PeftTensor whole{
          peft_name(kPeftPrefix + of.name, config), {of.part->experts, of.part->outputs, value.dim(1)}, {}};
      for (const auto& [row, piece] : stacks[of.name].pieces) whole.pieces.push_back(piece);
      result.push_back(std::move(whole));
    }
  }
  return result;
}

}  // namespace nibble
