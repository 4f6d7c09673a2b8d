#include "nibble/recipes/plan/dry_run.h"

#include <algorithm>
#include <optional>
#include <set>

#include "nibble/core/base/parallel.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/resize.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/core/train/train_step.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/pretraining_tokenizer.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/models/with_key.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/reinforcement/block.h"
#include "nibble/recipes/reinforcement/prompt_records.h"
#include "nibble/recipes/reinforcement/rewards.h"
#include "nibble/recipes/reinforcement/value_model.h"
#include "nibble/recipes/training/loop.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble {

namespace {

// tokenizer: that of the recipe, where it may be another than the model's.
int64_t count_without_end(const Dataset& dataset, const DecoderConfig& config, const std::string& tokenizer,
                          const std::string& chat_template) {
  constexpr int64_t kLooked = 1000;
  std::set<int32_t> ends(config.eos_ids.begin(), config.eos_ids.end());
  if (const auto opened = find_tokenizer(tokenizer)) {
    for (const int32_t id : answer_ends(*opened, chat_template)) ends.insert(id);
  }
  int64_t without = 0;
  for (int64_t i = 0; i < std::min(kLooked, dataset.size()); ++i) {
    if (!dataset.info(i).whole) continue;
    const Sample sample = dataset.sample(i);
    without += std::none_of(sample.labels.begin(), sample.labels.end(), [&](int32_t l) { return ends.contains(l); });
  }
  return without;
}

// Every weight there in its shape: files that are cut off, missing or of another model are found now. They are mapped,
// not read.
void validate_checkpoint(const Recipe& recipe) {
  if (recipe.pretrains()) return;
  ModelRecipe as_it_is = recipe.model;
  as_it_is.quantize.reset();
  LocalRank rank;
  Decoder model = open_base(as_it_is, rank.context());
  if (!recipe.adapter) check_trainable(model);
}

// Refuses what is no value model, and an adapter of another one.
void validate_value_model(const Recipe& recipe, int64_t rows) {
  ModelRecipe as_it_is = value_base(recipe);
  const DecoderConfig config = model_config(as_it_is);
  const std::optional<AdapterRecipe> adapter = value_adapter(recipe);
  if (!adapter || adapter->path.empty()) return;
  as_it_is.quantize.reset();
  LocalRank rank;
  Decoder model = open_base(as_it_is, rank.context());
  if (rows > config.vocab_size) resize_vocabulary(model, rows, rank.context());
  with_key("objective.value_adapter",
           [&] { return open_adapter(model, as_it_is, *adapter, rank.context(), Observer()); });
}

// Names and shapes only: what the adapter would sit on.
void validate_model(const Recipe& recipe, const DecoderConfig& config, int64_t rows, const Observer& observer,
                    DryRun& result) {
  LocalRank rank;
  Decoder model = plan_decoder(config, rank.context());
  model.visit([&](const Parameter& parameter) { result.parameters += parameter.value.numel(); });
  check_vocabularies(recipe, rows);
  if (recipe.objective.type == ObjectiveType::ppo) validate_value_model(recipe, rows);
  const std::optional<AdapterPlan> plan = plan_adapter(recipe, config, rows);
  if (!plan) return;
  result.adapted_modules = static_cast<int64_t>(plan->modules.size());
  for (const std::string& note : plan->notes) observer.message("note: " + note);
}

// What a run warns of, by the names of all that it trains.
void validate_no_decay(const Recipe& recipe, const TrainingData& data, const Observer& observer) {
  if (recipe.optimizer.no_decay.empty()) return;
  const PlanJob job = plan_job(recipe, data);
  const MetaDevice device;
  MemoryPool pool(0, device);
  SelfComm comm;
  RankContext rank{comm, pool, threads(), 0};
  std::vector<Parameter*> trained;
  const auto add_trained = [&](Decoder& model, std::string_view prefix) {
    if (job.everything) make_trainable(model, rank);
    for (Parameter* parameter : trainable_parameters(model)) {
      parameter->name.insert(0, prefix);
      trained.push_back(parameter);
    }
  };
  Decoder model = job.make_model(job.model.config, {}, nullptr, nullptr, rank);
  add_trained(model, "");
  std::optional<Decoder> value;
  if (job.make_value)
    add_trained(value.emplace(job.make_value(job.model.config, {}, nullptr, nullptr, rank)), kValuePrefix);
  warn_of_no_decay(recipe.optimizer.no_decay, trained, comm, observer);
}

// Judges can judge, and what rewards read of each prompt's record is there.
void check_rewards(const Recipe& recipe, const Dataset& prompts) {
  const PromptRecords records(recipe.data);
  const Rewards rewards(recipe);
  rewards.try_judges();
  prompts.for_each([&](int64_t, const SampleInfo& prompt) { rewards.check(records.at(prompt.record)); });
}

// The nearest directory that exists must take files.
void try_output(const std::string& directory) { write_probe(nearest_existing(directory)); }

}  // namespace

DryRun dry_run(const Recipe& given, const Observer& observer, int64_t previews) {
  const Recipe recipe = with_adapters_template(with_all_directories(given), observer);
  const DecoderConfig config = model_config(recipe.model);
  std::optional<PretrainingTokenizer> pretraining;
  if (!recipe.model.init.empty()) pretraining.emplace(recipe, config.vocab_size);
  const std::string tokenizer = pretraining ? pretraining->path() : tokenizer_path_of(recipe, observer);
  const Encoder encoder = open_encoder(tokenizer, recipe.data.chat_template, config.vocab_size, !pretraining);
  const int64_t rows = encoder.vocab_size;
  const TrainingData data(recipe, config, encoder, observer);

  if (rows > config.vocab_size) observer.message(added_tokens_note(config.vocab_size, rows));
  DryRun result;
  validate_checkpoint(recipe);
  validate_model(recipe, config, rows, observer, result);
  validate_no_decay(recipe, data, observer);
  try_output(recipe.output.dir);
  result.total_steps = data.total_steps();
  result.first_step = data.step_info(1);
  const Dataset& dataset = data.train().dataset();
  result.report = dataset.report();
  result.format = recipe.data.format;
  int64_t records = 0;  // of which one may have several samples
  for (int64_t i = 0; i < dataset.size(); ++i) {
    records += !dataset.continues_group(i);
    if (records > previews) break;
    result.previews.push_back(dataset.preview(i, encoder));
  }
  if (recipe.has_rollouts() && recipe.objective.rollout.file.empty()) check_prompts(recipe, config, dataset);
  if (!recipe.all_rewards().empty()) check_rewards(recipe, dataset);
  if (result.format != DataFormat::labeled && !recipe.has_rollouts()) {
    result.samples_without_end = count_without_end(dataset, config, tokenizer, recipe.data.chat_template);
  }
  if (result.samples_without_end > 0) {
    observer.message("warning: " + count_text(result.samples_without_end, "sample trains", "samples train") +
                     " no token that ends a text; a model trained on these data does not learn to stop");
  }
  return result;
}

}  // namespace nibble
