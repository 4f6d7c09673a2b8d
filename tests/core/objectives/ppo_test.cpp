// PPO's estimates, losses and derivatives against TRL's, which are padded (tests/oracles/ppo.py).

#include "nibble/core/objectives/ppo.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/tests/assets.h"

namespace nibble {
namespace {

using nlohmann::json;

json golden() { return json::parse(std::ifstream(test::data_path("ppo") / "answers.json")); }

ObjectiveOptions ppo_options(const json& from) {
  ObjectiveOptions options{.type = ObjectiveType::ppo};
  options.gamma = from["gamma"];
  options.lam = from["lam"];
  options.kl_coef = from["kl_coef"];
  options.vf_coef = from["vf_coef"];
  options.cliprange = from["cliprange"];
  options.cliprange_value = from["cliprange_value"];
  options.kl_estimator = from["kl_estimator"] == "k1" ? KlEstimator::k1 : KlEstimator::k3;
  options.whiten_rewards = from["whiten_rewards"];
  if (!from["missing_eos_penalty"].is_null()) options.missing_eos_penalty = from["missing_eos_penalty"].get<double>();
  return options;
}

std::vector<PpoAnswer> answers_of(const json& from) {
  std::vector<PpoAnswer> answers;
  for (const json& one : from) {
    answers.push_back({.policy = one["old"],
                       .reference = one["reference"],
                       .values = one["values"],
                       .score = one["score"],
                       .ended = one["ended"]});
  }
  return answers;
}

void expect_near(const std::vector<double>& got, const json& want, double limit, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i].get<double>(), limit) << what << " " << i;
}

TEST(Ppo, RewardsReturnsAndWhitenedAdvantagesAreTrls) {
  constexpr double kWhitened = 1e-7;  // TRL's n / (n - 1) has 32 bits
  const json all = golden();
  const std::vector<PpoAnswer> answers = answers_of(all["answers"]);
  for (const auto& [name, want] : all["cases"].items()) {
    const ObjectiveOptions options = ppo_options(want["options"]);
    const double limit = options.whiten_rewards ? kWhitened : 1e-12;
    const std::vector<PpoEstimates> got = ppo_estimates(options, answers);
    for (size_t i = 0; i < answers.size(); ++i) {
      const std::string what = name + ", answer " + std::to_string(i);
      expect_near(got[i].rewards, want["rewards"][i], limit, what);
      expect_near(got[i].returns, want["returns"][i], limit, what);
      expect_near(got[i].advantages, want["advantages"][i], kWhitened, what);
    }
    std::map<std::string, double> metrics;
    for (const auto& [metric, value] : ppo_block_metrics(options, answers)) metrics[metric] = value;
    for (const auto& [metric, value] : want["metrics"].items()) {
      EXPECT_NEAR(metrics.at(metric), value.get<double>(), 1e-12) << name << " " << metric;
    }
  }
}

/// The answers behind a prompt of one token, with what PpoPolicy and PpoValue read.
Batch batch_of(const json& from, const std::vector<PpoAnswer>& answers, const std::vector<PpoEstimates>& estimates,
               MemoryPool& pool) {
  std::vector<Sample> samples;
  for (size_t i = 0; i < answers.size(); ++i) {
    const size_t n = answers[i].policy.size();
    Sample& sample = samples.emplace_back();
    sample.ids.assign(n + 1, 5);
    sample.labels.assign(n + 1, 5);
    sample.labels[0] = kIgnoreLabel;
    sample.index = i;
    sample.values = ppo_values(answers[i], estimates[i]);
    sample.old = {0};
    for (const double old : from[i]["old"].get<std::vector<double>>()) sample.old.push_back(static_cast<float>(old));
  }
  return make_batch(samples, pool);
}

void expect_derivatives(const std::vector<float>& weights, double divisor, const json& want, const std::string& what) {
  size_t at = 0;
  for (const json& row : want) {
    for (const json& derivative : row) {
      EXPECT_NEAR(static_cast<double>(-weights.at(at)) / divisor, derivative.get<double>(), 1e-6) << what << " " << at;
      ++at;
    }
  }
}

TEST(Ppo, LossesAndDerivativesAreTrls) {
  const json all = golden();
  const std::vector<PpoAnswer> answers = answers_of(all["answers"]);
  MemoryPool pool;
  for (const auto& [name, want] : all["cases"].items()) {
    const ObjectiveOptions options = ppo_options(want["options"]);
    const std::vector<PpoEstimates> estimates = ppo_estimates(options, answers);
    const Batch batch = batch_of(all["answers"], answers, estimates, pool);

    const PpoPolicy policy(options);
    std::vector<float> log_probs(static_cast<size_t>(batch.ids.numel())), weights(log_probs.size());
    std::vector<float> of_answers, scores;
    for (size_t i = 0; i < answers.size(); ++i) {
      const auto begin = static_cast<size_t>(batch.spans[i].q_begin);
      const std::vector<double> now = all["answers"][i]["new"];
      for (size_t t = 0; t < now.size(); ++t) log_probs[begin + t] = static_cast<float>(now[t]);
      const std::vector<double> values = all["answers"][i]["new_values"];
      for (size_t t = 0; t < estimates[i].returns.size(); ++t) scores.push_back(static_cast<float>(values[t]));
    }
    LabelLogProbs seen;
    seen.policy = log_probs;
    const LossCounts tokens = policy.counts(batch);
    EXPECT_EQ(tokens.divisor, 20);
    EXPECT_NEAR(policy.loss_sum(batch, seen, tokens, weights) / tokens.divisor, want["policy_loss"].get<double>(),
                1e-6);
    for (size_t i = 0; i < answers.size(); ++i) {
      const auto begin = batch.spans[i].q_begin;
      for (size_t t = 0; t < answers[i].policy.size(); ++t) {
        of_answers.push_back(weights[static_cast<size_t>(begin) + t]);
      }
    }
    expect_derivatives(of_answers, tokens.divisor, want["policy_gradient"], name + ", policy");

    const PpoValue value(options);
    EXPECT_EQ(value.score_rows(batch).size(), scores.size());
    LabelLogProbs scored;
    scored.scores = scores;
    std::vector<float> of_scores(scores.size());
    const LossCounts positions = value.counts(batch);
    EXPECT_NEAR(value.loss_sum(batch, scored, positions, of_scores) / positions.divisor,
                options.vf_coef * want["value_loss"].get<double>(), 1e-6);
    expect_derivatives(of_scores, positions.divisor, want["value_gradient"], name + ", value");

    const std::vector<float> entropies(log_probs.size(), 1.25f);
    seen.statistics.entropies = entropies;
    const Metrics told = policy.metrics(policy.facts(batch, seen), tokens);
    EXPECT_NEAR(told[2].second, want["policy/clipfrac_avg"].get<double>(), 1e-12) << told[2].first;
    double ratios = 0, squares = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      const std::vector<double> now = all["answers"][i]["new"];
      for (size_t t = 0; t < now.size(); ++t) {
        const double ratio = std::exp(now[t] - answers[i].policy[t]);
        ratios += ratio;
        squares += ratio * ratio;
      }
    }
    const std::map<std::string, double> names(told.begin(), told.end());
    EXPECT_NEAR(names.at("policy/entropy_avg"), 1.25, 1e-12);
    EXPECT_NEAR(names.at("val/ratio"), ratios / 20, 1e-6);
    EXPECT_NEAR(names.at("val/ratio_var"), (squares - ratios * ratios / 20) / 19, 1e-6);
    const Metrics of_values = value.metrics(value.facts(batch, scored), positions);
    EXPECT_NEAR(of_values[0].second, want["value_loss"].get<double>(), 1e-6) << of_values[0].first;
    EXPECT_NEAR(of_values[1].second, want["val/clipfrac_avg"].get<double>(), 1e-12) << of_values[1].first;
  }
}

TEST(Ppo, ValuesStandBeforeEachTokenAndBehindTheLastOfShorterAnswers) {
  const json all = golden();
  const std::vector<PpoAnswer> answers = answers_of(all["answers"]);
  MemoryPool pool;
  const ObjectiveOptions options{.type = ObjectiveType::ppo};
  const Batch batch = batch_of(all["answers"], answers, ppo_estimates(options, answers), pool);
  const std::vector<int32_t> rows = PpoValue(options).score_rows(batch);
  const std::vector<int32_t> first(rows.begin(), rows.begin() + 4), second(rows.begin() + 4, rows.begin() + 10);
  EXPECT_EQ(first, (std::vector<int32_t>{0, 1, 2, 3})) << "3 tokens behind the prompt's";
  EXPECT_EQ(second, (std::vector<int32_t>{4, 5, 6, 7, 8, 9})) << "a longest one has none behind its last";
}

TEST(Ppo, AnAnswerWithoutAScoreHasItsKlAlone) {
  std::vector<PpoAnswer> answers = answers_of(golden()["answers"]);
  answers[0].score = std::numeric_limits<double>::quiet_NaN();
  const ObjectiveOptions options{.type = ObjectiveType::ppo};
  EXPECT_EQ(ppo_estimates(options, answers)[0].rewards.back(), 0);
}

}  // namespace
}  // namespace nibble
