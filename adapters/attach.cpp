#include "nibble/adapters/attach.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "nibble/adapters/lora.h"
#include "nibble/adapters/stored_adapter.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/trained_tokens.h"
#include "nibble/adapters/trained_whole.h"
#include "nibble/core/base/error.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

constexpr size_t kMostListed = 5;

std::vector<std::string> linear_paths(Decoder& decoder) {
  std::vector<std::string> paths;
  decoder.visit_linears([&](Linear& linear) { paths.push_back(linear.name()); });
  return paths;
}

std::vector<std::string> embedding_paths(Decoder& decoder) {
  std::vector<std::string> paths;
  decoder.visit_embeddings([&](Embedding& embedding) { paths.push_back(embedding.name()); });
  return paths;
}

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

/// PEFT cannot run these either: the model shifts the positions inside the module that PEFT replaces.
void refuse_shifted_positions(const Embedding& embedding, const DecoderConfig& config) {
  if (embedding.name() != config.names.positions || config.position_offset == 0) return;
  throw UsageError("LoRA on " + embedding.name() + " is not possible", "leave it out of target_modules");
}

/// What looks at a whole matrix or table cannot be had where several ranks have parts of it.
void refuse_beside_parts(const Decoder& decoder, const AdapterOptions& options) {
  if (!decoder.part().cut()) return;
  const auto refuse = [](const std::string& what) {
    throw UsageError(what + " needs whole weights, which parallel.tensor cuts",
                     "use parallel.shard or parallel.pipeline", "adapter");
  };
  if (options.use_dora) refuse("use_dora");
  if (options.lora_bias) refuse("lora_bias");
  if (takes_from_base(options.init_lora_weights) || options.init_lora_weights == LoraInit::loftq) {
    refuse("init_lora_weights");
  }
  if (!options.trainable_token_indices.empty()) refuse("trainable_token_indices");
}

void refuse_beside_parts(const Decoder& decoder, const Embedding& embedding) {
  if (!decoder.part().cut()) return;
  throw UsageError("LoRA on " + embedding.name() + " needs the whole table, which parallel.tensor cuts",
                   "leave it out of target_modules", "adapter.target_modules");
}

std::string listed(const std::vector<std::string>& names) {
  std::string made;
  for (size_t i = 0; i < std::min(names.size(), kMostListed); ++i) made += (i ? ", " : "") + names[i];
  if (names.size() > kMostListed) made += " and " + std::to_string(names.size() - kMostListed) + " more";
  return made;
}

/// What must not be left out in silence: parts of the adapter that change results and have no place here.
void refuse_lost_parts(const PeftAdapter& adapter, const StoredAdapter& stored, Decoder& decoder) {
  std::set<std::string> base;
  decoder.visit([&](Parameter& parameter) { base.insert(parameter.name); });
  for (const auto& [name, tensor] : adapter.tensors) {
    if (stored.used(name)) continue;
    for (const char* part : {".lora_embedding_A", ".lora_embedding_B", ".token_adapter.", ".lora_magnitude_vector"}) {
      if (name.find(part) == std::string::npos) continue;
      throw InputError(adapter.file(), name + " belongs to a part of the adapter that is not there or not said",
                       "save the adapter again");
    }
    if (base.contains(name)) {
      throw InputError(adapter.file(),
                       name + " would replace a weight of the model, but modules_to_save does not name it",
                       "add the module to modules_to_save in adapter_config.json");
    }
  }
}

void note_leftovers(const PeftAdapter& adapter, const StoredAdapter& stored, Decoder& decoder,
                    AttachedAdapter& attached) {
  std::vector<std::string> unused, empty;
  for (const auto& [name, tensor] : adapter.tensors) {
    if (!stored.used(name)) unused.push_back(name);
  }
  if (!unused.empty()) {
    attached.notes.push_back("the model has no place for " + std::to_string(unused.size()) +
                             " tensors of the adapter: " + listed(unused));
  }
  const DecoderConfig& config = decoder.config();
  try {
    const TargetModules wanted = match_target_modules(linear_paths(decoder), config.names.head, config.model_type,
                                                      adapter.options, embedding_paths(decoder));
    const std::set<std::string> have(attached.modules.begin(), attached.modules.end());
    for (const std::string& module : wanted.modules) {
      if (!have.contains(module)) empty.push_back(module);
    }
  } catch (const UsageError&) {  // the tensors say what goes where; the config only describes it
  }
  if (!empty.empty()) {
    attached.notes.push_back("the adapter names " + std::to_string(empty.size()) +
                             " modules that it has no tensors for: " + listed(empty));
  }
}

/// PEFT sorts rank_pattern when it saves, so that overlapping keys may say other ranks than the tensors have: then
/// every module is named by its path, and PEFT can load what is saved again.
void name_real_ranks(const PeftAdapter& adapter, AttachedAdapter& attached) {
  std::vector<std::pair<std::string, int64_t>> ranks;
  bool differs = false;
  for (const std::string& module : attached.modules) {
    const Tensor a = adapter.find(module + ".lora_A.weight");
    const int64_t r = (a ? a : adapter.find(module + ".lora_embedding_A")).dim(0);
    ranks.emplace_back(module, r);
    differs = differs || r != rank_of(adapter.options, module);
  }
  if (differs) attached.options.rank_pattern = std::move(ranks);
}

/// The options of an adapter whose pairs B A became B A - B0 A0.
AdapterOptions twice_the_rank(AdapterOptions options) {
  const double alpha = options.use_rslora ? std::sqrt(2.0) : 2.0;
  options.init_lora_weights = LoraInit::standard;
  options.pissa_iterations = 0;
  options.r *= 2;
  options.lora_alpha *= alpha;
  for (auto& [key, r] : options.rank_pattern) r *= 2;
  for (auto& [key, value] : options.alpha_pattern) value *= alpha;
  return options;
}

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// A over A0, and B beside -B0: a plain LoRA on the base as it was.
NamedTensors with_starts_subtracted(NamedTensors tensors, const std::map<std::string, LowRankFactors>& starts,
                                    MemoryPool& pool) {
  for (auto& [name, value] : tensors) {
    for (const auto& [module, start] : starts) {
      if (name == lora_a_name(module)) {
        Tensor both = Tensor::empty(pool, {2 * value.dim(0), value.dim(1)}, DType::f32, name);
        Tensor upper = both.rows(0, value.dim(0)), lower = both.rows(value.dim(0), both.dim(0));
        ops::cast(value, upper);
        ops::cast(start.a, lower);
        value = both;
      } else if (name == lora_b_name(module)) {
        Tensor both = Tensor::empty(pool, {value.dim(0), 2 * value.dim(1)}, DType::f32, name);
        Tensor negative = start.b.clone(pool);
        ops::scale(negative, -1.0f);
        ops::copy_columns_in(value, 0, both);
        ops::copy_columns_in(negative, value.dim(1), both);
        value = both;
      }
    }
  }
  return tensors;
}

}  // namespace

AttachedAdapter attach_adapter(Decoder& decoder, const AdapterOptions& options, RankContext& rank,
                               const OriginalWeight& original) {
  check_options(options, "adapter");
  refuse_beside_parts(decoder, options);
  const DecoderConfig& config = decoder.config();
  const std::vector<std::string> linears = linear_paths(decoder);
  TargetModules found =
      match_target_modules(linears, config.names.head, config.model_type, options, embedding_paths(decoder));

  AttachedAdapter attached{options, std::move(found.modules), {}, {}};
  if (!found.unmatched_entries.empty()) {
    attached.notes.push_back("these fit no module: " + listed(found.unmatched_entries));
  }
  if (options.target_modules.empty() || options.target_modules.all_linear()) {
    attached.options.target_modules.names = target_names(attached.modules, linears, options, config.names.head);
    attached.options.target_modules.pattern.clear();
  }
  freeze(decoder);
  NewAdapter made(options, original, rank);
  const std::set<std::string> chosen(attached.modules.begin(), attached.modules.end());
  decoder.visit_embeddings([&](Embedding& embedding) {
    refuse_second_adapter(embedding);
    if (!chosen.contains(embedding.name())) return;
    refuse_shifted_positions(embedding, config);
    refuse_beside_parts(decoder, embedding);
    embedding.set_adapter(made.make(embedding));
  });
  decoder.visit_linears([&](Linear& linear) {
    refuse_second_adapter(linear);
    if (chosen.contains(linear.name())) linear.set_adapter(made.make(linear));
  });
  attached.random_starts = made.take_random_starts();
  train_whole(decoder, options, chosen, true, rank);
  train_tokens(decoder, options, true, rank);
  return attached;
}

AttachedAdapter load_adapter(Decoder& decoder, const PeftAdapter& adapter, bool trainable, RankContext& rank) {
  AttachedAdapter attached{adapter.options, {}, {}, {}};
  refuse_beside_parts(decoder, adapter.options);
  StoredAdapter stored(adapter, trainable, rank);
  freeze(decoder);
  for (const std::string& table : stored.take_tables(decoder)) {
    attached.notes.push_back("the adapter brings its own " + table);
  }
  grow_for_tokens(decoder, adapter.options, rank);
  decoder.visit_embeddings([&](Embedding& embedding) {
    refuse_second_adapter(embedding);
    if (!adapter.find(embedding.name() + ".lora_embedding_A")) return;
    refuse_shifted_positions(embedding, decoder.config());
    refuse_beside_parts(decoder, embedding);
    embedding.set_adapter(stored.make(embedding));
    attached.modules.push_back(embedding.name());
  });
  decoder.visit_linears([&](Linear& linear) {
    refuse_second_adapter(linear);
    if (!adapter.find(linear.name() + ".lora_A.weight")) return;
    linear.set_adapter(stored.make(linear));
    attached.modules.push_back(linear.name());
  });
  train_whole(decoder, adapter.options, {attached.modules.begin(), attached.modules.end()}, trainable, rank);
  train_tokens(decoder, adapter.options, trainable, rank);
  decoder.visit([&](Parameter& parameter) {
    if (parameter.name.starts_with(kPeftPrefix)) stored.fill(parameter);
  });
  refuse_lost_parts(adapter, stored, decoder);
  if (!stored.used_any()) {
    throw InputError(adapter.file(),
                     "no tensor fits the model; the first is " + adapter.tensors.begin()->first + ", the model has " +
                         listed(linear_paths(decoder)),
                     "use the model that the adapter was trained on");
  }
  note_leftovers(adapter, stored, decoder, attached);
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
                  bool force) {
  const auto tensors = adapter_tensors(decoder);
  if (attached.random_starts.empty()) return write_peft_directory(directory, attached.options, tensors, force);
  MemoryPool pool;
  write_peft_directory(directory, twice_the_rank(attached.options),
                       with_starts_subtracted(tensors, attached.random_starts, pool), force);
}

}  // namespace nibble
