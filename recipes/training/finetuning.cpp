#include "nibble/recipes/training/finetuning.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>
#include "nibble/core/base/cpu_features.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/resize.h"
#include "nibble/core/train/telemetry/trace.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/pipeline/pipelined_executor.h"
#include "nibble/recipes/environment/free_memory.h"
#include "nibble/recipes/models/export_model.h"
#include "nibble/recipes/models/fingerprints.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/plan/memory_check.h"
#include "nibble/recipes/preferences/reference_log_probs.h"
#include "nibble/recipes/training/loop.h"

namespace nibble {

namespace {

// Where what a reference says is kept: named for what decides it.
std::filesystem::path kept_reference(const Recipe& recipe, const std::map<std::string, std::string>& settings) {
  if (recipe.data.cache.empty()) return {};
  std::string output(isa_name(isa()));
  for (const auto& [name, value] : settings) {
    const bool decides = name.starts_with("model.") || name.starts_with("adapter.") || name.starts_with("data.") ||
                         name.starts_with("objective.") || name.starts_with("rollout.") ||
                         name.starts_with("tokenizer") || name == "train.seed" || name == "train.microbatch_size" ||
                         name == "train.accumulate";
    if (decides) output += "\n" + name + "=" + value;
  }
  return std::filesystem::path(recipe.data.cache) /
         ("reference-" + hash_bytes(std::as_bytes(std::span(output))).substr(0, 32) + ".safetensors");
}

// Chance in Transformers' training of experts that there is none of here; empty: there is none there either.
std::string router_noise_warning(const ModelRecipe& base, const DecoderConfig& config) {
  const Family* family = family_of(config.family);
  if (!family) return "";
  const std::string file = base.init.empty() ? base.path + "/config.json" : base.init;
  const std::string begin = "warning: " + file + ": in training Transformers ", end = ", nibble does not";
  if (family->draws_experts) return begin + "draws the experts of " + config.model_type + " at random" + end;
  if (family->router_noise.empty()) return "";
  const std::string key(family->router_noise);
  const nlohmann::json noise = read_json_file(file, kModelConfigJson).value(key, nlohmann::json());
  if (!noise.is_number() || noise.get<double>() <= 0) return "";
  return begin + "multiplies what experts read by noise (" + key + " is " + noise.dump() + ")" + end;
}

}  // namespace

Finetuning::Finetuning(const Recipe& recipe, RankContext& rank, const Observer& observer)
    : recipe_(with_adapters_template(with_all_directories(recipe), observer)),
      rank_(rank),
      observer_(observer),
      mesh_(recipe_.parallel.mesh(), rank.comm),
      config_(model_config(recipe_.model)),
      tokenizer_(tokenizer_path_of(recipe_, observer)) {
  const Encoder encoder = open_encoder(tokenizer_, recipe_.data.chat_template, config_.vocab_size, true);
  rows_ = encoder.vocab_size;
  traced(observer.trace, Phase::data, "read and encode", [&] { data_.emplace(recipe_, config_, encoder, observer); });
  check_vocabularies(recipe_, rows_);
  plan_adapter(recipe_, config_, rows_);  // refuses what has no place before anything is opened or made
  check_memory(recipe_, *data_, rank);
  planned_ = data_->planned(recipe_);
}

void Finetuning::open(const std::filesystem::path& run_directory, const std::map<std::string, std::string>& settings) {
  return_free_memory();  // the encoder is gone
  tensor_ = tensor_parallel(config_, mesh_.tensor(), rank_.pool, observer_.trace);
  experts_ = expert_parallel(config_, mesh_.experts(), *recipe_.train.gradient_sum, rank_.pool, observer_.trace);
  const LayerRange own = stage_layers(planned_, config_, mesh_, rank_);
  activations_ = activation_policy(recipe_, *data_, own, run_directory, rank_, observer_);
  const bool keeps = keeps_reference(recipe_);
  if (names_reference_directory(recipe_.objective) && !keeps) {  // closed before the model is opened
    compute_reference(ReferenceModel(planned_, rows_, mesh_, rank_, observer_).executor(), true, settings);
  }
  if (!recipe_.objective.teacher_model_name_or_path.empty() && own.end == config_.layers) open_teacher();
  model_ = traced(observer_.trace, Phase::other, "load weights",
                  [&] { return open_base(recipe_.model, rank_, own, tensor_.get(), experts_.get()); });
  const std::string noise = rank_.comm.rank() == 0 ? router_noise_warning(recipe_.model, config_) : "";
  if (!noise.empty()) observer_.message(noise);
  if (rows_ > config_.vocab_size) {
    observer_.message(added_tokens_note(config_.vocab_size, rows_));
    resize_vocabulary(*model_, rows_, rank_);
  }
  if (rank_.comm.rank() == 0) warn_of_other_bases();
  if (recipe_.adapter) {
    companions_ = adapter_companions(tokenizer_, recipe_.data.chat_template, observer_);
    if (rank_.comm.rank() == 0) record_base(companions_, recipe_.model);
    adapter_ =
        open_adapter(*model_, recipe_.model, with_added_tokens(*recipe_.adapter, config_, rows_), rank_, observer_);
  } else {
    check_trainable(*model_);
  }
  activations_.apply(*model_);
  data_->set_share(shares_prompts(recipe_, config_));
  parallel_.emplace(parallelize(*model_, !adapter_, parallel_options(recipe_), mesh_, rank_));

  const ObjectiveOptions& objective = recipe_.objective;
  const bool compares = has_reference(objective), off = compares && objective.reference == "adapter_off";
  if (off) check_reference(objective, adapter_->base_changed);
  if (objective.type == ObjectiveType::ppo) {
    value_.emplace(planned_, rows_, mesh_, activations_, rank_, observer_);
  }
  if (recipe_.has_rollouts()) {
    if (keeps) reference_.emplace(planned_, rows_, mesh_, rank_, observer_);
    rollouts_.emplace(recipe_, *model_, *data_, tokenizer_, observer_, teacher_ ? &*teacher_ : nullptr,
                      reference_ ? &reference_->executor() : nullptr);
  }
  objective_ = make_objective(config_.score_labels > 0 ? with_score_head(objective, config_) : objective,
                              off && !objective.precompute_ref_log_probs, teacher_ ? &*teacher_ : nullptr);
  const bool draws = recipe_.has_rollouts() && objective.rollout.file.empty();
  if (!draws && (objective.reference == "initial" || (off && objective.precompute_ref_log_probs))) {
    const auto executor =
        make_executor(*model_, *parallel_, {recipe_.parallel.schedule, recipe_.parallel.microbatches}, rank_);
    compute_reference(*executor, !off, settings);
  }
}

void Finetuning::warn_of_other_bases() const {
  const auto warn = [&](const std::string& adapter, const ModelRecipe& base, const std::string& key) {
    const std::string warning = adapter.empty() ? "" : base_warning(adapter, base, "model.quantize=", key);
    if (!warning.empty()) observer_.message(warning);
  };
  if (recipe_.adapter) warn(recipe_.adapter->path, recipe_.model, "");
  warn(recipe_.objective.value_adapter, value_base(recipe_), "objective.value_adapter");
  const std::vector<RewardRecipe> rewards = recipe_.all_rewards();
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (rewards[i].type != RewardRecipe::Type::model) continue;
    const ModelRecipe judge = reward_base(rewards[i], recipe_.model);
    warn(judge.score->adapter, judge, reward_key(recipe_, i));
  }
}

// Unsharded on every rank that has the head: mapped, so that ranks on one host share it.
void Finetuning::open_teacher() {
  teacher_ =
      traced(observer_.trace, Phase::other, "load teacher", [&] { return open_base(teacher_of(recipe_), rank_); });
}

void Finetuning::compute_reference(StepExecutor& executor, bool adapters_enabled,
                                   const std::map<std::string, std::string>& settings) {
  ReferencePass pass;
  pass.compute_dtype = recipe_.model.dtype();
  pass.adapters_enabled = adapters_enabled;
  pass.batch_tokens = std::min(pass.batch_tokens, recipe_.data.max_length);
  if (recipe_.has_rollouts()) pass.temperature = recipe_.objective.rollout.temperature;
  pass.kept = kept_reference(recipe_, settings);
  data_->train_samples().set_reference(reference_log_probs(executor, data_->train_samples(), pass, observer_));
  if (!data_->eval_samples()) return;
  if (!pass.kept.empty()) pass.kept.replace_extension(".eval.safetensors");
  data_->eval_samples()->set_reference(reference_log_probs(executor, *data_->eval_samples(), pass, observer_));
}

void Finetuning::export_to(const std::filesystem::path& directory) {
  if (adapter_ && model_->config().vocab_size > config_.vocab_size) companions_.rows = model_->config().vocab_size;
  if (value_) value_->export_to(directory, companions_);
  if (adapter_) {
    return export_adapter(*model_, *parallel_, *adapter_, companions_, directory / "adapter", rank_);
  }
  const bool has_own = std::filesystem::is_directory(tokenizer_);
  export_model(*model_, *parallel_, recipe_.model.path, has_own ? tokenizer_ : recipe_.model.path,
               recipe_.data.chat_template, directory / "model", rank_);
}

}  // namespace nibble
