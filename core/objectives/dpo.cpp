#include "nibble/core/objectives/dpo.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "nibble/core/objectives/answers.h"
#include "nibble/core/objectives/dual.h"

namespace nibble {

namespace {

// What a loss is a function of. x, y: log-ratios of policy and reference; u, v: the same bent by the f-divergence.
struct Terms {
  const ObjectiveOptions& options;
  const PairScores& pair;
  const PairRanks& ranks;
  Dual chosen, rejected;  // log-probabilities of the policy
  Dual x, y, u, v;

  Dual delta() const { return options.beta * (u - v); }
  // Of the averages over tokens.
  Dual average_delta() const {
    return 1 / std::max(pair.chosen_tokens, 1.0) * u - 1 / std::max(pair.rejected_tokens, 1.0) * v;
  }
  // -(1 - e) ls(b d) - e ls(-b d)
  Dual smoothed(const Dual& d) const {
    const double e = options.label_smoothing;
    return -(1 - e) * log_sigmoid(options.beta * d) - e * log_sigmoid(-options.beta * d);
  }
};

Dual bent(const Dual& u, const ObjectiveOptions& options) {
  constexpr double kLargest = 80;  // exp() of it fits f32
  switch (options.f_divergence_type) {
    case FDivergence::reverse_kl:
      return u;
    case FDivergence::forward_kl:
      return 1 - exp(-u);
    case FDivergence::js_divergence:
      return log_sigmoid(u) + std::log(2.0);
    case FDivergence::alpha_divergence: {
      const double a = options.f_alpha_divergence_coef - 1;
      if (std::abs(a) < 1e-6) return u;
      const Dual exponent = a * u;
      return 1 / a * (exp(exponent.value > kLargest ? Dual{kLargest} : exponent) - 1);
    }
  }
  return u;
}

Dual exo_pair(const Terms& t) {
  const Dual d = t.delta();
  const double e = t.options.label_smoothing;
  return sigmoid(d) * (log_sigmoid(d) - std::log1p(-e)) + sigmoid(-d) * (log_sigmoid(-d) - std::log(e));
}

Dual robust(const Terms& t) {
  const double e = t.options.label_smoothing;
  return 1 / (1 - 2 * e) * (e * log_sigmoid(-t.delta()) - (1 - e) * log_sigmoid(t.delta()));
}

Dual nca_pair(const Terms& t) {
  const Dual x = t.options.beta * t.x, y = t.options.beta * t.y;
  return -log_sigmoid(x) - 0.5 * log_sigmoid(-x) - 0.5 * log_sigmoid(-y);
}

Dual sppo_hard(const Terms& t) {
  const double half = 0.5 / t.options.beta;
  return square(t.x - half) + square(t.y + half);
}

// m exp(-d) - (1 - m) ls(d), m = s(d / tau): far below 0 m is 0 where exp(-d) is infinite.
Dual discopop(const Terms& t) {
  const Dual d = t.delta(), steep = 1 / t.options.discopop_tau * d;
  return exp(log_sigmoid(steep) - d) - sigmoid(-steep) * log_sigmoid(d);
}

// Each value stands in two terms of the sum, of which one counts as this pair's.
Dual aot_unpaired(const Terms& t) {
  const Dual loss = t.smoothed(t.x - t.ranks.rejected);
  return {loss.value, loss.first, t.smoothed(t.ranks.chosen - t.y).second};
}

using Loss = Dual (*)(const Terms&);

const std::map<std::string, Loss, std::less<>> kLosses = {
    {"sigmoid", [](const Terms& t) { return -log_sigmoid(t.delta()); }},
    {"hinge", [](const Terms& t) { return relu(1 - t.delta()); }},
    {"ipo", [](const Terms& t) { return square(t.average_delta() - 0.5 / t.options.beta); }},
    {"exo_pair", exo_pair},
    {"nca_pair", nca_pair},
    {"robust", robust},
    {"bco_pair",
     [](const Terms& t) { return -log_sigmoid(t.options.beta * t.x) - log_sigmoid(-t.options.beta * t.y); }},
    {"sppo_hard", sppo_hard},
    {"aot", [](const Terms& t) { return t.smoothed(t.chosen - t.rejected - t.ranks.reference_ratio); }},
    {"aot_unpaired", aot_unpaired},
    {"apo_zero", [](const Terms& t) { return 1 - sigmoid(t.options.beta * t.x) + sigmoid(t.options.beta * t.y); }},
    {"apo_down",
     [](const Terms& t) { return sigmoid(t.options.beta * t.x) + (1 - sigmoid(t.options.beta * (t.x - t.y))); }},
    {"discopop", discopop},
    {"sigmoid_norm", [](const Terms& t) { return -log_sigmoid(t.options.beta * t.average_delta()); }}};

// Facts behind those of pairs: sums over the tokens of both answers, and over those of the chosen one.
constexpr size_t kEntropy = kPairFacts, kTokens = kPairFacts + 1, kRight = kPairFacts + 2;

double weight_of(const ObjectiveOptions& options, size_t i) {
  return options.loss_weights.empty() ? 1 : options.loss_weights[i];
}

// [i]: the place of value i among all, ascending; equal ones in order.
std::vector<size_t> ranks_of(const std::vector<double>& values) {
  std::vector<size_t> order(values.size()), ranks(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return values[i]; });
  for (size_t k = 0; k < order.size(); ++k) ranks[order[k]] = k;
  return ranks;
}

// Row of LossCounts::settled: sample number, then PairRanks. Before them the sum of all pairs' weights.
constexpr size_t kRow = 4;

PairRanks ranks_in(const std::vector<double>& settled, int64_t sample) {
  size_t low = 0, high = settled.size() / kRow;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    settled[1 + kRow * middle] < static_cast<double>(sample) ? low = middle + 1 : high = middle;
  }
  NIBBLE_CHECK(1 + kRow * low < settled.size(), "a pair that was surveyed");
  const double* row = settled.data() + 1 + kRow * low;
  return {row[1], row[2], row[3]};
}

}  // namespace

PairLoss dpo_pair_loss(const ObjectiveOptions& options, const PairScores& pair, const PairRanks& ranks) {
  Terms terms{options, pair, ranks, {pair.chosen, 1, 0}, {pair.rejected, 0, 1}, {}, {}, {}, {}};
  terms.x = terms.chosen - pair.reference_chosen;
  terms.y = terms.rejected - pair.reference_rejected;
  terms.u = bent(terms.x, options);
  terms.v = bent(terms.y, options);
  Dual sum;
  for (size_t i = 0; i < options.loss_type.size(); ++i) {
    if (options.loss_type[i] == "sft") continue;
    sum = sum + weight_of(options, i) * kLosses.at(options.loss_type[i])(terms);
  }
  return {sum.value, sum.first, sum.second};
}

Dpo::Dpo(ObjectiveOptions options, bool adapter_off) : options_(std::move(options)), adapter_off_(adapter_off) {
  if (options_.loss_type.empty()) options_.loss_type = {"sigmoid"};
  for (size_t i = 0; i < options_.loss_type.size(); ++i) {
    const std::string& name = options_.loss_type[i];
    if (name == "sft") sft_weight_ += weight_of(options_, i);
    if (name == "aot" || name == "aot_unpaired") sorts_ = true;
  }
}

LossCounts Dpo::counts(const Batch& batch) const {
  LossCounts counts;
  each_pair(batch, [&](size_t chosen) {
    ++counts.divisor;
    counts.second += answer_tokens(batch, chosen);
  });
  return counts;
}

double Dpo::shared_tokens(const Batch& batch, size_t chosen) {
  return std::min(answer_tokens(batch, chosen), answer_tokens(batch, chosen + 1));
}

double Dpo::token_weight(int64_t k, double shared) const {
  return !options_.ld_alpha || static_cast<double>(k) < shared ? 1 : *options_.ld_alpha;
}

PairScores Dpo::scores(const Batch& batch, const LabelLogProbs& log_probs, size_t chosen) const {
  PairScores pair;
  pair.chosen_tokens = answer_length(batch, chosen);
  pair.rejected_tokens = answer_length(batch, chosen + 1);
  const double shared = shared_tokens(batch, chosen);
  const auto add = [&](size_t document, double& policy, double& reference) {
    each_answer_row(batch, document, [&](size_t row, int64_t k) {
      policy += token_weight(k, shared) * static_cast<double>(log_probs.policy[row]);
      if (!log_probs.reference.empty())
        reference += token_weight(k, shared) * static_cast<double>(log_probs.reference[row]);
    });
  };
  add(chosen, pair.chosen, pair.reference_chosen);
  add(chosen + 1, pair.rejected, pair.reference_rejected);
  return pair;
}

// WPO (Zhou et al. 2024): how likely the policy would write the two answers, token by token.
double Dpo::pair_weight(const Batch& batch, const LabelLogProbs& log_probs, size_t chosen) const {
  if (!options_.use_weighting) return 1;
  double exponent = 0;
  for (const size_t document : {chosen, chosen + 1}) {
    const double sum =
        answer_sum(batch, document, log_probs.policy) - answer_sum(batch, document, log_probs.statistics.collisions);
    exponent += sum / std::max(answer_tokens(batch, document), 1.0);
  }
  return std::exp(exponent);
}

double Dpo::loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                     std::span<float> weights) const {
  double sum = 0;
  double sft = sft_weight_ == 0 ? 0 : sft_weight_ * step.divisor / step.second;
  if (options_.use_weighting && sft != 0) sft *= step.settled.at(0) / step.divisor;
  each_pair(batch, [&](size_t chosen) {
    const PairScores pair = scores(batch, log_probs, chosen);
    const PairRanks ranks = sorts_ ? ranks_in(step.settled, sample_number(batch, chosen)) : PairRanks{};
    const double weight = pair_weight(batch, log_probs, chosen);
    const PairLoss loss = dpo_pair_loss(options_, pair, ranks);
    sum += weight * loss.value - sft * answer_sum(batch, chosen, log_probs.policy);
    const double shared = shared_tokens(batch, chosen);
    each_answer_row(batch, chosen, [&](size_t row, int64_t k) {
      weights[row] = static_cast<float>(sft - weight * loss.by_chosen * token_weight(k, shared));
    });
    each_answer_row(batch, chosen + 1, [&](size_t row, int64_t k) {
      weights[row] = static_cast<float>(-weight * loss.by_rejected * token_weight(k, shared));
    });
  });
  return sum;
}

std::vector<SampleFacts> Dpo::survey(const Batch& batch, const LabelLogProbs& log_probs) const {
  std::vector<SampleFacts> found;
  each_pair(batch, [&](size_t chosen) {
    const PairScores pair = scores(batch, log_probs, chosen);
    found.push_back({sample_number(batch, chosen),
                     {pair.chosen - pair.rejected, pair.reference_chosen - pair.reference_rejected,
                      pair.chosen - pair.reference_chosen, pair.rejected - pair.reference_rejected,
                      pair_weight(batch, log_probs, chosen)}});
  });
  return found;
}

std::vector<double> Dpo::settle(std::span<const SampleFacts> facts) const {
  const auto column = [&](size_t i) {
    std::vector<double> values;
    for (const SampleFacts& fact : facts) values.push_back(fact.values[i]);
    return values;
  };
  const auto sorted = [&](size_t i) {
    std::vector<double> values = column(i);
    std::ranges::sort(values);
    return values;
  };
  const std::vector<double> weights = column(4), references = sorted(1), chosen = sorted(2), rejected = sorted(3);
  const std::vector<size_t> by_ratio = ranks_of(column(0)), by_chosen = ranks_of(column(2)),
                            by_rejected = ranks_of(column(3));
  std::vector<double> settled = {std::accumulate(weights.begin(), weights.end(), 0.0)};
  for (size_t i = 0; i < facts.size(); ++i) {
    settled.insert(settled.end(), {static_cast<double>(facts[i].sample), references[by_ratio[i]],
                                   rejected[by_chosen[i]], chosen[by_rejected[i]]});
  }
  return settled;
}

std::vector<SampleFacts> Dpo::facts(const Batch& batch, const LabelLogProbs& log_probs) const {
  std::vector<SampleFacts> found;
  each_pair(batch, [&](size_t chosen) {
    const PairScores pair = scores(batch, log_probs, chosen);
    SampleFacts& fact = found.emplace_back(pair_facts(batch, log_probs, chosen,
                                                      {options_.beta * (pair.chosen - pair.reference_chosen),
                                                       options_.beta * (pair.rejected - pair.reference_rejected)},
                                                      {pair.chosen, pair.rejected}));
    const std::span<const float> entropies = log_probs.statistics.entropies;
    fact.values[kEntropy] = answer_sum(batch, chosen, entropies) + answer_sum(batch, chosen + 1, entropies);
    fact.values[kTokens] = fact.values[kChosenTokens] + fact.values[kRejectedTokens];
    fact.values[kRight] = answer_sum(batch, chosen, log_probs.statistics.top1);
  });
  return found;
}

Metrics Dpo::metrics(std::span<const SampleFacts> facts, const LossCounts&) const {
  Metrics found = pair_metrics(facts);
  found.emplace_back("entropy", ratio_of(facts, kEntropy, kTokens));
  found.emplace_back("mean_token_accuracy", ratio_of(facts, kRight, kChosenTokens));
  return found;
}

}  // namespace nibble
