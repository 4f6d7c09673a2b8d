#include "nibble/core/objectives/cpo.h"

#include <algorithm>

#include "nibble/core/objectives/answers.h"
#include "nibble/core/objectives/dual.h"

namespace nibble {

namespace {

// Facts behind those of pairs: of the NLL, sum and tokens.
constexpr size_t kNll = kPairFacts, kTargets = kPairFacts + 1, kLogOdds = kPairFacts + 2;

// Calls use(row) for the rows of document d whose targets count in the NLL: its answer's, and the prompt's where it has
// targets.
template <typename Use>
void each_target(const Batch& batch, size_t d, const Use& use) {
  const std::span<const int32_t> targets = batch.targets.span<const int32_t>();
  for (auto row = static_cast<size_t>(batch.spans[d].q_begin); row < static_cast<size_t>(batch.spans[d].q_end); ++row) {
    if (targets[row] != kIgnoreLabel) use(row);
  }
}

}  // namespace

PairLoss cpo_pair_loss(const ObjectiveOptions& options, double chosen, double rejected, double* log_odds) {
  const Dual c{chosen, 1, 0}, r{rejected, 0, 1};
  const double beta = options.beta, e = options.label_smoothing;
  Dual loss;
  if (options.type == ObjectiveType::orpo) {
    const Dual odds = (c - r) - (log1mexp(c) - log1mexp(r));
    if (log_odds) *log_odds = odds.value;
    loss = -beta * log_sigmoid(odds);
  } else if (options.loss_type.front() == "hinge") {
    loss = relu(1 - beta * (c - r));
  } else if (options.loss_type.front() == "ipo") {
    loss = square((c - r) - 0.5 / beta);
  } else {
    const double gamma = options.loss_type.front() == "simpo" ? options.simpo_gamma : 0;
    const Dual d = beta * (c - r) - gamma;
    loss = -(1 - e) * log_sigmoid(d) - e * log_sigmoid(-d);
  }
  return {loss.value, loss.first, loss.second};
}

Cpo::Cpo(ObjectiveOptions options) : options_(std::move(options)) {
  const bool orpo = options_.type == ObjectiveType::orpo;
  if (options_.loss_type.empty()) options_.loss_type = {orpo ? "orpo" : loss_types_of(options_.type).front()};
  const std::string& name = options_.loss_type.front();
  averages_ = orpo || name == "ipo" || name == "simpo";
  nll_weight_ = orpo ? 1 : options_.cpo_alpha;
}

LossCounts Cpo::counts(const Batch& batch) const {
  LossCounts counts;
  each_pair(batch, [&](size_t chosen) {
    ++counts.divisor;
    each_target(batch, chosen, [&](size_t) { ++counts.second; });
  });
  return counts;
}

double Cpo::share(const Batch& batch, size_t document) const {
  return averages_ ? 1 / std::max(answer_tokens(batch, document), 1.0) : 1;
}

double Cpo::score(const Batch& batch, size_t document, std::span<const float> log_probs) const {
  return share(batch, document) * answer_sum(batch, document, log_probs);
}

double Cpo::loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                     std::span<float> weights) const {
  double sum = 0;
  const double nll = nll_weight_ == 0 ? 0 : nll_weight_ * step.divisor / step.second;
  each_pair(batch, [&](size_t chosen) {
    const size_t rejected = chosen + 1;
    const PairLoss loss =
        cpo_pair_loss(options_, score(batch, chosen, log_probs.policy), score(batch, rejected, log_probs.policy));
    sum += loss.value;
    each_target(batch, chosen, [&](size_t row) {
      sum -= nll * static_cast<double>(log_probs.policy[row]);
      weights[row] = static_cast<float>(nll);
    });
    each_answer_row(batch, chosen, [&](size_t row, int64_t) {
      weights[row] = static_cast<float>(nll - loss.by_chosen * share(batch, chosen));
    });
    each_answer_row(batch, rejected, [&](size_t row, int64_t) {
      weights[row] = static_cast<float>(-loss.by_rejected * share(batch, rejected));
    });
  });
  return sum;
}

std::vector<SampleFacts> Cpo::facts(const Batch& batch, const LabelLogProbs& log_probs) const {
  std::vector<SampleFacts> found;
  each_pair(batch, [&](size_t chosen) {
    const double c = score(batch, chosen, log_probs.policy), r = score(batch, chosen + 1, log_probs.policy);
    double nll = 0, tokens = 0, log_odds = 0;
    each_target(batch, chosen, [&](size_t row) {
      nll -= static_cast<double>(log_probs.policy[row]);
      ++tokens;
    });
    cpo_pair_loss(options_, c, r, &log_odds);
    SampleFacts& fact =
        found.emplace_back(pair_facts(batch, log_probs, chosen, {options_.beta * c, options_.beta * r}, {c, r}));
    fact.values[kNll] = nll;
    fact.values[kTargets] = tokens;
    fact.values[kLogOdds] = log_odds;
  });
  return found;
}

Metrics Cpo::metrics(std::span<const SampleFacts> facts, const LossCounts&) const {
  Metrics found = pair_metrics(facts);
  found.emplace_back("nll_loss", nll_weight_ == 0 ? 0 : ratio_of(facts, kNll, kTargets));
  if (options_.type == ObjectiveType::orpo) {
    found.emplace_back("log_odds_ratio",
                       mean_of(facts, [](const SampleFacts& f) { return log_sigmoid({f.values[kLogOdds]}).value; }));
    found.emplace_back("log_odds_chosen", mean_of(facts, [](const SampleFacts& f) { return f.values[kLogOdds]; }));
  }
  return found;
}

}  // namespace nibble
