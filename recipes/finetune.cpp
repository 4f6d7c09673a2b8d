// Fine-tuning: QLoRA, LoRA and full are the same code with sections of the recipe present or absent.

#include <filesystem>

#include "nibble/core/models/families/families.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/resize.h"
#include "nibble/core/train/telemetry/trace.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/tensor/tensor_parallel.h"
#include "nibble/recipes/fingerprints.h"
#include "nibble/recipes/loop.h"
#include "nibble/recipes/models/export_model.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/plan/activation_policy.h"
#include "nibble/recipes/train.h"
#include "nibble/recipes/training_data.h"

namespace nibble {

void finetune(const Recipe& recipe, RankContext& rank, const Observer& observer) {
  const Mesh mesh(recipe.parallel.mesh(), rank.comm);
  const DecoderConfig config = model_config(recipe.model);
  const std::string tokenizer = tokenizer_path_of(recipe.model);
  const int64_t rows = rows_for_tokenizer(tokenizer, config.vocab_size);
  const Encoder encoder = open_encoder(tokenizer, recipe.data.chat_template, rows);
  const TrainingData data = traced(observer.trace, Phase::data, "read and encode",
                                   [&] { return TrainingData(recipe, config, encoder, observer); });

  plan_adapter(recipe, config, rows);  // refuses what has no place before anything is opened or made
  RunOptions options = run_options(recipe, data.total_steps());
  traced(observer.trace, Phase::io, "fingerprints",
         [&] { add_fingerprints(options, recipe, tokenizer, data.fingerprint()); });
  Run run = Run::open(options, rank, observer);  // lock, newest valid checkpoint, metrics

  const auto tensor = tensor_parallel(config, mesh.tensor(), rank.pool, observer.trace);
  const LayerRange own = stage_layers(recipe, config, mesh, rank);
  const ActivationPolicy activations = activation_policy(recipe, own, run.dir(), rank, observer);
  Decoder model = traced(observer.trace, Phase::other, "load weights",
                         [&] { return open_base(recipe.model, rank, own, tensor.get()); });
  if (rows > config.vocab_size) {
    observer.message("note: " + std::to_string(rows - config.vocab_size) +
                     " tokens were added to the tokenizer: they get rows of their own, which are trained");
    resize_vocabulary(model, rows, rank);
  }
  std::optional<AttachedAdapter> adapter;
  AdapterCompanions companions;
  if (recipe.adapter) {
    companions = adapter_companions(tokenizer, recipe.data.chat_template, observer);
    adapter = open_adapter(model, recipe.model, with_added_tokens(*recipe.adapter, config, rows), rank, observer);
  } else {
    check_trainable(model);
    if (has_vision_tower(config)) {
      throw UsageError("the model has a vision tower, which a full run would not write",
                       "add an adapter, or save the language model apart", recipe.model.path);
    }
  }
  activations.apply(model);
  ParallelModel parallel = parallelize(model, !adapter, parallel_options(recipe), mesh, rank);
  const NextToken objective;  // the loss
  Training training(run, model, parallel, data, objective, recipe, tokenizer, rank, observer);
  while (training.next_step()) {  // resumes where the checkpoint says
    training.finish_step(
        train_step(training.executor(), training.microbatches(), objective, training.optimizer(), training.options()));
  }
  training.finish();

  if (adapter) {
    if (model.config().vocab_size > config.vocab_size) companions.rows = model.config().vocab_size;
    export_adapter(model, parallel, *adapter, companions, run.dir() / "adapter", rank);  // read back, compared
  } else {
    export_model(model, parallel, recipe.model.path,
                 std::filesystem::is_directory(tokenizer) ? tokenizer : recipe.model.path, run.dir() / "model", rank);
  }
}

}  // namespace nibble
