// Pretraining: random weights from a config, a tokenizer that is given or trained, text in packed sequences.

#include "nibble/core/models/load.h"
#include "nibble/core/train/telemetry/trace.h"
#include "nibble/parallel/experts/expert_parallel.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/tensor/tensor_parallel.h"
#include "nibble/recipes/environment/free_memory.h"
#include "nibble/recipes/models/export_model.h"
#include "nibble/recipes/models/fingerprints.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/pretraining_tokenizer.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/plan/activation_policy.h"
#include "nibble/recipes/plan/memory_check.h"
#include "nibble/recipes/train.h"
#include "nibble/recipes/training/loop.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble {

void pretrain(const Recipe& recipe, RankContext& rank, const Observer& observer) {
  const Mesh mesh(recipe.parallel.mesh(), rank.comm);
  const DecoderConfig config = model_config(recipe.model);
  check_experts(recipe, config);
  PretrainingTokenizer tokenizer(recipe, config.vocab_size);
  const TrainingData data = traced(observer.trace, Phase::data, "read and encode", [&] {
    const Encoder encoder = open_encoder(tokenizer.path(), recipe.data.chat_template, config.vocab_size);
    return TrainingData(recipe, config, encoder, observer);
  });
  return_free_memory();
  check_memory(recipe, data, rank);

  RunOptions options = run_options(recipe, data.total_steps());
  add_fingerprints(options, recipe, recipe.model.tokenizer, data.fingerprint());
  Run run = Run::open(options, rank, observer);

  const auto tensor = tensor_parallel(config, mesh.tensor(), rank.pool, observer.trace);
  const auto experts = expert_parallel(config, mesh.experts(), *recipe.train.gradient_sum, rank.pool, observer.trace);
  const Recipe planned = data.planned(recipe);
  const LayerRange own = stage_layers(planned, config, mesh, rank);
  const ActivationPolicy activations = activation_policy(recipe, data, own, run.dir(), rank, observer);
  Decoder model = random_decoder(config, rank.seed, rank, own, tensor.get(), experts.get());
  activations.apply(model);
  ParallelModel parallel = parallelize(model, true, parallel_options(recipe), mesh, rank);
  const NextToken objective;
  {  // the optimizer, which writing the model does without
    Training training(run, model, parallel, data, objective, recipe, tokenizer.path(), rank, observer);
    while (training.next_step()) {  // resumes where the checkpoint says
      training.finish_step(train_step(training.executor(), training.microbatches(), objective, training.optimizer(),
                                      training.options()));
    }
    training.finish();
  }
  if (rank.comm.rank() == 0) tokenizer.keep();
  export_model(model, parallel, recipe.model.init, tokenizer.path(), recipe.data.chat_template, run.dir() / "model",
               rank);
}

}  // namespace nibble
