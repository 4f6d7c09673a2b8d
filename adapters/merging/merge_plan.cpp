#include "nibble/adapters/merging/merge_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/adapters/adapter_plan.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/expert_lora.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/shared_modules.h"

namespace nibble {

namespace {

bool ends_with_taken(const std::string& name, const std::string& end, std::string& stem) {
  if (!name.ends_with(end)) return false;
  stem = name.substr(0, name.size() - end.size());
  return true;
}

}  // namespace

std::vector<int64_t> trained_token_ids(const PeftAdapter& adapter, const std::string& module,
                                       const TensorNames& names) {
  for (const auto& [name, ids] : adapter.options.trainable_token_indices) {
    const bool fits = name.empty() ? module == names.embedding : module.ends_with(name);
    if (!fits) continue;
    const Tensor rows = adapter.find(module + ".token_adapter.trainable_tokens_delta");
    const bool whole = rows && rows.rank() == 2 && rows.dim(0) == static_cast<int64_t>(ids.size()) &&
                       std::ranges::all_of(ids, [](int64_t id) { return id >= 0; });
    if (whole) return ids;
  }
  throw InputError(adapter.file(), module + ": trainable_token_indices do not fit the rows of the file",
                   "save the adapter again");
}

MergePlan::MergePlan(const TensorSource& base, const PeftAdapter& adapter, DType dtype)
    : adapter_(adapter), model_(decoder_config_of(base)) {
  if (!is_float(dtype)) throw UsageError("a merged model is bf16, f16 or f32", "choose one of them", "dtype");
  for (const TensorSpec& spec : base.tensors) {
    if (!is_float(spec.dtype)) {
      throw InputError(base.directory.string(), spec.name + " is no float tensor", "remove it from the checkpoint");
    }
    index_[spec.name] = outputs_.size();
    outputs_.push_back({.name = spec.name,
                        .shape = spec.shape,
                        .dtype = dtype,
                        .source = spec.name,
                        .source_rows = spec.shape.empty() ? 1 : spec.shape[0]});
  }
  untie();
  const AdapterPlan plan = plan_merge(model_, adapter);
  resize(plan.vocab_size);
  place_linears();
  std::set<std::string> tables;
  for (const auto& [parameter, name] : plan.tables) {
    replace_table(parameter, name);
    tables.insert(name);
  }
  for (const auto& [name, tensor] : adapter.tensors) {
    if (!tables.contains(name)) place(name, tensor);
  }
  check_loftq(base);
}

int64_t MergePlan::vocab_size() const {
  const auto table = index_.find(model_.names.embedding + ".weight");
  return table == index_.end() ? model_.vocab_size : outputs_[table->second].shape.at(0);
}

MergeOutput& MergePlan::output(const std::string& name, const std::string& part) {
  const auto found = index_.find(name);
  if (found != index_.end()) return outputs_[found->second];
  if (name == std::string(kScoreHead) + ".weight") {
    throw InputError(adapter_.file(), "has a score head, for which the base, a model of next tokens, has no place",
                     "use the adapter beside its base (nibble score --adapter), or train without an adapter");
  }
  throw InputError(adapter_.file(), part + " needs " + name + ", which the base does not have",
                   "merge into the model that the adapter was trained on");
}

/// LoftQ's factors make up for what rounding to 4 bits lost.
void MergePlan::check_loftq(const TensorSource& base) const {
  if (adapter_.options.init_lora_weights != LoraInit::loftq) return;
  const nlohmann::json config = nlohmann::json::parse(base.config), none = nlohmann::json::object();
  const nlohmann::json text = config.value("text_config", none);
  if (config.value("quantization_config", text.value("quantization_config", none)).value("load_in_4bit", false)) return;
  throw InputError(adapter_.file(), "init_lora_weights is \"loftq\", so the adapter stands beside 4-bit weights",
                   "merge into the base as nibble quantize --no-double-quant makes it");
}

// How the family stores the weights, and LoRAs of the tensors of all experts and of routers, which files may call
// otherwise.
void MergePlan::place_linears() {
  struct Found {
    std::string linear, tensor;
    ExpertMatrices matrices;
  };
  std::vector<Found> found;
  std::vector<std::string> linears;
  LocalRank rank;
  Decoder plan = plan_decoder(model_, rank.context());
  plan.visit_linears([&](Linear& linear) {
    const auto& weight = dynamic_cast<const DenseWeight&>(linear.weight());
    const std::string tensor = linear.weight().parameter()->name;
    linears.push_back(linear.name());
    if (const auto stored = index_.find(tensor); stored != index_.end()) {
      outputs_[stored->second].transposed = weight.transposed();
    }
    if (is_router(model_, linear.name()) && adapter_.find(linear.name() + ".lora_A.weight")) {
      output(tensor, linear.name()).lora = linear.name();
      placed_.insert(linear.name());
    }
    const std::optional<ExpertPart> part = expert_part(model_, linear.name());
    const bool several = linear.weight().parameter()->value.rank() == 3;
    if (part && weight.matrix() == 0) found.push_back({linear.name(), tensor, {*part, several, weight.transposed()}});
  });
  if (!model_.experts) return;
  const std::vector<std::string> adapted = expert_tensors_of(model_, adapter_, linears);
  for (const Found& one : found) {
    const std::string& tensor = one.matrices.part.tensor;
    if (std::ranges::count(adapted, tensor) == 0) continue;
    const std::string stem = expert_lora_stem(model_, tensor, adapted);
    MergeOutput& result = output(one.tensor, stem);
    result.lora = stem;
    result.experts = one.matrices;
    placed_.insert(stem);
  }
}

void MergePlan::place(const std::string& name, const Tensor& tensor) {
  if (first_layer_of_block(model_, name) >= 0) {
    throw InputError(
        adapter_.file(), name + " is of one layer, but several layers share the weight below it",
        "use the adapter beside its base, or train without the modules of " + model_.names.block.shared.block);
  }
  std::string module;
  if (ends_with_taken(name, ".lora_A.weight", module)) {
    if (placed_.contains(module)) return;
    output(module + ".weight", name).lora = module;
  } else if (ends_with_taken(name, ".lora_embedding_A", module)) {
    MergeOutput& table = output(module + ".weight", name);
    table.lora = module;
    table.is_embedding = true;
  } else if (ends_with_taken(name, ".token_adapter.trainable_tokens_delta", module)) {
    output(module + ".weight", name).tokens = module;
    share_tokens_with_head(module);
  } else if (ends_with_taken(name, ".lora_B.bias", module)) {
    if (!index_.contains(module + ".bias")) {
      throw InputError(adapter_.file(), name + " has no bias of the base that it could be merged into",
                       "use the adapter beside its base");
    }
    MergeOutput& bias = output(module + ".bias", name);
    bias.bias = tensor;
    const Tensor a = adapter_.find(module + ".lora_A.weight");
    if (!a) throw InputError(adapter_.file(), name + " has no lora_A beside it");
    bias.bias_scaling = static_cast<float>(lora_scaling(adapter_.options, module, a.dim(0)));
  } else if (ends_with_taken(name, ".base_layer.bias", module)) {
    replace(module + ".bias", name, tensor);
  } else if (ends_with_taken(name, ".base_layer.weight", module)) {
    replace(module + ".weight", name, tensor);
  } else if (!name.ends_with(".lora_B.weight") && !name.ends_with(".lora_embedding_B") &&
             !name.ends_with(".lora_magnitude_vector")) {
    replace(name, name, tensor);
  }
}

void MergePlan::replace(const std::string& target, const std::string& part, const Tensor& tensor) {
  MergeOutput& whole = output(target, part);
  if (whole.shape != tensor.shape()) {
    throw InputError(adapter_.file(),
                     part + " has shape " + to_string(tensor.shape()) + ", the base has " + to_string(whole.shape),
                     "merge into the model that the adapter was trained on");
  }
  whole.replacement = tensor;
}

/// A frozen one, which of a tied base is below both embedding and head.
void MergePlan::replace_table(const std::string& parameter, const std::string& part) {
  const std::string embedding = model_.names.embedding + ".weight", head = model_.names.head + ".weight";
  std::vector<std::string> targets{parameter};
  if (model_.tied_head && parameter == embedding) {
    targets.push_back(head);
    std::erase_if(targets, [&](const std::string& name) {
      return !index_.contains(name) || is_module_to_save(adapter_.options, module_of(name));
    });
  }
  for (const std::string& target : targets) replace(target, part, adapter_.find(part));
}

/// As many rows of embedding, head and its bias as the adapter needs.
void MergePlan::resize(int64_t rows) {
  if (rows == model_.vocab_size) return;
  std::vector<std::string> tables{model_.names.embedding + ".weight"};
  if (model_.score_labels == 0) {
    tables.insert(tables.end(), {model_.names.head + ".weight", model_.names.head + ".bias"});
  }
  for (const std::string& name : tables) {
    const auto found = index_.find(name);
    if (found == index_.end()) continue;
    MergeOutput& table = outputs_[found->second];
    table.shape.at(0) = std::max(table.shape.at(0), rows);
    table.zero_filled = model_.tied_head && name.ends_with(".bias");
  }
}

/// A tied head that the adapter touches on either side becomes a tensor of its own.
void MergePlan::untie() {
  if (!model_.tied_head) return;
  const std::string head = model_.names.head + ".weight", embedding = model_.names.embedding + ".weight";
  if (!(touches(model_.names.head) || touches(model_.names.embedding))) {
    if (const auto both = index_.find(head); both != index_.end()) outputs_[both->second].source = embedding;
    return;
  }
  untied_ = true;
  if (shares_blocks(model_)) {
    throw InputError(
        adapter_.file(),
        "changes embedding or head alone, but where these are not one, Transformers does not share the "
        "blocks of layers either",
        "use the adapter beside its base, or train without " + model_.names.embedding + " and " + model_.names.head);
  }
  if (index_.contains(head)) return;  // both are in the file
  MergeOutput copy = output(embedding, head);
  copy.name = head;
  index_[head] = outputs_.size();
  outputs_.push_back(std::move(copy));
}

/// Whether the adapter changes a table in a way that a tied one would not see.
bool MergePlan::touches(const std::string& module) const {
  const bool rows_of_head =
      module == model_.names.head && adapter_.find(module + ".token_adapter.trainable_tokens_delta");
  return rows_of_head || is_module_to_save(adapter_.options, module) || adapter_.find(module + ".lora_A.weight") ||
         adapter_.find(module + ".lora_embedding_A");
}

/// A tied head that is in the file, or was written out, sees the rows of the embedding.
void MergePlan::share_tokens_with_head(const std::string& module) {
  if (!model_.tied_head || module != model_.names.embedding) return;
  const auto head = index_.find(model_.names.head + ".weight");
  if (head != index_.end() && !is_module_to_save(adapter_.options, model_.names.head)) {
    outputs_[head->second].tokens = module;
  }
}

}  // namespace nibble
