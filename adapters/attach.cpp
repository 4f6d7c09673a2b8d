#include "nibble/adapters/attach.h"

#include <algorithm>
#include <set>

#include "nibble/adapters/adapter_plan.h"
#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/adapters/peft/random_starts.h"
#include "nibble/adapters/peft/stored_adapter.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/expert_lora.h"
#include "nibble/core/base/error.h"
#include "nibble/core/models/resize.h"

namespace nibble {

namespace {

void freeze(Decoder& decoder) {
  decoder.visit([](Parameter& parameter) {
    parameter.trainable = false;
    parameter.gradient = {};
  });
}

template <typename Layer>
void refuse_second_adapter(Layer& layer) {
  if (layer.adapter()) throw UsageError(layer.name() + " has an adapter already", "attach one adapter at a time");
}

/// Not of an expert on another rank; adapters on tensors of all experts belong to those that are here.
bool is_here(Linear& linear) { return !linear.weight().storage().empty(); }

/// PEFT sets fan_in_fan_out where it finds a Conv1D.
bool adapts_conv1d(const DecoderConfig& config, const AdapterPlan& plan) {
  const auto adapted = [&](const std::string& linear) {
    return linear != config.names.head && std::ranges::count(plan.modules, linear) > 0;
  };
  return config.transposed_linears && std::ranges::any_of(plan.linears, adapted);
}

/// PEFT sorts rank_pattern when it saves, so that overlapping keys may say other ranks than the tensors have: then
/// every module is named by its path, and PEFT can load what is saved again.
void name_real_ranks(const PeftAdapter& adapter, AttachedAdapter& attached) {
  std::vector<std::pair<std::string, int64_t>> ranks;
  bool differs = false;
  for (const std::string& module : attached.modules) {
    const Tensor a = adapter.find(module + ".lora_A.weight");
    const int64_t r = (a ? a : adapter.find(module + ".lora_embedding_A")).dim(0);
    ranks.emplace_back(adapter.options.paths.of(module), r);
    differs = differs || r != rank_of(adapter.options, module);
  }
  if (differs) attached.options.rank_pattern = std::move(ranks);
}

}  // namespace

AttachedAdapter attach_adapter(Decoder& decoder, const AdapterOptions& asked, RankContext& rank,
                               const OriginalWeight& original) {
  const DecoderConfig& config = decoder.config();
  const AdapterOptions options = translate_for_experts(in_file_names(asked, config), config);
  const AdapterPlan plan = plan_adapter(config, options, split_of(decoder));
  AttachedAdapter attached{options, plan.modules, plan.parameters, plan.notes, {}, {}, plan.base_changed};
  attached.options.fan_in_fan_out = adapts_conv1d(config, plan);
  const bool by_default = options.target_modules.empty() && options.target_parameters.empty();
  if (by_default || options.target_modules.all_linear()) {
    std::vector<std::string> modules = plan.modules;
    std::erase_if(modules, [&](const std::string& module) { return is_parameter_router(config, module); });
    std::vector<std::string> linears = plan.linears;
    std::erase_if(linears, [&](const std::string& linear) {
      return expert_part(config, linear) || is_parameter_router(config, linear);
    });
    attached.options.target_modules.names = target_names(modules, linears, options, config.names.head);
    attached.options.target_modules.pattern.clear();
  }
  const MemoryPool::Use use(rank.pool, MemoryUse::adapters);
  freeze(decoder);
  NewAdapter result(options, original, rank);
  ExpertLoras experts(config, options, plan.parameters, nullptr, true, rank);
  const std::set<std::string> chosen(plan.modules.begin(), plan.modules.end());
  decoder.visit_embeddings([&](Embedding& embedding) {
    refuse_second_adapter(embedding);
    if (chosen.contains(embedding.name())) embedding.set_adapter(result.make(embedding));
  });
  decoder.visit_linears([&](Linear& linear) {
    refuse_second_adapter(linear);
    if (chosen.contains(linear.name())) linear.set_adapter(result.make(linear));
    if (!linear.adapter() && is_here(linear)) linear.set_adapter(experts.make(linear));
  });
  attached.random_starts = result.take_random_starts();
  train_fully(decoder, options, plan.fully_trained, true, rank);
  train_tokens(decoder, plan.tokens, true, rank);
  return attached;
}

AttachedAdapter load_adapter(Decoder& decoder, const PeftAdapter& asked, bool trainable, RankContext& rank) {
  const PeftAdapter adapter = in_file_names(asked, decoder.config());
  const AdapterPlan plan = plan_adapter(decoder.config(), adapter, split_of(decoder));
  AttachedAdapter attached{adapter.options, plan.modules, plan.parameters, {}, {}, {}, plan.base_changed};
  attached.options.fan_in_fan_out = adapts_conv1d(decoder.config(), plan);
  attached.options.pissa_iterations = 0;  // see StoredAdapter::check_start
  const std::set<std::string> chosen(plan.modules.begin(), plan.modules.end());
  StoredAdapter stored(adapter, trainable, rank);
  ExpertLoras experts(decoder.config(), adapter.options, plan.parameters, &adapter, trainable, rank);
  const MemoryPool::Use use(rank.pool, MemoryUse::adapters);
  freeze(decoder);
  resize_vocabulary(decoder, plan.vocab_size, rank);
  for (const auto& [table, name] : plan.tables) attached.tables.emplace_back(kPeftPrefix + name, adapter.find(name));
  for (const std::string& table : stored.take_tables(decoder, plan.tables)) {
    attached.notes.push_back("the adapter brings its own " + table);
    attached.base_changed = true;
  }
  attached.notes.insert(attached.notes.end(), plan.notes.begin(), plan.notes.end());
  decoder.visit_embeddings([&](Embedding& embedding) {
    refuse_second_adapter(embedding);
    if (chosen.contains(embedding.name())) embedding.set_adapter(stored.make(embedding));
  });
  decoder.visit_linears([&](Linear& linear) {
    refuse_second_adapter(linear);
    if (chosen.contains(linear.name())) linear.set_adapter(stored.make(linear));
    if (!linear.adapter() && is_here(linear)) linear.set_adapter(experts.make(linear));
  });
  train_fully(decoder, adapter.options, plan.fully_trained, trainable, rank);
  train_tokens(decoder, plan.tokens, trainable, rank);
  decoder.visit([&](Parameter& parameter) {
    if (parameter.name.starts_with(kPeftPrefix)) stored.fill(parameter);
  });
  name_real_ranks(adapter, attached);
  return attached;
}

std::vector<std::pair<std::string, Tensor>> adapter_tensors(Decoder& decoder) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  decoder.visit([&](Parameter& parameter) {
    if (parameter.name.starts_with(kPeftPrefix)) tensors.emplace_back(parameter.name, parameter.value);
  });
  return tensors;
}

void save_adapter(Decoder& decoder, const AttachedAdapter& attached, const std::filesystem::path& directory,
                  Replace replace) {
  MemoryPool pool;
  std::vector<std::pair<std::string, Tensor>> tensors = saved_tensors(decoder, attached, pool);
  tensors.insert(tensors.end(), attached.tables.begin(), attached.tables.end());
  write_peft_directory(directory, in_peft_names(saved_options(attached), decoder.config()),
                       in_peft_names(tensors, decoder.config()), replace);
}

}  // namespace nibble
