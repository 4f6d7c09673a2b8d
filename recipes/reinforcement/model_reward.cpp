#include "nibble/recipes/reinforcement/model_reward.h"

#include <cmath>
#include <filesystem>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/nonfinite.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/with_key.h"
#include "nibble/recipes/preferences/text_scores.h"

namespace nibble {

namespace fs = std::filesystem;

struct ModelReward::Opened {
  Opened(const ModelRecipe& base, const std::string& adapter)
      : model(open_model(base, adapter, Train::nothing, rank.context())) {}
  LocalRank rank;
  Decoder model;
};

ModelRecipe reward_base(const RewardRecipe& recipe, const ModelRecipe& policy) {
  ModelRecipe base = policy;
  const bool adapter = fs::exists(fs::path(recipe.path) / "adapter_config.json");
  if (!adapter) {
    base.path = recipe.path;
    base.quantize.reset();
  }
  base.score = ScoreHead{0, adapter ? recipe.path : std::string()};
  base.router_aux_loss_coef.reset();
  return base;
}

std::string reward_key(const Recipe& recipe, size_t i) {
  return i < recipe.rewards.size() ? "rewards[" + std::to_string(i) + "].path" : "objective.reward_model";
}

DecoderConfig reward_config(const ModelRecipe& judge, const std::string& key) {
  return with_key(key, [&] { return model_config(judge); });
}

ModelReward::ModelReward(const RewardRecipe& recipe, const ModelRecipe& policy, std::string key)
    : base_(reward_base(recipe, policy)), key_(std::move(key)) {
  const DecoderConfig config = reward_config(base_, key_);
  if (config.score_labels != 1) {
    throw InputError(recipe.path, "has a score head of " + std::to_string(config.score_labels) + " labels",
                     key_ + " needs a model that gives one number");
  }
  ModelRecipe plain = policy;
  plain.score.reset();
  const int64_t tokens = model_config(plain).vocab_size;
  if (config.vocab_size < tokens) {
    throw InputError(recipe.path,
                     "has " + std::to_string(config.vocab_size) + " tokens, the policy " + std::to_string(tokens),
                     key_ + " needs a model with the policy's tokenizer");
  }
}

ModelReward::~ModelReward() = default;

void ModelReward::try_out() const {
  ModelRecipe as_it_is = base_;
  as_it_is.quantize.reset();
  with_key(key_, [&] { const Opened opened(as_it_is, base_.score->adapter); });
}

std::vector<double> ModelReward::score(const std::vector<std::vector<int32_t>>& texts,
                                       const std::function<bool(size_t)>& stop) {
  if (!opened_) opened_ = with_key(key_, [&] { return std::make_unique<Opened>(base_, base_.score->adapter); });
  const StepContext step{.rank = opened_->rank.context(), .compute_dtype = base_.dtype()};
  std::vector<double> scores;
  for (const std::vector<int32_t>& ids : texts) {
    if (stop(scores.size())) return {};
    const Sample sample{.ids = ids, .labels = {}};
    const float score = last_scores(opened_->model, sample, step, -1).front();
    if (!std::isfinite(score)) throw_nonfinite(key_ + ": score of an answer", opened_->model);
    scores.push_back(static_cast<double>(score));
  }
  return scores;
}

}  // namespace nibble
