#include "nibble/core/models/families/expert_tensors.h"

#include <algorithm>
#include <charconv>

namespace nibble {

namespace {

// "0.mlp.experts.3.up_proj" behind the prefix of layers -> "mlp.experts.3.up_proj"; below: what it is below.
std::optional<std::string_view> below_layer(const DecoderConfig& config, std::string_view module, std::string& layer) {
  const std::string& layers = config.names.layers;
  const size_t dot = module.starts_with(layers) ? module.find('.', layers.size()) : std::string_view::npos;
  if (dot == std::string_view::npos) return std::nullopt;
  layer = module.substr(0, dot + 1);
  return module.substr(dot + 1);
}

std::optional<int64_t> number(std::string_view text, int64_t below) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && 0 <= value && value < below;
  return whole ? std::optional(value) : std::nullopt;
}

bool take_prefix(std::string_view& text, const std::string& prefix) {
  if (prefix.empty() || !text.starts_with(prefix) || !text.substr(prefix.size()).starts_with('.')) return false;
  text.remove_prefix(prefix.size() + 1);
  return true;
}

std::string parent(const std::string& path) { return path.substr(0, std::min(path.size(), path.rfind('.'))); }

using Renamed = std::vector<std::pair<std::string, std::string>>;  // in the files, in the modules

Renamed renamed_parameters(const ExpertNames& names) {
  Renamed all;
  for (const char* end : {".weight", ".bias"}) all.emplace_back(names.router + end, names.peft_router + end);
  if (!names.peft_correction.empty()) all.emplace_back(names.correction, names.peft_correction);
  if (!names.fused_gate_up.empty()) {
    all.emplace_back(names.fused_gate_up, names.peft_gate_up);
    all.emplace_back(names.fused_down, names.peft_down);
  }
  return all;
}

Renamed renamed_modules(const ExpertNames& names) {
  Renamed all{{names.router, names.peft_router}};
  if (!names.fused_gate_up.empty()) return all;
  const std::string experts = parent(names.peft_gate_up);
  all.emplace_back(names.experts, experts);
  all.emplace_back(parent(names.experts), parent(experts));
  return all;
}

}  // namespace

ModuleTensor module_tensor(const DecoderConfig& config, const std::string& parameter) {
  std::string layer;
  const auto below = config.experts ? below_layer(config, parameter, layer) : std::nullopt;
  if (!below) return {parameter, std::nullopt};
  const ExpertNames& names = config.names.block.experts;
  if (names.fused_gate_up.empty() && below->ends_with(".weight")) {
    const std::optional<ExpertPart> part = expert_part(config, parent(parameter));
    if (part) return {part->tensor, part};
  }
  for (const auto& [file, module] : renamed_parameters(names)) {
    if (*below == file) return {layer + module, std::nullopt};
  }
  return {parameter, std::nullopt};
}

std::vector<ExpertPiece> expert_pieces(const DecoderConfig& config, const std::string& tensor) {
  std::vector<ExpertPiece> found;
  std::string layer;
  const auto below = config.experts ? below_layer(config, tensor, layer) : std::nullopt;
  const ExpertNames& names = config.names.block.experts;
  if (!below || (*below != names.peft_gate_up && *below != names.peft_down)) return found;
  for (int64_t e = 0; e < config.experts->experts; ++e) {
    for (const std::string& projection : {names.gate, names.up, names.down}) {
      const std::string parameter = layer + names.experts + "." + std::to_string(e) + "." + projection + ".weight";
      const ModuleTensor whole = module_tensor(config, parameter);
      if (!whole.part || whole.name != tensor) continue;
      const int64_t begin = whole.part->first_row();
      if (!found.empty()) found.back().rows.end = begin;
      found.push_back({parameter, {begin, whole.part->experts * whole.part->outputs}});
    }
  }
  return found;
}

std::string file_parameter(const DecoderConfig& config, const std::string& tensor) {
  std::string layer;
  const auto below = config.experts ? below_layer(config, tensor, layer) : std::nullopt;
  if (!below) return tensor;
  for (const auto& [file, module] : renamed_parameters(config.names.block.experts)) {
    if (*below == module) return layer + file;
  }
  return tensor;
}

std::string module_path(const DecoderConfig& config, const std::string& path) {
  if (!config.experts) return path;
  for (const auto& [file, module] : renamed_modules(config.names.block.experts)) {
    if (path == file || path.ends_with("." + file)) return path.substr(0, path.size() - file.size()) + module;
  }
  return path;
}

std::optional<ExpertPart> expert_part(const DecoderConfig& config, const std::string& linear) {
  std::string layer;
  const auto below = config.experts ? below_layer(config, linear, layer) : std::nullopt;
  if (!below) return std::nullopt;
  const ExpertsConfig& experts = *config.experts;
  const ExpertNames& names = config.names.block.experts;
  const int64_t gates = experts.gated ? experts.hidden : 0;
  const auto part = [&](const std::string& tensor, std::string_view expert, int64_t first,
                        int64_t outputs) -> std::optional<ExpertPart> {
    const std::optional<int64_t> e = number(expert, experts.experts);
    if (!e) return std::nullopt;
    return ExpertPart{layer + tensor, *e, experts.experts, first, outputs, config.family == "llama4_text"};
  };
  std::string_view rest = *below;
  if (take_prefix(rest, names.fused_gate_up)) return part(names.peft_gate_up, rest, 0, gates + experts.hidden);
  if (take_prefix(rest, names.fused_down)) return part(names.peft_down, rest, 0, experts.expert_width());
  if (!names.fused_gate_up.empty() || !take_prefix(rest, names.experts)) return std::nullopt;
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view expert = rest.substr(0, dot), projection = rest.substr(dot + 1);
  if (experts.gated && projection == names.gate) return part(names.peft_gate_up, expert, 0, 2 * gates);
  if (projection == names.up) return part(names.peft_gate_up, expert, gates, gates + experts.hidden);
  if (projection == names.down) return part(names.peft_down, expert, 0, experts.expert_width());
  return std::nullopt;
}

std::optional<int64_t> expert_of(const DecoderConfig& config, const std::string& tensor) {
  std::string layer;
  const auto below = config.experts ? below_layer(config, tensor, layer) : std::nullopt;
  if (!below || !config.names.block.experts.fused_gate_up.empty()) return std::nullopt;
  std::string_view rest = *below;
  if (!take_prefix(rest, config.names.block.experts.experts)) return std::nullopt;
  return number(rest.substr(0, rest.find('.')), config.experts->experts);
}

bool is_router(const DecoderConfig& config, const std::string& linear) {
  std::string layer;
  const auto below = config.experts ? below_layer(config, linear, layer) : std::nullopt;
  return below && *below == config.names.block.experts.peft_router;
}

}  // namespace nibble
