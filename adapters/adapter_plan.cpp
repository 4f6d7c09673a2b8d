#include "nibble/adapters/adapter_plan.h"

#include <algorithm>
#include <set>

#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/adapters/peft/stored_tables.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/expert_lora.h"
#include "nibble/adapters/tuners/token_rows.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/shared_modules.h"

namespace nibble {

namespace {

constexpr size_t kMostListed = 5;

std::string listed(const std::vector<std::string>& names) {
  std::string result;
  for (size_t i = 0; i < std::min(names.size(), kMostListed); ++i) result += (i ? ", " : "") + names[i];
  if (names.size() > kMostListed) result += " and " + std::to_string(names.size() - kMostListed) + " more";
  return result;
}

/// What needs a full matrix or table cannot be had where several ranks have shards of it.
void refuse_shards(const AdapterOptions& options) {
  const auto refuse = [](const std::string& what) {
    throw UsageError(what + " needs full weights, which parallel.tensor shards",
                     "use parallel.shard or parallel.pipeline", "adapter");
  };
  if (options.use_dora) refuse("use_dora");
  if (options.lora_bias) refuse("lora_bias");
  if (takes_from_base(options.init_lora_weights) || options.init_lora_weights == LoraInit::loftq) {
    refuse("init_lora_weights");
  }
  if (!options.trainable_token_indices.empty()) refuse("trainable_token_indices");
}

void check_embedding(const std::string& module, const DecoderConfig& config, const ModelSplit& split) {
  // PEFT cannot run these either: the model shifts the positions inside the module that PEFT replaces.
  if (module == config.names.positions && config.position_offset != 0) {
    throw UsageError("LoRA on " + module + " is not possible", "leave it out of target_modules");
  }
  if (split.tensor) {
    throw UsageError("LoRA on " + module + " needs the full table, which parallel.tensor shards",
                     "leave it out of target_modules", "adapter.target_modules");
  }
}

/// A weight that layers share can neither become that of one of them nor change under the others.
void check_shared_block(const std::string& module, const DecoderConfig& config, const AdapterOptions& options) {
  const bool changes = takes_from_base(options.init_lora_weights) || options.init_lora_weights == LoraInit::loftq;
  if (!changes || first_layer_of_block(config, module) < 0) return;
  throw UsageError("init_lora_weights would change the weight of " + module + ", which several layers share",
                   "start from random factors, or leave it out of target_modules", "adapter.init_lora_weights");
}

void check_new_embedding(const std::string& module, const AdapterOptions& options) {
  if (options.lora_bias) throw UsageError("lora_bias and LoRA on " + module + " exclude each other", "choose one");
  if (options.init_lora_weights == LoraInit::loftq) {
    throw UsageError("init_lora_weights \"loftq\" has no meaning for " + module, "leave it out of target_modules");
  }
}

/// Whether an entry of modules_to_save may mean a parameter.
bool is_named_by(const std::string& entry, const std::string& parameter, const DecoderConfig& config) {
  return names_module_of(entry, parameter, config) || names_file_module_of(entry, parameter);
}

/// Of an entry of modules_to_save that names no module of PEFT's: what it means is in another one there.
std::string own_entry_note(const std::string& entry, const FullyTrained& trained, const DecoderConfig& config) {
  const auto is_in = [&](const auto& one) { return names_module_of(entry, one.first, config); };
  const auto is_in_file = [&](const auto& one) { return names_file_module_of(entry, one.first); };
  if (std::ranges::any_of(trained, is_in)) return "";
  const auto first = std::ranges::find_if(trained, is_in_file);
  if (first == trained.end()) return "";
  return "\"" + entry + "\" in modules_to_save names no module of PEFT's, which has " +
         module_of(peft_tensor(first->first, config)) + " there and may not read what is trained so";
}

/// Whether values of the base itself change, so that switching the adapter off does not give the base.
bool replaces_weights(const AdapterOptions& options) {
  return !options.modules_to_save.empty() || options.bias != BiasTraining::none ||
         takes_from_base(options.init_lora_weights);
}

/// The names of the whole model, and what is decided by them alone.
class Planner {
 public:
  /// stored: the file that the options are of, or null.
  Planner(const DecoderConfig& config, const AdapterOptions& options, const ModelSplit& split,
          const PeftAdapter* stored = nullptr)
      : options_(options), split_(split), stored_(stored), model_(plan_decoder(config, rank_.context())) {
    model_.visit([&](Parameter& parameter) { parameters_.insert(parameter.name); });
    model_.visit_linears([&](Linear& linear) { plan_.linears.push_back(linear.name()); });
    model_.visit_embeddings([&](Embedding& embedding) { embeddings_.push_back(embedding.name()); });
    plan_.vocab_size = config.vocab_size;
    plan_.base_changed = replaces_weights(options);
    if (split.tensor) refuse_shards(options);
  }

  TargetModules matched() const {
    const DecoderConfig& config = model_.config();
    const ExpertTargets experts = match_target_parameters(config, options_, plan_.linears);
    TargetModules found;
    if (options_.target_parameters.empty() || !options_.target_modules.empty()) {
      std::vector<std::string> tensors = experts.tensors;
      for (const std::string& router : experts.routers) tensors.push_back(router + ".weight");
      found = match_target_modules(modules_to_choose(config, options_, plan_.linears), config.names.head,
                                   config.model_type, options_, embeddings_, tensors);
    }
    if (!experts.routers.empty()) {  // in their place among the modules
      std::set<std::string> all(found.modules.begin(), found.modules.end());
      all.insert(experts.routers.begin(), experts.routers.end());
      found.modules.clear();
      for (const std::vector<std::string>* paths : {&embeddings_, &plan_.linears}) {
        std::ranges::copy_if(*paths, std::back_inserter(found.modules),
                             [&](const auto& path) { return all.contains(path); });
      }
    }
    return found;
  }

  void set_expert_tensors(std::vector<std::string> tensors) {
    add_note(expert_note(model_, options_, tensors, plan_.modules));
    plan_.parameters = std::move(tensors);
  }
  void add_note(const std::string& note) {
    if (!note.empty()) plan_.notes.push_back(note);
  }
  std::vector<std::string> matched_expert_tensors() const {
    return match_target_parameters(model_.config(), options_, plan_.linears).tensors;
  }

  void set_modules(std::vector<std::string> modules) {
    for (const std::string& module : modules) {
      if (is_embedding(module)) check_embedding(module, model_.config(), split_);
    }
    const std::set<std::string> targeted(modules.begin(), modules.end());
    plan_.fully_trained = find_fully_trained(model_, options_, targeted, stored_);
    plan_.tokens = find_trained_tokens(model_, options_, targeted, plan_.fully_trained);
    plan_.modules = std::move(modules);
    for (const TrainedTokens& tokens : plan_.tokens) {
      if (!tokens.shared_with_head || !split_.stages) continue;
      throw UsageError("trainable_token_indices of a tied embedding need embedding and head on one rank",
                       "leave parallel.pipeline out, or train the full tables (modules_to_save)", "adapter");
    }
  }

  bool is_embedding(const std::string& module) const { return std::ranges::count(embeddings_, module) > 0; }
  bool has_parameter(const std::string& name) const { return parameters_.contains(name); }
  /// One that an entry of modules_to_save names; a tied head has no parameter of its own.
  bool has_module(const std::string& entry) const {
    const auto is_of = [&](const std::string& parameter) { return is_named_by(entry, parameter, config()); };
    return is_of(names().head + ".weight") || std::ranges::any_of(parameters_, is_of);
  }
  const std::vector<std::string>& embeddings() const { return embeddings_; }
  const std::vector<std::string>& linears() const { return plan_.linears; }
  const DecoderConfig& config() const { return model_.config(); }
  const TensorNames& names() const { return model_.config().names; }
  AdapterPlan& plan() { return plan_; }

 private:
  const AdapterOptions& options_;
  const ModelSplit& split_;
  const PeftAdapter* stored_;
  LocalRank rank_;
  Decoder model_;
  std::set<std::string> parameters_;
  std::vector<std::string> embeddings_;
  AdapterPlan plan_;
};

/// The modules that have factors in the file, which must be of ranks that its options mean.
std::vector<std::string> stored_modules(const PeftAdapter& adapter, const Planner& planner) {
  std::vector<std::string> modules;
  const auto add = [&](const std::string& module, std::string_view end) {
    const Tensor a = adapter.find(module + std::string(end));
    if (!a) return;
    check_rank(adapter.options, module, a.dim(0), adapter.file());
    modules.push_back(module);
  };
  for (const std::string& module : planner.embeddings()) add(module, kLoraEmbeddingA);
  for (const std::string& module : planner.linears()) add(module, kLoraA);
  return modules;
}

std::string stored_rows_name(const TrainedTokens& tokens) {
  return token_rows_name(tokens.table).substr(std::string(kPeftPrefix).size());
}

/// Of what only PEFT's names of modules mean, files of earlier versions have the base's: modules that are called
/// otherwise, corrections of routers.
bool may_lack(const std::string& parameter, const AdapterOptions& options, const DecoderConfig& config) {
  const auto means_it = [&](const std::string& entry) { return names_file_module_of(entry, parameter); };
  if (std::ranges::any_of(options.modules_to_save, means_it)) return false;
  const std::string& correction = config.names.block.experts.correction;
  return module_tensor(config, parameter).name == parameter ||
         (!correction.empty() && parameter.ends_with("." + correction));
}

/// The file has what its options name beside factors. Biases of `bias` may lack, as in files of earlier versions of
/// PEFT.
void check_complete(const PeftAdapter& adapter, const AdapterPlan& plan, const DecoderConfig& config) {
  const auto check = [&](const std::string& name, const std::string& key) {
    if (adapter.find(name)) return;
    throw InputError(adapter.file(), "has no " + name + ", which " + key + " in adapter_config.json names",
                     "the file is incomplete: save the adapter again");
  };
  for (const auto& [parameter, name] : plan.fully_trained) {
    const auto names_it = [&, path = parameter](const auto& entry) { return is_named_by(entry, path, config); };
    if (std::ranges::none_of(adapter.options.modules_to_save, names_it)) continue;
    if (!may_lack(parameter, adapter.options, config)) check(name, "modules_to_save");
  }
  for (const TrainedTokens& tokens : plan.tokens) check(stored_rows_name(tokens), "trainable_token_indices");
}

/// Those of its tables that it does not train.
void set_tables(const PeftAdapter& adapter, Planner& planner) {
  AdapterPlan& plan = planner.plan();
  plan.tables = stored_tables(adapter, planner.config());
  for (const auto& [parameter, trained] : plan.fully_trained) {
    std::erase_if(plan.tables, [&, name = trained](const auto& table) { return table.second == name; });
  }
}

/// The names in an adapter's file that have a place in the model.
std::set<std::string> places(Planner& planner) {
  const AdapterPlan& plan = planner.plan();
  std::set<std::string> found;
  for (const std::string& module : plan.modules) {
    const std::vector<std::string> parts =
        planner.is_embedding(module) ? std::vector<std::string>{".lora_embedding_A", ".lora_embedding_B"}
                                     : std::vector<std::string>{".lora_A.weight", ".lora_B.weight", ".lora_B.bias"};
    for (const std::string& part : parts) found.insert(module + part);
    found.insert(module + ".lora_magnitude_vector");
  }
  for (const std::string& tensor : plan.parameters) {
    const std::string stem = expert_lora_stem(planner.config(), tensor, plan.parameters);
    for (const char* end : {".lora_A.weight", ".lora_B.weight"}) found.insert(stem + end);
  }
  for (const auto& [parameter, name] : plan.tables) found.insert(name);
  for (const auto& [parameter, name] : plan.fully_trained) found.insert(name);
  for (const TrainedTokens& tokens : plan.tokens) found.insert(stored_rows_name(tokens));
  return found;
}

/// What must not be left out in silence: parts of the adapter that change results and have no place here.
void refuse_lost_part(const PeftAdapter& adapter, const std::string& name, const Planner& planner) {
  for (const char* part : {".lora_embedding_A", ".lora_embedding_B", ".token_adapter.", ".lora_magnitude_vector"}) {
    if (name.find(part) == std::string::npos) continue;
    throw InputError(adapter.file(), name + " belongs to a part of the adapter that is missing or not named",
                     "save the adapter again");
  }
  if (planner.has_parameter(name)) {
    throw InputError(adapter.file(),
                     name + " would replace a weight of the model, but modules_to_save does not name it",
                     "add the module to modules_to_save in adapter_config.json");
  }
}

void note_leftovers(const PeftAdapter& adapter, Planner& planner) {
  AdapterPlan& plan = planner.plan();
  const std::set<std::string> known = places(planner);
  std::vector<std::string> unused, empty;
  for (const auto& [name, tensor] : adapter.tensors) {
    if (known.contains(name)) continue;
    refuse_lost_part(adapter, name, planner);
    unused.push_back(name);
  }
  if (unused.size() == adapter.tensors.size() && !unused.empty()) {
    throw InputError(
        adapter.file(),
        "no tensor fits the model; the first is " + unused.front() + ", the model has " + listed(plan.linears),
        "use the model that the adapter was trained on");
  }
  if (!unused.empty()) {
    plan.notes.push_back("the model has no place for " + count_text(std::ssize(unused), "tensor") +
                         " of the adapter: " + listed(unused));
  }
  try {
    const std::set<std::string> have(plan.modules.begin(), plan.modules.end());
    for (const std::string& module : planner.matched().modules) {
      if (!have.contains(module)) empty.push_back(module);
    }
  } catch (const UsageError&) {  // the tensors say what goes where; the config only describes it
  }
  if (!empty.empty()) {
    plan.notes.push_back("the adapter names " + count_text(std::ssize(empty), "module") +
                         " that it has no tensors for: " + listed(empty));
  }
}

}  // namespace

AdapterPlan plan_adapter(const DecoderConfig& config, const AdapterOptions& asked, const ModelSplit& split) {
  check_options(asked, "adapter");
  const AdapterOptions options = translate_for_experts(in_file_names(asked, config), config);
  Planner planner(config, options, split);
  TargetModules found = planner.matched();
  for (const std::string& module : found.modules) {
    if (planner.is_embedding(module)) check_new_embedding(module, options);
    check_shared_block(module, config, options);
  }
  planner.set_modules(std::move(found.modules));
  planner.set_expert_tensors(planner.matched_expert_tensors());
  planner.add_note(untouched_experts_note(config, options));
  for (const std::string& entry : options.modules_to_save) {
    planner.add_note(own_entry_note(entry, planner.plan().fully_trained, config));
  }
  if (!found.unmatched_entries.empty()) {
    planner.plan().notes.push_back("these fit no module: " + listed(found.unmatched_entries));
  }
  return planner.plan();
}

AdapterPlan plan_adapter(const DecoderConfig& config, const PeftAdapter& asked, const ModelSplit& split) {
  const PeftAdapter adapter = in_file_names(asked, config);
  DecoderConfig grown = config;
  grown.vocab_size = rows_needed(adapter, config);
  Planner planner(grown, adapter.options, split, &adapter);
  planner.plan().base_changed |= grown.vocab_size != config.vocab_size;
  planner.set_modules(stored_modules(adapter, planner));
  check_complete(adapter, planner.plan(), grown);
  set_tables(adapter, planner);
  planner.set_expert_tensors(expert_tensors_of(grown, adapter, planner.plan().linears));
  note_leftovers(adapter, planner);
  return planner.plan();
}

AdapterPlan plan_merge(const DecoderConfig& config, PeftAdapter adapter) {
  DecoderConfig grown = config;
  grown.vocab_size = rows_needed(adapter, config);
  const ModelSplit whole;
  Planner planner(grown, adapter.options, whole, &adapter);
  std::erase_if(adapter.options.modules_to_save, [&](const std::string& entry) { return !planner.has_module(entry); });
  planner.set_modules(stored_modules(adapter, planner));
  check_complete(adapter, planner.plan(), grown);
  set_tables(adapter, planner);
  return planner.plan();
}

ModelSplit split_of(const Decoder& decoder) {
  return {!decoder.has_embedding() || !decoder.has_head(), decoder.sharding() != nullptr};
}

}  // namespace nibble
