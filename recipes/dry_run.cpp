#include "nibble/recipes/dry_run.h"

#include <algorithm>
#include <optional>

#include "nibble/recipes/open_model.h"
#include "nibble/recipes/pretraining_tokenizer.h"
#include "nibble/recipes/tokenizers.h"
#include "nibble/recipes/training_data.h"

namespace nibble {

DryRun dry_run(const Recipe& recipe, const Observer& observer, int64_t previews) {
  const DecoderConfig config = model_config(recipe.model);
  std::optional<PretrainingTokenizer> pretraining;
  if (!recipe.model.init.empty()) pretraining.emplace(recipe, config.vocab_size);
  const std::string tokenizer = pretraining ? pretraining->path() : tokenizer_path_of(recipe.model);
  const int64_t rows = pretraining ? config.vocab_size : rows_for_tokenizer(tokenizer, config.vocab_size);
  const Encoder encoder = open_encoder(tokenizer, recipe.data.chat_template, rows);
  const TrainingData data(recipe, encoder, observer);

  DryRun found;
  found.total_steps = data.total_steps();
  found.first_step = data.train().info(1);
  const Dataset& dataset = data.train().dataset();
  found.report = dataset.report();
  for (int64_t i = 0; i < std::min(previews, dataset.size()); ++i)
    found.previews.push_back(dataset.preview(i, encoder));
  return found;
}

}  // namespace nibble
