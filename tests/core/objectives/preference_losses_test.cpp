// The losses of preferences against scalar twins in f64 that are written from their papers' formulas, and against
// finite differences of these.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "nibble/core/base/error.h"
#include "nibble/core/objectives/cpo.h"
#include "nibble/core/objectives/dpo.h"
#include "nibble/core/objectives/kto.h"
#include "nibble/tests/core/objectives/loss_of_step.h"

namespace nibble {
namespace {

using test::loss_of_step;

double s(double x) { return 1 / (1 + std::exp(-x)); }
double ls(double x) { return std::log(s(x)); }

/// What a pair's loss is a function of: log-probabilities of policy and reference, tokens, options.
struct Pair {
  double c, r, ref_c, ref_r, n_c, n_r;
};
using Twin = std::function<double(const Pair&, const ObjectiveOptions&)>;

double bent(double u, const ObjectiveOptions& o) {
  switch (o.f_divergence_type) {
    case FDivergence::forward_kl:
      return 1 - std::exp(-u);
    case FDivergence::js_divergence:
      return std::log(2.0) + ls(u);
    case FDivergence::alpha_divergence: {
      const double a = o.f_alpha_divergence_coef;
      return (std::exp(std::min((a - 1) * u, 80.0)) - 1) / (a - 1);
    }
    default:
      return u;
  }
}

const std::map<std::string, Twin> kTwins = [] {
  const auto x = [](const Pair& p) { return p.c - p.ref_c; };
  const auto y = [](const Pair& p) { return p.r - p.ref_r; };
  const auto bd = [=](const Pair& p, const ObjectiveOptions& o) { return o.beta * (bent(x(p), o) - bent(y(p), o)); };
  const auto average = [=](const Pair& p, const ObjectiveOptions& o) {
    return bent(x(p), o) / p.n_c - bent(y(p), o) / p.n_r;
  };
  std::map<std::string, Twin> twins;
  twins["sigmoid"] = [=](const Pair& p, const ObjectiveOptions& o) { return -ls(bd(p, o)); };
  twins["hinge"] = [=](const Pair& p, const ObjectiveOptions& o) { return std::max(0.0, 1 - bd(p, o)); };
  twins["ipo"] = [=](const Pair& p, const ObjectiveOptions& o) {
    return std::pow(average(p, o) - 1 / (2 * o.beta), 2);
  };
  twins["exo_pair"] = [=](const Pair& p, const ObjectiveOptions& o) {
    const double d = bd(p, o), e = o.label_smoothing;
    return s(d) * (ls(d) - std::log(1 - e)) + s(-d) * (ls(-d) - std::log(e));
  };
  twins["nca_pair"] = [=](const Pair& p, const ObjectiveOptions& o) {
    const double u = o.beta * x(p), v = o.beta * y(p);
    return -ls(u) - ls(-u) / 2 - ls(-v) / 2;
  };
  twins["robust"] = [=](const Pair& p, const ObjectiveOptions& o) {
    const double d = bd(p, o), e = o.label_smoothing;
    return (-(1 - e) * ls(d) + e * ls(-d)) / (1 - 2 * e);
  };
  twins["bco_pair"] = [=](const Pair& p, const ObjectiveOptions& o) { return -ls(o.beta * x(p)) - ls(-o.beta * y(p)); };
  twins["sppo_hard"] = [=](const Pair& p, const ObjectiveOptions& o) {
    return std::pow(x(p) - 1 / (2 * o.beta), 2) + std::pow(y(p) + 1 / (2 * o.beta), 2);
  };
  twins["apo_zero"] = [=](const Pair& p, const ObjectiveOptions& o) { return 1 - s(o.beta * x(p)) + s(o.beta * y(p)); };
  twins["apo_down"] = [=](const Pair& p, const ObjectiveOptions& o) {
    return s(o.beta * x(p)) + 1 - s(o.beta * (x(p) - y(p)));
  };
  twins["discopop"] = [=](const Pair& p, const ObjectiveOptions& o) {
    const double d = bd(p, o), m = s(d / o.discopop_tau);
    return -ls(d) * (1 - m) + std::exp(-d) * m;
  };
  twins["sigmoid_norm"] = [=](const Pair& p, const ObjectiveOptions& o) { return -ls(o.beta * average(p, o)); };
  return twins;
}();

const std::vector<Pair> kPairs = {{-12.5, -9.25, -13.0, -8.5, 7, 3},
                                  {-4.5, -20.0, -6.25, -18.0, 2, 11},
                                  {-33.0, -31.0, -33.5, -30.0, 9, 9},
                                  {-8.0, -8.0, -8.0, -8.0, 4, 5}};

void expect_like_twin(const std::string& name, const ObjectiveOptions& options) {
  const Twin& twin = kTwins.at(name);
  for (const Pair& p : kPairs) {
    const PairScores scores{p.c, p.r, p.ref_c, p.ref_r, p.n_c, p.n_r};
    const PairLoss loss = dpo_pair_loss(options, scores, {});
    EXPECT_NEAR(loss.value, twin(p, options), 1e-11 * std::max(1.0, std::abs(loss.value))) << name;
    constexpr double kStep = 1e-5;
    const auto derivative = [&](double c, double r) {
      const Pair up{p.c + c, p.r + r, p.ref_c, p.ref_r, p.n_c, p.n_r};
      const Pair down{p.c - c, p.r - r, p.ref_c, p.ref_r, p.n_c, p.n_r};
      return (twin(up, options) - twin(down, options)) / (2 * kStep);
    };
    const double scale = std::max(1.0, std::abs(loss.by_chosen) + std::abs(loss.by_rejected));
    EXPECT_NEAR(loss.by_chosen, derivative(kStep, 0), 1e-6 * scale) << name;
    EXPECT_NEAR(loss.by_rejected, derivative(0, kStep), 1e-6 * scale) << name;
  }
}

TEST(DpoLosses, AreTheirFormulasWithTheirDerivatives) {
  for (const auto& [name, twin] : kTwins) {
    for (const double beta : {0.1, 0.7}) {
      ObjectiveOptions options;
      options.type = ObjectiveType::dpo;
      options.loss_type = {name};
      options.beta = beta;
      options.label_smoothing = 0.2;
      options.discopop_tau = 0.5;
      expect_like_twin(name, options);
    }
  }
}

TEST(DpoLosses, OfOtherDivergencesAreTheirFormulas) {
  for (const char* name : {"sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop"}) {
    for (const FDivergence divergence :
         {FDivergence::forward_kl, FDivergence::js_divergence, FDivergence::alpha_divergence}) {
      ObjectiveOptions options;
      options.type = ObjectiveType::dpo;
      options.loss_type = {name};
      options.f_divergence_type = divergence;
      options.label_smoothing = 0.1;
      options.discopop_tau = 0.5;
      expect_like_twin(name, options);
    }
  }
}

TEST(DpoLosses, HaveFiniteValuesAndDerivativesFarFromTheReference) {
  for (const auto& [name, twin] : kTwins) {
    ObjectiveOptions options;
    options.type = ObjectiveType::dpo;
    options.loss_type = {name};
    options.label_smoothing = 0.1;
    for (const double far : {-1e6, 1e6}) {
      const PairLoss loss = dpo_pair_loss(options, {far, 0, 0, 0, 4, 4}, {});
      EXPECT_TRUE(std::isfinite(loss.value) && std::isfinite(loss.by_chosen)) << name;
    }
  }
}

// ---- batches ----

/// Documents of `lengths` answers to prompts of three tokens, in groups of `group`.
Batch some_batch(const std::vector<int>& lengths, int group, MemoryPool& pool, bool prompts_count = false) {
  std::vector<Sample> samples;
  for (const int length : lengths) {
    Sample sample;
    sample.index = 10 + samples.size();
    sample.group = static_cast<int64_t>(samples.size()) / group;
    sample.prompt_counts = prompts_count && samples.size() % 2 == 0;
    for (int t = 0; t < 3 + length; ++t) {
      sample.ids.push_back(5 + t);
      sample.labels.push_back(t < 3 ? kIgnoreLabel : sample.ids.back());
    }
    sample.values = {samples.size() % 3 == 0 ? 0.0f : 1.0f};
    samples.push_back(sample);
  }
  return make_batch(samples, pool);
}

std::vector<float> some_numbers(const Batch& batch, int seed) {
  std::vector<float> numbers;
  for (int64_t t = 0; t < batch.ids.numel(); ++t) {
    const bool label = batch.targets.data<const int32_t>()[t] != kIgnoreLabel;
    numbers.push_back(label ? -0.25f - static_cast<float>((seed * 31 + t * 17) % 23) / 8 : 0);
  }
  return numbers;
}

/// The weights are minus the derivative of the undivided loss, as it is with what a step has settled held fixed.
void expect_weights_of_differences(const Objective& objective, const Batch& batch, std::vector<float> policy,
                                   std::span<const float> reference) {
  const test::StepLoss result = loss_of_step(objective, batch, {policy, reference});
  std::vector<float> ignored(policy.size());
  for (size_t t = 0; t < policy.size(); ++t) {
    const float before = policy[t];
    constexpr float kStep = 1.0f / 256;
    const auto at = [&](float value) {
      policy[t] = value;
      return objective.loss_sum(batch, {policy, reference}, result.counts, ignored);
    };
    const bool label = batch.targets.data<const int32_t>()[t] != kIgnoreLabel;
    const double derivative =
        label ? (at(before + kStep) - at(before - kStep)) / (2.0 * static_cast<double>(kStep)) : 0;
    policy[t] = before;
    EXPECT_NEAR(static_cast<double>(result.weights[t]), -derivative, 1e-4 * std::max(1.0, std::abs(derivative))) << t;
  }
}

ObjectiveOptions options_of(ObjectiveType type, std::vector<std::string> losses = {}) {
  ObjectiveOptions options;
  options.type = type;
  options.loss_type = std::move(losses);
  options.beta = 0.3;
  options.label_smoothing = 0.1;
  return options;
}

TEST(Dpo, WeightsAreMinusTheDerivativesOfItsLoss) {
  MemoryPool pool;
  const Batch batch = some_batch({4, 2, 1, 6, 3, 3}, 2, pool);
  const std::vector<float> reference = some_numbers(batch, 2);
  for (const std::vector<std::string>& losses :
       std::vector<std::vector<std::string>>{{"sigmoid"}, {"ipo"}, {"apo_down"}, {"sigmoid", "bco_pair", "sft"}}) {
    ObjectiveOptions options = options_of(ObjectiveType::dpo, losses);
    if (losses.size() > 1) options.loss_weights = {0.8, 0.2, 1.5};
    expect_weights_of_differences(Dpo(options, false), batch, some_numbers(batch, 1), reference);
    options.ld_alpha = 0.4;
    expect_weights_of_differences(Dpo(options, false), batch, some_numbers(batch, 1), reference);
  }
}

TEST(Dpo, SumsAnswersAndWeighsTheTokensThatOneHasMore) {
  MemoryPool pool;
  const Batch batch = some_batch({4, 2}, 2, pool);
  const std::vector<float> policy = some_numbers(batch, 1), reference = some_numbers(batch, 2);
  ObjectiveOptions options = options_of(ObjectiveType::dpo, {"sigmoid"});
  options.ld_alpha = 0.25;
  double ratio[2] = {0, 0};
  for (int k = 0; k < 4; ++k) ratio[0] += (k < 2 ? 1 : 0.25) * static_cast<double>(policy[2 + k] - reference[2 + k]);
  for (int k = 0; k < 2; ++k) ratio[1] += static_cast<double>(policy[9 + k] - reference[9 + k]);
  EXPECT_NEAR(loss_of_step(Dpo(options, false), batch, {policy, reference}).loss, -ls(0.3 * (ratio[0] - ratio[1])),
              1e-9);
}

TEST(Dpo, SortsOverTheWholeStepWhereAotAsksForIt) {
  MemoryPool pool;
  const Batch batch = some_batch({4, 2, 1, 6, 3, 3, 5, 2}, 2, pool);
  std::vector<float> policy = some_numbers(batch, 3);
  const std::vector<float> reference = some_numbers(batch, 10);
  for (size_t t = 0; t < policy.size(); ++t) policy[t] *= 1 + 0.01f * static_cast<float>(t);  // none equals another
  std::vector<double> c, r, ref_c, ref_r;
  for (size_t d = 0; d < 8; ++d) {
    double p = 0, q = 0;
    for (int64_t t = batch.spans[d].q_begin; t < batch.spans[d].q_end; ++t) {
      p += static_cast<double>(policy[static_cast<size_t>(t)]);
      q += static_cast<double>(reference[static_cast<size_t>(t)]);
    }
    (d % 2 == 0 ? c : r).push_back(p);
    (d % 2 == 0 ? ref_c : ref_r).push_back(q);
  }
  const auto sorted_difference = [](const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> difference(a.size());
    for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
    std::sort(difference.begin(), difference.end());
    return difference;
  };
  const auto wanted = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum -= 0.9 * ls(0.3 * (a[i] - b[i])) + 0.1 * ls(-0.3 * (a[i] - b[i]));
    return sum / static_cast<double>(a.size());
  };
  const Dpo aot(options_of(ObjectiveType::dpo, {"aot"}), false);
  EXPECT_NEAR(loss_of_step(aot, batch, {policy, reference}).loss,
              wanted(sorted_difference(c, r), sorted_difference(ref_c, ref_r)), 1e-9);
  const Dpo unpaired(options_of(ObjectiveType::dpo, {"aot_unpaired"}), false);
  EXPECT_NEAR(loss_of_step(unpaired, batch, {policy, reference}).loss,
              wanted(sorted_difference(c, ref_c), sorted_difference(r, ref_r)), 1e-9);
  // The derivative of the sum over all pairs, in which the order stays as it is.
  const auto loss_of = [&](const std::vector<double>& chosen, const std::vector<double>& rejected) {
    return 4 * wanted(sorted_difference(chosen, ref_c), sorted_difference(rejected, ref_r));
  };
  const test::StepLoss result = loss_of_step(unpaired, batch, {policy, reference});
  for (size_t pair = 0; pair < 4; ++pair) {
    for (const bool first : {true, false}) {
      std::vector<double> up[2] = {c, r}, down[2] = {c, r};
      up[first ? 0 : 1][pair] += 1e-5;
      down[first ? 0 : 1][pair] -= 1e-5;
      const double derivative = (loss_of(up[0], up[1]) - loss_of(down[0], down[1])) / 2e-5;
      const auto row = static_cast<size_t>(batch.answers[2 * pair + (first ? 0 : 1)]);
      EXPECT_NEAR(static_cast<double>(result.weights[row]), -derivative, 1e-5);
    }
  }
}

TEST(Dpo, WeighsPairsByWhatThePolicyWouldWrite) {
  MemoryPool pool;
  const Batch batch = some_batch({4, 2, 3, 1}, 2, pool);
  const std::vector<float> policy = some_numbers(batch, 1), reference = some_numbers(batch, 2),
                           collisions = some_numbers(batch, 5);
  ObjectiveOptions options = options_of(ObjectiveType::dpo, {"sigmoid"});
  const test::StepLoss plain = loss_of_step(Dpo(options, false), batch, {policy, reference});
  options.use_weighting = true;
  const test::StepLoss weighed = loss_of_step(Dpo(options, false), batch, {policy, reference, {collisions}});
  for (size_t d = 0; d < 4; ++d) {
    double exponent = 0;
    for (const size_t of : {d / 2 * 2, d / 2 * 2 + 1}) {
      double sum = 0, tokens = 0;
      for (int64_t t = batch.answers[of]; t + 1 < batch.spans[of].q_end; ++t, ++tokens) {
        sum += static_cast<double>(policy[static_cast<size_t>(t)] - collisions[static_cast<size_t>(t)]);
      }
      exponent += sum / tokens;
    }
    const auto row = static_cast<size_t>(batch.answers[d]);
    const double wanted = std::exp(exponent) * static_cast<double>(plain.weights[row]);
    EXPECT_NEAR(static_cast<double>(weighed.weights[row]), wanted, 1e-5 * std::abs(wanted));
  }
  options.loss_type = {"sft"};  // the mean over tokens, times the mean weight
  const Dpo sft(options, false);
  ASSERT_TRUE(sft.surveys());
  double nll = 0;
  for (const size_t d : {0, 2}) {
    for (int64_t t = batch.answers[d]; t + 1 < batch.spans[d].q_end; ++t) {
      nll -= static_cast<double>(policy[static_cast<size_t>(t)]) / 7;
    }
  }
  const test::StepLoss result = loss_of_step(sft, batch, {policy, reference, {collisions}});
  EXPECT_NEAR(result.loss, nll * result.counts.settled.front() / 2, 1e-9 * std::abs(result.loss));
}

std::map<std::string, double> named(const Metrics& metrics) { return {metrics.begin(), metrics.end()}; }

TEST(Dpo, ReportsMeansOverTokensOfBothAnswersByTrlsNames) {
  MemoryPool pool;
  const Batch batch = some_batch({3, 1, 2, 2}, 2, pool);  // pairs of 3 and 1, 2 and 2 answer tokens
  const std::vector<float> policy = some_numbers(batch, 1), entropies = some_numbers(batch, 3),
                           logits = some_numbers(batch, 4);
  std::vector<float> top1(policy.size());
  double entropy = 0, chosen = 0, rejected = 0;
  for (size_t d = 0; d < 4; ++d) {
    for (auto t = static_cast<size_t>(batch.answers[d]); t + 1 < static_cast<size_t>(batch.spans[d].q_end); ++t) {
      entropy += static_cast<double>(entropies[t]);
      (d % 2 == 0 ? chosen : rejected) += static_cast<double>(logits[t]);
    }
    top1[static_cast<size_t>(batch.answers[d])] = 1;  // the first token of each answer
  }
  const LabelLogProbs seen{policy, {}, {.collisions = {}, .entropies = entropies, .mean_logits = logits, .top1 = top1}};
  const Dpo dpo(options_of(ObjectiveType::dpo, {"sigmoid"}), false);
  const auto of_dpo = named(dpo.metrics(dpo.facts(batch, seen), {}));
  EXPECT_NEAR(of_dpo.at("entropy"), entropy / 8, 1e-9);
  EXPECT_NEAR(of_dpo.at("logits/chosen"), chosen / 5, 1e-9);
  EXPECT_NEAR(of_dpo.at("logits/rejected"), rejected / 3, 1e-9);
  EXPECT_NEAR(of_dpo.at("mean_token_accuracy"), 2.0 / 5, 1e-12) << "of chosen answers";
  const Cpo cpo(options_of(ObjectiveType::cpo, {"sigmoid"}));
  const auto of_cpo = named(cpo.metrics(cpo.facts(batch, seen), {}));
  EXPECT_NEAR(of_cpo.at("logits/chosen"), chosen / 5, 1e-9);
  EXPECT_NEAR(of_cpo.at("logits/rejected"), rejected / 3, 1e-9);
  Batch answers = batch;
  answers.values = {{1}, {0}, {1}, {0}};
  const Kto kto(options_of(ObjectiveType::kto, {"kto"}), false);
  const auto of_kto = named(kto.metrics(kto.facts(answers, seen), {}));
  EXPECT_NEAR(of_kto.at("entropy"), entropy / 8, 1e-9);
  EXPECT_NEAR(of_kto.at("logits/chosen"), chosen / 5, 1e-9);
  EXPECT_NEAR(of_kto.at("logits/rejected"), rejected / 3, 1e-9);
}

TEST(Kto, ComparesWithTheKlOfTheWholeStep) {
  MemoryPool pool;
  Batch batch = some_batch({4, 2, 1, 6, 3}, 1, pool);
  const std::vector<float> policy = some_numbers(batch, 1), reference = some_numbers(batch, 2);
  ObjectiveOptions options = options_of(ObjectiveType::kto, {"kto"});
  options.desirable_weight = 1.5;
  options.undesirable_weight = 0.5;
  const Kto kto(options, false);
  std::vector<double> ratios;
  for (const ops::AttentionSpan& span : batch.spans) {
    double ratio = 0;
    for (auto t = static_cast<size_t>(span.q_begin); t < static_cast<size_t>(span.q_end); ++t) {
      ratio += static_cast<double>(policy[t] - reference[t]);
    }
    ratios.push_back(ratio);
  }
  // The same texts stand in for the mixed ones.
  const double kl = std::max(0.0, std::accumulate(ratios.begin(), ratios.end(), 0.0) / 5);
  double wanted = 0;
  for (size_t d = 0; d < 5; ++d) {
    wanted += d % 3 == 0 ? 0.5 * (1 - s(0.3 * (kl - ratios[d]))) : 1.5 * (1 - s(0.3 * (ratios[d] - kl)));
  }
  EXPECT_NEAR(loss_of_step(kto, batch, {policy, reference}).loss, wanted / 5, 1e-9);
  expect_weights_of_differences(kto, batch, policy, reference);
  const Metrics metrics = kto.metrics(kto.facts(batch, {policy, reference}), {.settled = {kl}});
  EXPECT_EQ(metrics.front().first, "kl");
  EXPECT_EQ(kto.settle(std::vector<SampleFacts>{{1, {-2}}, {2, {1}}}).front(), 0) << "never below 0";
  const Kto apo(options_of(ObjectiveType::kto, {"apo_zero_unpaired"}), false);
  EXPECT_FALSE(apo.surveys());
  wanted = 0;
  for (size_t d = 0; d < 5; ++d) wanted += d % 3 == 0 ? s(0.3 * ratios[d]) : 1 - s(0.3 * ratios[d]);
  EXPECT_NEAR(loss_of_step(apo, batch, {policy, reference}).loss, wanted / 5, 1e-9);
}

TEST(Cpo, AndItsRelativesAreTheirFormulas) {
  MemoryPool pool;
  for (const bool orpo : {false, true}) {
    const Batch batch = some_batch({4, 2, 1, 6}, 2, pool, orpo);
    const std::vector<float> policy = some_numbers(batch, 1);
    const auto sum = [&](size_t d, bool answer) {
      double total = 0;
      for (auto t = answer ? batch.answers[d] : batch.spans[d].q_begin; t + 1 < batch.spans[d].q_end; ++t) {
        total += static_cast<double>(policy[static_cast<size_t>(t)]);
      }
      return total;
    };
    const double n[] = {4, 2, 1, 6};
    const double nll = -(sum(0, !orpo) + sum(2, !orpo)) / (orpo ? 9 : 5);
    const auto mean = [&](const std::function<double(double, double)>& loss, bool averaged) {
      const auto score = [&](size_t d) { return sum(d, true) / (averaged ? n[d] : 1); };
      return (loss(score(0), score(1)) + loss(score(2), score(3))) / 2;
    };
    const auto expect = [&](const ObjectiveOptions& options, double wanted) {
      EXPECT_NEAR(loss_of_step(Cpo(options), batch, {policy, {}}).loss, wanted, 1e-9);
      expect_weights_of_differences(Cpo(options), batch, policy, {});
    };
    if (orpo) {
      expect(options_of(ObjectiveType::orpo),
             nll + mean(
                       [](double c, double r) {
                         const double odds = c - r - (std::log1p(-std::exp(c)) - std::log1p(-std::exp(r)));
                         return -0.3 * ls(odds);
                       },
                       true));
      continue;
    }
    const auto smoothed = [](double d) { return -0.9 * ls(d) - 0.1 * ls(-d); };
    expect(options_of(ObjectiveType::cpo),
           nll + mean([&](double c, double r) { return smoothed(0.3 * (c - r)); }, false));
    expect(options_of(ObjectiveType::cpo, {"hinge"}),
           nll + mean([&](double c, double r) { return std::max(0.0, 1 - 0.3 * (c - r)); }, false));
    expect(options_of(ObjectiveType::cpo, {"ipo"}),
           nll + mean([&](double c, double r) { return std::pow(c - r - 1 / 0.6, 2); }, true));
    ObjectiveOptions simpo = options_of(ObjectiveType::simpo);
    simpo.cpo_alpha = 0;
    expect(simpo, mean([&](double c, double r) { return smoothed(0.3 * (c - r) - 0.5); }, true));
  }
}

TEST(Objectives, RefuseOptionsThatContradictEachOther) {
  const auto refused = [](ObjectiveOptions options, const char* key) {
    try {
      check_objective_options(options);
      ADD_FAILURE() << key << " was taken";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  };
  ObjectiveOptions options = options_of(ObjectiveType::dpo, {"sigmod"});
  refused(options, "did you mean sigmoid?");
  options = options_of(ObjectiveType::dpo, {"exo_pair"});
  options.label_smoothing = 0;
  refused(options, "objective.label_smoothing");
  options = options_of(ObjectiveType::dpo, {"nca_pair"});
  options.f_divergence_type = FDivergence::forward_kl;
  refused(options, "objective.f_divergence_type");
  options = options_of(ObjectiveType::dpo, {"aot"});
  options.use_weighting = true;
  refused(options, "objective.use_weighting");
  options = options_of(ObjectiveType::orpo);
  options.reference = "adapter_off";
  refused(options, "objective.reference");
  options = options_of(ObjectiveType::dpo, {"sigmoid", "sft"});
  for (const std::vector<double>& weights : {std::vector<double>{1}, {-1, 1}, {0, 0}}) {
    options.loss_weights = weights;
    refused(options, "objective.loss_weights");
  }
  options.loss_weights = {0, 1};
  check_objective_options(options);
  options.loss_type.clear();  // sigmoid
  options.loss_weights = {0.5};
  check_objective_options(options);
}

}  // namespace
}  // namespace nibble
