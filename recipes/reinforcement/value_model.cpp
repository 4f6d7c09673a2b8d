#include "nibble/recipes/reinforcement/value_model.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/resize.h"
#include "nibble/core/objectives/ppo.h"
#include "nibble/core/train/paired_executor.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/pipeline/pipelined_executor.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/recipes/models/export_model.h"
#include "nibble/recipes/models/fingerprints.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/with_key.h"
#include "nibble/recipes/training/loop.h"

namespace nibble {

ModelRecipe value_base(const Recipe& recipe) {
  ModelRecipe base = recipe.model;
  base.score = ScoreHead{1, recipe.objective.value_adapter};
  base.router_aux_loss_coef.reset();
  if (recipe.objective.value_model.empty()) return base;
  base.path = recipe.objective.value_model;
  if (is_four_bit(base.path)) base.quantize.reset();
  return base;
}

std::optional<AdapterRecipe> value_adapter(const Recipe& recipe) {
  if (!recipe.adapter) return std::nullopt;
  AdapterRecipe adapter;
  adapter.path = recipe.objective.value_adapter;
  adapter.options = recipe.adapter->options;
  adapter.options.task = "SEQ_CLS";  // as PEFT does for its task
  std::vector<std::string>& whole = adapter.options.modules_to_save;
  if (!std::ranges::count(whole, kScoreHead)) whole.emplace_back(kScoreHead);
  return adapter;
}

ValueModel::ValueModel(const Recipe& recipe, int64_t rows, const Mesh& mesh, const ActivationPolicy& activations,
                       RankContext& rank, const Observer& observer)
    : recipe_(recipe),
      rank_(rank),
      base_(value_base(recipe)),
      objective_(std::make_unique<PpoValue>(recipe.objective)) {
  DecoderConfig config = model_config(base_);
  if (config.experts) base_.router_aux_loss_coef = config.router_aux_loss_coef = 0;  // balance is the policy's
  if (config.score_labels != 1) {
    throw InputError(base_.path, "has a score head of " + std::to_string(config.score_labels) + " labels",
                     "a value is one number");
  }
  if (config.vocab_size < rows && base_.path != recipe.model.path) {
    throw InputError(base_.path,
                     "has " + std::to_string(config.vocab_size) + " tokens, the policy " + std::to_string(rows),
                     "use a value model with the policy's tokenizer");
  }
  model_ = open_base(base_, rank, stage_layers(recipe, config, mesh, rank));
  if (rows > config.vocab_size) resize_vocabulary(*model_, rows, rank);
  if (const auto adapter = value_adapter(recipe)) {
    adapter_ = with_key(adapter->path.empty() ? "" : "objective.value_adapter", [&] {
      return open_adapter(*model_, base_, with_added_tokens(*adapter, config, rows), rank, observer);
    });
  } else {
    check_trainable(*model_);
  }
  activations.apply(*model_);
  parallel_.emplace(parallelize(*model_, !adapter_, parallel_options(recipe), mesh, rank));
  for (const Parameter* parameter : parallel_->parameters()) {
    named_.push_back(std::make_unique<Parameter>(*parameter));
    named_.back()->name = std::string(kValuePrefix) + parameter->name;
  }
}

std::unique_ptr<StepExecutor> ValueModel::pair(std::unique_ptr<StepExecutor> policy,
                                               std::vector<Parameter*> parameters) {
  PairedExecutor::Model own = {
      make_executor(*model_, *parallel_, {recipe_.parallel.schedule, recipe_.parallel.microbatches}, rank_),
      parallel_->parameters()};
  return std::make_unique<PairedExecutor>(PairedExecutor::Model{std::move(policy), std::move(parameters)},
                                          std::move(own), *objective_);
}

std::vector<Parameter*> ValueModel::parameters() {
  std::vector<Parameter*> all;
  for (const auto& parameter : named_) all.push_back(parameter.get());
  return all;
}

Shape ValueModel::global_shape(const Parameter& part) const {
  Parameter own = part;
  own.name = own.name.substr(kValuePrefix.size());
  return parallel_->global_shape(own);
}

Slicer ValueModel::both(Slicer policy, Slicer own) {
  return [policy = std::move(policy), own = std::move(own)](const std::vector<NamedTensor>& tensors) {
    std::vector<NamedTensor> of_policy, of_value;
    for (const NamedTensor& tensor : tensors) {
      if (tensor.name.starts_with(kValuePrefix)) {
        of_value.push_back({tensor.name.substr(kValuePrefix.size()), tensor.value});
      } else {
        of_policy.push_back(tensor);
      }
    }
    std::vector<CheckpointSlice> slices = policy(of_policy);
    for (CheckpointSlice& slice : own(of_value)) {
      slice.name = std::string(kValuePrefix) + slice.name;
      slices.push_back(std::move(slice));
    }
    return slices;
  };
}

void ValueModel::export_to(const std::filesystem::path& directory, AdapterCompanions companions) {
  if (!adapter_) {
    return export_model(*model_, *parallel_, base_.path, base_.path, recipe_.data.chat_template,
                        directory / "value_model", rank_);
  }
  if (rank_.comm.rank() == 0) record_base(companions, base_);
  export_adapter(*model_, *parallel_, *adapter_, companions, directory / "value_adapter", rank_);
}

}  // namespace nibble
