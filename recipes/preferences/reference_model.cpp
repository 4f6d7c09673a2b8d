#include "nibble/recipes/preferences/reference_model.h"

#include "nibble/core/models/load.h"
#include "nibble/core/models/resize.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/pipeline/pipelined_executor.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/training/loop.h"

namespace nibble {

bool keeps_reference(const Recipe& recipe) {
  const ObjectiveOptions& objective = recipe.objective;
  return has_rewards(objective.type) && objective.rollout.file.empty() && has_reference(objective) &&
         objective.reference != "adapter_off";
}

ModelRecipe reference_base(const Recipe& recipe) {
  ModelRecipe base = recipe.model;
  if (!names_reference_directory(recipe.objective)) return base;
  base.path = recipe.objective.reference;
  if (is_four_bit(base.path)) base.quantize.reset();
  base.router_aux_loss_coef.reset();  // balance is the policy's
  return base;
}

std::optional<AdapterRecipe> reference_adapter(const Recipe& recipe) {
  return names_reference_directory(recipe.objective) ? std::nullopt : recipe.adapter;
}

ReferenceModel::ReferenceModel(const Recipe& recipe, int64_t rows, const Mesh& mesh, RankContext& rank,
                               const Observer& observer) {
  const ModelRecipe base = reference_base(recipe);
  const DecoderConfig config = model_config(base);
  tensor_ = tensor_parallel(config, mesh.tensor(), rank.pool, observer.trace);
  experts_ = expert_parallel(config, mesh.experts(), *recipe.train.gradient_sum, rank.pool, observer.trace);
  model_ = open_base(base, rank, stage_layers(recipe, config, mesh, rank), tensor_.get(), experts_.get());
  if (config.vocab_size < rows) resize_vocabulary(*model_, rows, rank);
  if (const auto adapter = reference_adapter(recipe)) {
    open_adapter(*model_, base, with_added_tokens(*adapter, config, rows), rank, Observer());
  }
  parallel_.emplace(parallelize(*model_, false, parallel_options(recipe), mesh, rank));
  executor_ = make_executor(*model_, *parallel_, {recipe.parallel.schedule, recipe.parallel.microbatches}, rank);
}

ReferenceModel::~ReferenceModel() { model_->set_hooks(nullptr); }

}  // namespace nibble
