// A loss of one's own: one class and a copy of the loop of finetune.cpp. It compares the two answers of a pair, so it
// shows what every further objective stands on: groups, weights, counts, layouts, devices, checkpoints.

#include <cmath>

#include "nibble/adapters/attach.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/core/train/train_step.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/tensor/tensor_parallel.h"
#include "nibble/recipes/models/export_model.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/plan/activation_policy.h"
#include "nibble/recipes/training/loop.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/core/ops/refusing_device.h"
#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;

/// log(1 + exp(-margin)), a mean over pairs: margin = beta * (log p of the first answer - that of the second, each less
/// what the reference says of it). And 0.1 times the mean of -log p over the tokens of all first answers, which has
/// another divisor.
class Pairwise final : public Objective {
 public:
  explicit Pairwise(bool reference) : reference_(reference) {}

  LossCounts counts(const Batch& batch) const override {
    LossCounts counts;
    for (size_t g = 0; g + 1 < batch.groups.size(); ++g) {
      EXPECT_EQ(batch.groups[g + 1] - batch.groups[g], 2) << "a pair was parted";
      ++counts.divisor;
      each_label(batch, first_of(batch, g), [&](size_t) { ++counts.second; });
    }
    return counts;
  }

  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                  std::span<float> weights) const override {
    EXPECT_EQ(log_probs.reference.size(), reference_ ? log_probs.policy.size() : 0);
    const double nll_scale = 0.1 * step.divisor / step.second;
    double sum = 0;
    for (size_t g = 0; g + 1 < batch.groups.size(); ++g) {
      const ops::AttentionSpan &first = first_of(batch, g), &second = batch.spans[&first - batch.spans.data() + 1];
      double margin = 0, nll = 0;
      const auto add = [&](const ops::AttentionSpan& answer, double sign) {
        each_label(batch, answer, [&](size_t t) {
          margin += kBeta * sign * (log_probs.policy[t] - (reference_ ? log_probs.reference[t] : 0.0f));
        });
      };
      add(first, 1);
      add(second, -1);
      const double pull = kBeta / (1 + std::exp(margin));
      each_label(batch, first, [&](size_t t) {
        nll -= log_probs.policy[t];
        weights[t] = static_cast<float>(pull + nll_scale);
      });
      each_label(batch, second, [&](size_t t) { weights[t] = static_cast<float>(-pull); });
      sum += std::log1p(std::exp(-margin)) + nll_scale * nll;
    }
    return sum;
  }

  bool wants_reference() const override { return reference_; }

  static constexpr double kBeta = 0.3;

 private:
  static const ops::AttentionSpan& first_of(const Batch& batch, size_t group) {
    return batch.spans[static_cast<size_t>(batch.groups[group])];
  }
  template <typename Use>
  static void each_label(const Batch& batch, const ops::AttentionSpan& answer, const Use& use) {
    for (int64_t t = answer.q_begin; t < answer.q_end; ++t) {
      if (batch.targets.data<const int32_t>()[t] != kIgnoreLabel) use(static_cast<size_t>(t));
    }
  }

  bool reference_;
};

// ---- gradients ----

constexpr const char* kTiny = R"({"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 48, "vocab_size": 97,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2,
    "tie_word_embeddings": false})";

/// Pairs of unequal answers to prompts of four tokens.
std::vector<Sample> pairs(int count, int first = 0) {
  std::vector<Sample> samples;
  for (int k = 0; k < 2 * count; ++k) {
    const int pair = first + k / 2;
    Sample sample{.ids = {}, .labels = {}, .index = samples.size(), .group = pair};
    for (int t = 0; t < 9 + (5 * pair + 3 * (k % 2)) % 7; ++t) {
      sample.ids.push_back((t < 4 ? 11 * pair + t * t : 7 * t + 5 * pair + 31 * (k % 2)) % 97);
      sample.labels.push_back(t < 4 ? kIgnoreLabel : sample.ids.back());
    }
    samples.push_back(sample);
  }
  return samples;
}

/// The loss again, a mean over pairs, from all logits and in f64: nothing of the head, the executor or the objective.
double scalar_loss(Decoder& model, std::span<const Sample> samples, bool reference, RankContext& rank) {
  const Batch batch = make_batch(samples, rank.pool);
  std::vector<double> margins(samples.size() / 2);
  double nll = 0, tokens = 0;
  for (const bool base : {false, true}) {
    if (base && !reference) continue;
    const std::vector<float> logits =
        all_logits(model, batch, {.rank = rank, .row_keys = {}, .adapters_enabled = !base});
    const size_t vocabulary = logits.size() / static_cast<size_t>(batch.ids.numel());
    const float* row = logits.data();
    for (size_t k = 0; k < samples.size(); ++k) {
      for (size_t t = 0; t < samples[k].ids.size(); ++t, row += vocabulary) {
        if (t + 1 == samples[k].ids.size() || samples[k].labels[t + 1] == kIgnoreLabel) continue;
        double exponentials = 0;
        for (size_t v = 0; v < vocabulary; ++v) exponentials += std::exp(static_cast<double>(row[v]));
        const double log_prob = row[samples[k].labels[t + 1]] - std::log(exponentials);
        margins[k / 2] += (base ? -1 : 1) * (k % 2 == 0 ? 1 : -1) * Pairwise::kBeta * log_prob;
        if (base || k % 2 != 0) continue;
        nll -= log_prob;
        ++tokens;
      }
    }
  }
  double sum = 0;
  for (const double margin : margins) sum += std::log1p(std::exp(-margin));
  return sum / static_cast<double>(margins.size()) + 0.1 * nll / tokens;
}

/// A tiny model with everything trained, or with LoRA in all Linears, whose B is not 0.
Decoder tiny_model(bool adapter, RankContext& rank) {
  Decoder model = random_decoder(parse_decoder_config(kTiny, "test"), 1, rank);
  if (adapter) {
    AdapterOptions lora;
    lora.r = 3;
    lora.init_lora_weights = LoraInit::random;
    lora.target_modules.pattern = "all-linear";
    attach_adapter(model, lora, rank);
  } else {
    make_trainable(model, rank);
  }
  return model;
}

class OwnObjective : public testing::TestWithParam<bool> {};

TEST_P(OwnObjective, LossAndGradientAreThoseOfTheScalarTwin) {
  const bool reference = GetParam();
  LocalRank local(2);
  RankContext& rank = local.context();
  Decoder model = tiny_model(reference, rank);
  const std::vector<Sample> samples = pairs(3);
  const std::vector<Batch> microbatches = {make_batch({samples.data(), 2}, rank.pool),
                                           make_batch({samples.data() + 2, 4}, rank.pool)};
  const std::vector<Parameter*> parameters = trainable_parameters(model);
  LocalExecutor executor(model, rank);
  const StepSums sums = executor.gradients(microbatches, Pairwise(reference), parameters, {});
  EXPECT_EQ(sums.counts.divisor, 3);
  EXPECT_NEAR(sums.loss, scalar_loss(model, samples, reference, rank), 1e-5);
  ASSERT_GT(sums.squares, 0);

  // Along the gradient of each tensor, and along signs that have nothing to do with it.
  for (Parameter* parameter : parameters) {
    const std::span<const float> gradient = parameter->gradient.span<const float>();
    const double length = norm(gradient);
    for (const bool along : {true, false}) {
      std::vector<double> direction;
      const double unit = std::sqrt(static_cast<double>(gradient.size()));
      for (size_t i = 0; i < gradient.size(); ++i) {
        direction.push_back(along ? gradient[i] / (length + 1e-30) : (i * i % 3 == 0 ? 1 : -1) / unit);
      }
      double wanted = 0;
      for (size_t i = 0; i < gradient.size(); ++i) wanted += gradient[i] * direction[i];
      constexpr double kStep = 4e-3;
      const Tensor before = parameter->value.clone(rank.pool);
      const auto loss_at = [&](double step) {
        for (size_t i = 0; i < gradient.size(); ++i) {
          parameter->value.data<float>()[i] = static_cast<float>(before.data<const float>()[i] + step * direction[i]);
        }
        return scalar_loss(model, samples, reference, rank);
      };
      const double difference_quotient = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      loss_at(0);
      EXPECT_NEAR(difference_quotient, wanted, 0.01 * std::abs(wanted) + 1e-3 * std::sqrt(sums.squares))
          << parameter->name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, OwnObjective, testing::Bool(),
                         [](const auto& which) { return which.param ? "AnAdapterAndItsBase" : "AFullModel"; });

/// NextToken by the way that other objectives go.
class NextTokenInTwoPasses final : public Objective {
 public:
  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                  std::span<float> weights) const override {
    return NextToken().loss_sum(batch, log_probs, step, weights);
  }
};

TEST(OwnObjectives, NextTokenInTwoPassesHasTheGradientBitsOfTheFusedForm) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    LocalRank local(2);
    RankContext& rank = local.context();
    Decoder model = tiny_model(false, rank);
    const Batch batch = make_batch(pairs(2), rank.pool);
    LocalExecutor executor(model, rank);
    const std::vector<Parameter*> parameters = trainable_parameters(model);
    const auto gradients = [&](const Objective& objective) {
      const StepSums sums = executor.gradients({&batch, 1}, objective, parameters, {.compute_dtype = dtype});
      std::vector<float> all = {static_cast<float>(sums.loss)};
      for (const Parameter* parameter : parameters) {
        const std::span<const float> gradient = parameter->gradient.span<const float>();
        all.insert(all.end(), gradient.begin(), gradient.end());
      }
      return all;
    };
    EXPECT_EQ(gradients(NextTokenInTwoPasses()), gradients(NextToken()));
  }
}

TEST(OwnObjectives, ATokenOfWeightZeroIsNotComputedInTheSecondPass) {
  class Nothing final : public Objective {
    double loss_sum(const Batch&, const LabelLogProbs&, const LossCounts&, std::span<float>) const override {
      return 7;
    }
  };
  LocalRank local(1);
  RankContext& rank = local.context();
  Decoder model = tiny_model(false, rank);
  const Batch batch = make_batch(pairs(1), rank.pool);
  LocalExecutor executor(model, rank);
  const StepSums sums = executor.gradients({&batch, 1}, Nothing(), trainable_parameters(model), {});
  EXPECT_DOUBLE_EQ(sums.loss * sums.counts.divisor, 7);
  EXPECT_EQ(sums.squares, 0);
}

/// Two steps on `device`.
StepResult two_steps_on(const Device& device, std::vector<float>* weights) {
  MemoryPool pool(0, device);
  LocalRank local(2);
  RankContext rank{local.context().comm, pool, 2, 3};
  Decoder model = tiny_model(true, rank);
  Optimizer optimizer(trainable_parameters(model), {}, pool);
  LocalExecutor executor(model, rank);
  const std::vector<Batch> batches = {make_batch(pairs(1), pool), make_batch(pairs(2, 1), pool)};
  StepResult result;
  for (int64_t step = 1; step <= 2; ++step) {
    result = train_step(executor, batches, Pairwise(true), optimizer, {.step = step, .lr = 0.01, .max_grad_norm = 1});
  }
  if (!weights) return result;
  for (const Parameter* parameter : optimizer.parameters()) {
    const Tensor value = parameter->value.to(pool.host());
    weights->insert(weights->end(), value.span<const float>().begin(), value.span<const float>().end());
  }
  return result;
}

TEST(OwnObjectives, TrainWhereTheHostReadsNothingAndWhereThereIsNothingToRead) {
  std::vector<float> here, there;
  const RefusingDevice refusing;
  const MetaDevice meta;
  const StepResult result = two_steps_on(cpu_device(), &here);
  EXPECT_EQ(two_steps_on(refusing, &there).loss, result.loss);
  EXPECT_TRUE(here == there);
  EXPECT_EQ(two_steps_on(meta, nullptr).label_tokens, result.label_tokens);
  EXPECT_GT(meta.work(ops::Operation::cross_entropy).calls, 0);
}

// ---- a recipe ----

/// finetune.cpp with another objective.
void finetune_pairs(const Recipe& recipe, RankContext& rank, const Observer& observer) {
  const Mesh mesh(recipe.parallel.mesh(), rank.comm);
  const DecoderConfig config = model_config(recipe.model);
  const Encoder encoder = open_encoder(recipe.model.path, recipe.data.chat_template, config.vocab_size);
  const TrainingData data(recipe, config, encoder, observer);
  Run run = Run::open(run_options(recipe, data.total_steps()), rank, observer);

  const auto tensor = tensor_parallel(config, mesh.tensor(), rank.pool);
  const LayerRange own = stage_layers(recipe, config, mesh, rank);
  Decoder model = open_base(recipe.model, rank, own, tensor.get());
  const AttachedAdapter adapter = open_adapter(model, recipe.model, *recipe.adapter, rank, observer);
  ParallelModel parallel = parallelize(model, false, parallel_options(recipe), mesh, rank);
  const Pairwise objective(true);
  Training training(run, model, parallel, data, objective, recipe, recipe.model.path, rank, observer);
  while (training.next_step()) {
    training.finish_step(
        train_step(training.executor(), training.microbatches(), objective, training.optimizer(), training.options()));
  }
  training.finish();
  export_adapter(model, parallel, adapter, {}, run.dir() / "adapter", rank);
}

class OwnRecipe : public OwnModel {
 protected:
  void SetUp() override {
    OwnModel::SetUp();
    trains_ = finetune_pairs;
  }

  /// Pairs of answers, the first of which counts up and the second down.
  json pairs_recipe(int count) const {
    std::string lines;
    for (int pair = 0; pair < count; ++pair) {
      json ids = json::array(), labels = json::array();
      for (const int sign : {1, -1}) {
        std::vector<int> answer = {65 + pair % 7, 66, 67 + pair % 3};
        std::vector<int> trained(3, -100);
        for (int t = 0; t < 4 + (pair * 3 + sign) % 5; ++t) {
          answer.push_back(120 + sign * t);
          trained.push_back(answer.back());
        }
        ids.push_back(answer);
        labels.push_back(trained);
      }
      lines += json{{"input_ids", ids}, {"labels", labels}}.dump() + "\n";
    }
    const fs::path file = directory_ / ("pairs" + std::to_string(count) + ".jsonl");
    write_bytes(file, lines);
    json recipe = own_recipe(base_, 1);
    recipe["adapter"] = {{"r", 4}, {"lora_alpha", 8}, {"lora_dropout", 0.1}};
    recipe["data"] = {{"train", file.string()}, {"format", "tokens"}, {"max_length", 40}, {"eval_fraction", 0.2}};
    recipe["train"]["eval_every"] = 2;
    return recipe;
  }
};

TEST_F(OwnRecipe, LearnsWhichAnswerIsTheBetterOne) {
  json wanted = pairs_recipe(24);
  wanted["train"]["steps"] = 12;
  wanted["optimizer"] = {{"lr", 2e-2}, {"schedule", "constant"}};
  const Outcome outcome = run(wanted, 1, "out");
  ASSERT_EQ(outcome.losses.size(), 12u);
  EXPECT_LT(outcome.losses.back(), 0.6 * outcome.losses.front());
  EXPECT_LT(outcome.evaluations.back(), 0.6 * outcome.losses.front()) << "of pairs it was not trained on";
}

TEST_F(OwnRecipe, CopiesAndShardsHaveTheBitsOfOneRank) {
  for (const int accumulate : {4, 3}) {  // and ranks that have no microbatch
    json wanted = pairs_recipe(20);
    wanted["train"]["accumulate"] = accumulate;
    const Outcome one = run(wanted, 1, "one" + std::to_string(accumulate));
    ASSERT_EQ(one.losses.size(), 3u);
    ASSERT_EQ(one.evaluations.size(), 2u);
    for (const json& parallel : std::vector<json>{{{"replicate", 2}},
                                                  {{"shard", 2}},
                                                  {{"shard", 2}, {"shard_adapters", true}},
                                                  {{"shard", 2}, {"shard_adapters", true}, {"zero", 2}}}) {
      wanted["parallel"] = parallel;
      const Outcome several = run(wanted, 2, parallel.dump() + std::to_string(accumulate));
      EXPECT_EQ(several.losses, one.losses) << parallel;
      EXPECT_EQ(several.norms, one.norms) << parallel;
      EXPECT_TRUE(several.weights == one.weights) << parallel;
      expect_same_evaluations(several, one, 1e-9);
    }
  }
}

TEST_F(OwnRecipe, StagesAndTensorParallelRanksHaveTheLossesOfOneRank) {
  json wanted = pairs_recipe(20);
  const Outcome one = run(wanted, 1, "one");
  const auto expect_near = [&](const json& parallel, int ranks, double tolerance) {
    wanted["parallel"] = parallel;
    const Outcome several = run(wanted, ranks, parallel.dump());
    ASSERT_EQ(several.losses.size(), one.losses.size());
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(several.losses[i], one.losses[i], tolerance * one.losses[i]) << parallel;
      EXPECT_NEAR(several.norms[i], one.norms[i], 10 * tolerance * one.norms[i]) << parallel;
    }
    expect_same_evaluations(several, one, tolerance);
  };
  expect_near({{"pipeline", 2}}, 2, 1e-9);
  expect_near({{"pipeline", 2}, {"schedule", "gpipe"}, {"shard", 2}}, 4, 1e-9);
  expect_near({{"tensor", 2}}, 2, 1e-4);
}

TEST_F(OwnRecipe, MicrobatchesAreWhatOneBatchIs) {
  json wanted = pairs_recipe(20);
  const Outcome four = run(wanted, 1, "four");
  wanted["train"]["microbatch_size"] = 4;
  wanted["train"]["accumulate"] = 1;
  const Outcome one = run(wanted, 1, "one");
  for (size_t i = 0; i < four.losses.size(); ++i) EXPECT_NEAR(one.losses[i], four.losses[i], 1e-5 * four.losses[i]);
  expect_same_evaluations(one, four, 1e-5);
}

TEST_F(OwnRecipe, AStoppedRunResumesToTheSameBits) {
  json wanted = pairs_recipe(20);
  wanted["train"]["steps"] = 4;
  const Outcome whole = run(wanted, 1, "whole");
  for (const int stop : {1, 2}) {
    const std::string name = "stopped" + std::to_string(stop);
    run(wanted, 1, name, stop);
    const Outcome resumed = run(wanted, 1, name);
    EXPECT_EQ(resumed.losses, whole.losses);
    EXPECT_EQ(resumed.evaluations, whole.evaluations);
    EXPECT_TRUE(resumed.weights == whole.weights);
  }
  wanted["parallel"] = {{"pipeline", 2}};
  const Outcome stages = run(wanted, 2, "stages");
  run(wanted, 2, "stopped stages", 2);
  EXPECT_TRUE(run(wanted, 2, "stopped stages").weights == stages.weights);
}

}  // namespace
}  // namespace nibble
