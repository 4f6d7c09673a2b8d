#pragma once
// What a fine-tuning run opens: data, model, adapter, layout, objective. finetune.cpp shows what is done with them.

#include <optional>
#include <string>

#include "nibble/adapters/attach.h"
#include "nibble/parallel/experts/expert_parallel.h"
#include "nibble/parallel/parallel_model.h"
#include "nibble/parallel/tensor/tensor_parallel.h"
#include "nibble/recipes/plan/activation_policy.h"
#include "nibble/recipes/preferences/reference_model.h"
#include "nibble/recipes/reinforcement/rollouts.h"
#include "nibble/recipes/reinforcement/value_model.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble {

class Finetuning {
 public:
  /// Reads the data and refuses what has no place; opens no model. What is given must outlive this.
  Finetuning(const Recipe& recipe, RankContext& rank, const Observer& observer);

  /// Loads the model, attaches the adapter, lays them out over the ranks, and computes what the objective has to know
  /// of its reference. run_directory: for activations, empty: none are offloaded. settings: RunOptions::settings, which
  /// name what a kept reference was made from.
  void open(const std::filesystem::path& run_directory, const std::map<std::string, std::string>& settings);

  /// The adapter, or the whole model, into `directory` of the run; with it the value model's.
  void export_to(const std::filesystem::path& directory);

  /// With the template of the adapter that it continues.
  const Recipe& recipe() const { return recipe_; }
  const std::string& tokenizer() const { return tokenizer_; }
  TrainingData& data() { return *data_; }
  Decoder& model() { return *model_; }
  ParallelModel& parallel() { return *parallel_; }
  /// Null where the objective has none.
  Rollouts* rollouts() { return rollouts_ ? &*rollouts_ : nullptr; }
  const Objective& objective() const { return *objective_; }
  /// Null where the objective has none.
  ValueModel* value() { return value_ ? &*value_ : nullptr; }

 private:
  void warn_of_other_bases() const;
  void open_teacher();
  void compute_reference(StepExecutor& executor, bool adapters_enabled,
                         const std::map<std::string, std::string>& settings);

  const Recipe recipe_;
  Recipe planned_;  // TrainingData::planned
  RankContext& rank_;
  const Observer& observer_;
  Mesh mesh_;
  DecoderConfig config_;
  std::string tokenizer_;
  int64_t rows_ = 0;  // of the embedding
  std::optional<TrainingData> data_;
  std::unique_ptr<LayerSharding> tensor_;
  std::unique_ptr<ExpertExchange> experts_;
  ActivationPolicy activations_;
  std::optional<Decoder> teacher_, model_;
  std::optional<AttachedAdapter> adapter_;
  AdapterCompanions companions_;
  std::optional<ParallelModel> parallel_;
  std::unique_ptr<Objective> objective_;
  std::optional<ValueModel> value_;
  std::optional<ReferenceModel> reference_;
  std::optional<Rollouts> rollouts_;
};

}  // namespace nibble
