// Losses and their derivatives against those of TRL's trainers, under the keys of recipes
// (tests/oracles/trl_losses.py).

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/core/ops/cross_entropy.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/objectives/loss_of_step.h"

namespace nibble {
namespace {

using nlohmann::json;

using Rows = std::vector<std::vector<float>>;

json golden() { return json::parse(std::ifstream(test::data_path("trl") / "losses.json")); }

/// Options of a recipe whose section is `objective`, with what its type needs besides.
ObjectiveOptions options_of(json objective) {
  json recipe = {{"model", {{"path", "M"}}}, {"adapter", json::object()}, {"output", {{"dir", "o"}}}};
  const std::string type = objective["type"];
  if (type == "grpo" || type == "rloo") {
    recipe["train"]["accumulate"] = 2;
    recipe["rollout"] = {{"file", "answers.jsonl"}, {"completions", 2}, {"max_new_tokens", 8}};
  } else {
    recipe["data"]["train"] = "d.jsonl";
  }
  if (type == "distillation") objective["teacher_model_name_or_path"] = "T";
  recipe["objective"] = std::move(objective);
  return parse_recipe(recipe.dump(), "trl").objective;
}

struct TrlCase {
  json golden;
  size_t prompt = 0;            // tokens
  std::vector<size_t> lengths;  // of answers
  bool in_pairs = false;
  bool prompts_count = false;  // of chosen answers

  std::vector<Sample> samples() const {
    std::vector<Sample> samples;
    for (size_t a = 0; a < lengths.size(); ++a) {
      Sample sample{.ids = std::vector<int32_t>(prompt + lengths[a], 5), .labels = {}, .index = a};
      sample.labels = sample.ids;
      std::fill_n(sample.labels.begin(), prompt, kIgnoreLabel);
      if (in_pairs) sample.group = static_cast<int64_t>(a / 2);
      sample.prompt_counts = prompts_count && a % 2 == 0;
      samples.push_back(std::move(sample));
    }
    return samples;
  }

  /// The numbers `name` of answers, by the rows of a batch; `prompts` those of the prompts, where they count. Without a
  /// prompt no row has that of an answer's first token.
  std::vector<float> by_row(const std::string& name, const std::string& prompts = "") const {
    std::vector<float> result;
    for (size_t a = 0; a < lengths.size(); ++a) {
      std::vector<float> of(prompt + lengths[a]);
      const std::vector<float> answer = golden.at(name).at(a);
      for (size_t t = prompt == 0 ? 1 : 0; t < answer.size(); ++t) of[prompt + t - 1] = answer[t];
      if (prompts_count && a % 2 == 0) {
        const std::vector<float> before = golden.at(prompts).at(a);
        std::ranges::copy(before, of.begin());
      }
      result.insert(result.end(), of.begin(), of.end());
    }
    return result;
  }

  /// By tokens, as a sample has them.
  void set_old(std::vector<Sample>& samples) const {
    for (size_t a = 0; a < samples.size(); ++a) {
      const std::vector<float> numbers = golden.at("old").at(a);
      samples[a].old.assign(prompt, 0);
      samples[a].old.insert(samples[a].old.end(), numbers.begin(), numbers.end());
    }
  }
};

void expect_loss(const json& golden, const Objective& objective, const Batch& batch, const LabelLogProbs& seen,
                 const std::vector<float>& gradient) {
  const test::StepLoss step = test::loss_of_step(objective, batch, seen);
  EXPECT_NEAR(step.loss, golden["loss"], 2e-6 * std::max(1.0, std::abs(golden["loss"].get<double>())));
  ASSERT_EQ(step.weights.size(), gradient.size());
  const float largest = std::abs(*std::ranges::max_element(gradient, {}, [](float x) { return std::abs(x); }));
  for (size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_NEAR(-static_cast<double>(step.weights[i]) / step.counts.divisor, gradient[i], 1e-5 * largest) << i;
  }
}

/// A step in batches of two and of four samples has the loss and the weights of one batch. seen: by the rows of that.
void expect_same_in_batches(const Objective& objective, const std::vector<Sample>& samples, const LabelLogProbs& seen) {
  MemoryPool pool;
  const test::StepLoss step = test::loss_of_step(objective, make_batch(samples, pool), seen);
  for (const size_t count : {2, 4}) {
    struct Part {
      Batch batch;
      LabelLogProbs seen;
      size_t begin;  // of its weights
    };
    std::vector<Part> parts;
    LossCounts counts;
    std::vector<SampleFacts> facts;
    size_t row = 0;
    for (size_t first = 0; first < samples.size(); first += count) {
      const auto of = std::span(samples).subspan(first, std::min(count, samples.size() - first));
      Part& part = parts.emplace_back(Part{make_batch(of, pool), {}, seen.scores.empty() ? row : first});
      const auto rows = static_cast<size_t>(part.batch.targets.numel());
      const auto cut = [](std::span<const float> all, size_t begin, size_t size) {
        return all.empty() ? all : all.subspan(begin, size);
      };
      part.seen.policy = cut(seen.policy, row, rows);
      part.seen.reference = cut(seen.reference, row, rows);
      part.seen.statistics.collisions = cut(seen.statistics.collisions, row, rows);
      part.seen.scores = cut(seen.scores, first, of.size());
      row += rows;
      const LossCounts own = objective.counts(part.batch);
      counts.divisor += own.divisor;
      counts.second += own.second;
      if (!objective.surveys()) continue;
      for (const SampleFacts& fact : objective.survey(part.batch, part.seen)) facts.push_back(fact);
    }
    if (objective.surveys()) counts.settled = objective.settle(facts);
    EXPECT_EQ(counts.divisor, step.counts.divisor);
    double sum = 0;
    for (const Part& part : parts) {
      std::vector<float> weights(std::max(part.seen.policy.size(), part.seen.scores.size()));
      sum += objective.loss_sum(part.batch, part.seen, counts, weights);
      const auto whole = std::span(step.weights).subspan(part.begin, weights.size());
      EXPECT_TRUE(std::ranges::equal(weights, whole)) << "batches of " << count;
    }
    EXPECT_NEAR(sum / counts.divisor, step.loss, 1e-12 * std::max(1.0, std::abs(step.loss)));
  }
}

void expect_preferences(const json& all, const std::string& cases, size_t prompt) {
  for (const json& one : all[cases]) {
    SCOPED_TRACE(one["objective"].dump());
    const ObjectiveOptions options = options_of(one["objective"]);
    TrlCase of{.golden = one, .prompt = prompt, .lengths = all["lengths"], .in_pairs = is_pairwise(options.type)};
    of.prompts_count = options.type == ObjectiveType::orpo;
    std::vector<Sample> samples = of.samples();
    for (size_t a = 0; one.contains("verdicts") && a < samples.size(); ++a) {
      samples[a].values = {one["verdicts"][a].get<bool>() ? 1.0F : 0.0F};
    }
    MemoryPool pool;
    const Batch batch = make_batch(samples, pool);
    const std::vector<float> policy = of.by_row("policy", "prompts");
    const std::vector<float> reference = one.contains("reference") ? of.by_row("reference") : std::vector<float>();
    const std::vector<float> collisions = one.contains("collisions") ? of.by_row("collisions") : std::vector<float>();
    const LabelLogProbs seen{
        policy, reference, {.collisions = collisions, .entropies = {}, .mean_logits = {}, .top1 = {}}};
    expect_loss(one, *make_objective(options, false), batch, seen, of.by_row("gradient", "prompt_gradient"));
    expect_same_in_batches(*make_objective(options, false), samples, seen);
  }
}

TEST(TrlLosses, OfPreferencesAreTrls) {
  const json all = golden();
  expect_preferences(all, "preferences", all["prompt"]);
}

TEST(TrlLosses, OfAnswersWithoutAPromptAreTrls) { expect_preferences(golden(), "unprompted", 0); }

TEST(TrlLosses, OfAnswersWithRewardsAreTrls) {
  const json all = golden();
  for (const json& one : all["rollouts"]) {
    SCOPED_TRACE(one["objective"].dump());
    const ObjectiveOptions options = options_of(one["objective"]);
    const TrlCase of{.golden = one, .prompt = all["prompt"], .lengths = all["lengths"]};
    std::vector<Sample> samples = of.samples();
    of.set_old(samples);
    for (size_t a = 0; a < samples.size(); ++a) samples[a].values = {one["advantages"][a], 0};
    MemoryPool pool;
    const Batch batch = make_batch(samples, pool);
    const std::vector<float> policy = of.by_row("policy");
    const std::vector<float> reference = options.beta != 0 ? of.by_row("reference") : std::vector<float>();
    expect_loss(one, *make_objective(options, false), batch, {policy, reference}, of.by_row("gradient"));
    expect_same_in_batches(*make_objective(options, false), samples, {policy, reference});
  }
}

TEST(TrlLosses, OfRewardModelsAreTrls) {
  const json all = golden();
  for (const json& one : all["rewards"]) {
    SCOPED_TRACE(one["objective"].dump());
    const TrlCase of{.golden = one, .prompt = all["prompt"], .lengths = all["lengths"], .in_pairs = true};
    std::vector<Sample> samples = of.samples();
    for (size_t a = 0; a < samples.size(); a += 2) samples[a].values = {one["margins"][a / 2]};
    MemoryPool pool;
    const std::vector<float> scores = one["scores"];
    LabelLogProbs seen;
    seen.scores = scores;
    const std::unique_ptr<Objective> objective = make_objective(options_of(one["objective"]), false);
    expect_loss(one, *objective, make_batch(samples, pool), seen, one["gradient"]);
    expect_same_in_batches(*objective, samples, seen);
  }
}

// The op, whose numbers the objective divides by the label tokens.
TEST(TrlLosses, OfDistillationAreTrls) {
  const json all = golden();
  for (const json& one : all["divergences"]) {
    SCOPED_TRACE(one["objective"].dump());
    const ObjectiveOptions options = options_of(one["objective"]);
    const Rows student = one["student"], teacher = one["teacher"], gradient = one["gradient"];
    const std::vector<int32_t> labels = one["labels"];
    const auto rows = static_cast<int64_t>(labels.size()), ids = static_cast<int64_t>(student[0].size());
    const double of =
        static_cast<double>(labels.size() - static_cast<size_t>(std::ranges::count(labels, kIgnoreLabel)));
    MemoryPool pool;
    const auto tensor = [&](const Rows& numbers) {
      Tensor result = Tensor::empty(pool, {rows, ids}, DType::f32);
      for (int64_t r = 0; r < rows; ++r)
        std::ranges::copy(numbers[static_cast<size_t>(r)], result.data<float>() + r * ids);
      return result;
    };
    Tensor losses = Tensor::empty(pool, {rows}, DType::f32), entropies = Tensor::empty(pool, {rows}, DType::f32);
    Tensor dlogits = Tensor::empty(pool, {rows, ids}, DType::f32);
    ops::divergence(tensor(student), tensor(teacher), 0, static_cast<float>(options.temperature),
                    static_cast<float>(options.beta), static_cast<float>(1 / of), losses, entropies, dlogits);
    double loss = 0;
    for (size_t r = 0; r < labels.size(); ++r) {
      if (labels[r] == kIgnoreLabel) continue;
      loss += static_cast<double>(losses.data<const float>()[r]) / of;
      for (size_t i = 0; i < gradient[r].size(); ++i) {
        EXPECT_NEAR(dlogits.data<const float>()[r * static_cast<size_t>(ids) + i], gradient[r][i], 1e-6) << r;
      }
    }
    EXPECT_NEAR(loss, one["loss"], 2e-6);
  }
}

}  // namespace
}  // namespace nibble
