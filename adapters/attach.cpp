#include "nibble/adapters/attach.h"

#include <cmath>
#include <set>

#include "nibble/adapters/adapter_plan.h"
#include "nibble/adapters/lora.h"
#include "nibble/adapters/stored_adapter.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/core/base/error.h"
#include "nibble/core/models/resize.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"

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
  const DecoderConfig& config = decoder.config();
  const AdapterPlan plan = plan_adapter(config, options, split_of(decoder));
  AttachedAdapter attached{options, plan.modules, plan.notes, {}};
  if (options.target_modules.empty() || options.target_modules.all_linear()) {
    attached.options.target_modules.names = target_names(plan.modules, plan.linears, options, config.names.head);
    attached.options.target_modules.pattern.clear();
  }
  freeze(decoder);
  NewAdapter made(options, original, rank);
  const std::set<std::string> chosen(plan.modules.begin(), plan.modules.end());
  decoder.visit_embeddings([&](Embedding& embedding) {
    refuse_second_adapter(embedding);
    if (chosen.contains(embedding.name())) embedding.set_adapter(made.make(embedding));
  });
  decoder.visit_linears([&](Linear& linear) {
    refuse_second_adapter(linear);
    if (chosen.contains(linear.name())) linear.set_adapter(made.make(linear));
  });
  attached.random_starts = made.take_random_starts();
  train_whole(decoder, options, plan.whole, true, rank);
  train_tokens(decoder, plan.tokens, true, rank);
  return attached;
}

AttachedAdapter load_adapter(Decoder& decoder, const PeftAdapter& adapter, bool trainable, RankContext& rank) {
  const AdapterPlan plan = plan_adapter(decoder.config(), adapter, split_of(decoder));
  AttachedAdapter attached{adapter.options, plan.modules, {}, {}};
  const std::set<std::string> chosen(plan.modules.begin(), plan.modules.end());
  StoredAdapter stored(adapter, trainable, rank);
  freeze(decoder);
  for (const std::string& table : stored.take_tables(decoder)) {
    attached.notes.push_back("the adapter brings its own " + table);
  }
  attached.notes.insert(attached.notes.end(), plan.notes.begin(), plan.notes.end());
  resize_vocabulary(decoder, plan.vocab_size, rank);
  decoder.visit_embeddings([&](Embedding& embedding) {
    refuse_second_adapter(embedding);
    if (chosen.contains(embedding.name())) embedding.set_adapter(stored.make(embedding));
  });
  decoder.visit_linears([&](Linear& linear) {
    refuse_second_adapter(linear);
    if (chosen.contains(linear.name())) linear.set_adapter(stored.make(linear));
  });
  train_whole(decoder, adapter.options, plan.whole, trainable, rank);
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
                  bool force) {
  const auto tensors = adapter_tensors(decoder);
  if (attached.random_starts.empty()) return write_peft_directory(directory, attached.options, tensors, force);
  MemoryPool pool;
  write_peft_directory(directory, twice_the_rank(attached.options),
                       with_starts_subtracted(tensors, attached.random_starts, pool), force);
}

}  // namespace nibble
