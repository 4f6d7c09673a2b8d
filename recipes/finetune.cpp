// Fine-tuning: QLoRA, LoRA and full are the same code with sections of the recipe present or absent.

#include <filesystem>

#include "nibble/core/models/load.h"
#include "nibble/core/models/resize.h"
#include "nibble/recipes/export_model.h"
#include "nibble/recipes/loop.h"
#include "nibble/recipes/open_model.h"
#include "nibble/recipes/recompute_policy.h"
#include "nibble/recipes/run_facts.h"
#include "nibble/recipes/tokenizers.h"
#include "nibble/recipes/train.h"
#include "nibble/recipes/training_data.h"

namespace nibble {

void finetune(const Recipe& recipe, RankContext& rank, const Observer& observer) {
  const DecoderConfig config = model_config(recipe.model);
  const std::string tokenizer = tokenizer_path_of(recipe.model);
  const int64_t rows = rows_for_tokenizer(tokenizer, config.vocab_size);
  const Encoder encoder = open_encoder(tokenizer, recipe.data.chat_template, rows);
  const TrainingData data(recipe, encoder, observer);

  RunOptions options = run_options(recipe, data.total_steps());
  options.settings["data.fingerprint"] = "\"" + data.fingerprint() + "\"";
  options.settings["model.fingerprint"] = "\"" + base_fingerprint(recipe.model.path) + "\"";
  Run run = Run::open(options, rank, observer);  // lock, newest valid checkpoint, metrics

  Decoder model = open_base(recipe.model, rank);
  if (rows > config.vocab_size) {
    observer.message("note: " + std::to_string(rows - config.vocab_size) +
                     " tokens were added to the tokenizer: they get rows of their own, which are trained");
    resize_vocabulary(model, rows, rank);
  }
  std::optional<AttachedAdapter> adapter;
  if (recipe.adapter) {
    adapter = open_adapter(model, recipe.model, with_added_tokens(*recipe.adapter, config, rows), rank, observer);
  } else {
    make_trainable(model, rank);
  }
  model.set_recompute(recompute_policy(recipe, config));
  write_run_facts(run.dir(), recipe, model, data, rank.threads);
  run_steps(run, model, data, recipe, tokenizer_path_of(recipe.model), rank);  // resumes where the checkpoint says

  if (adapter) {
    save_adapter(model, *adapter, run.dir() / "adapter", true);  // written, read back, compared
  } else {
    export_model(model, recipe.model.path, std::filesystem::is_directory(tokenizer) ? tokenizer : recipe.model.path,
                 run.dir() / "model", rank);
  }
}

}  // namespace nibble
