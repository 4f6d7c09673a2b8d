#include "nibble/core/objectives/kto.h"

#include <algorithm>

#include "nibble/core/objectives/answers.h"
#include "nibble/core/objectives/dual.h"

namespace nibble {

namespace {

double log_ratio(const Batch& batch, const LabelLogProbs& log_probs, size_t document) {
  return answer_sum(batch, document, log_probs.policy) - answer_sum(batch, document, log_probs.reference);
}

bool is_desirable(const Batch& batch, size_t document) {
  NIBBLE_CHECK(!batch.values[document].empty(), "an answer with a verdict");
  return batch.values[document].front() != 0;
}

double kl_of(const LossCounts& step) { return step.settled.empty() ? 0 : step.settled.front(); }

}  // namespace

PairLoss kto_loss(const ObjectiveOptions& options, double ratio, bool desirable, double kl) {
  const Dual distance = options.beta * (Dual{ratio, 1, 0} - kl);
  const Dual loss = desirable ? options.desirable_weight * (1 - sigmoid(distance))
                              : options.undesirable_weight * (1 - sigmoid(-distance));
  return {loss.value, loss.first, 0};
}

Kto::Kto(ObjectiveOptions options, bool adapter_off) : options_(std::move(options)), adapter_off_(adapter_off) {
  if (options_.loss_type.empty()) options_.loss_type = {"kto"};
}

LossCounts Kto::counts(const Batch& batch) const { return {.divisor = static_cast<double>(batch.spans.size())}; }

double Kto::loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts& step,
                     std::span<float> weights) const {
  double sum = 0;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    const PairLoss loss = kto_loss(options_, log_ratio(batch, log_probs, d), is_desirable(batch, d), kl_of(step));
    sum += loss.value;
    each_answer_row(batch, d, [&](size_t row, int64_t) { weights[row] = static_cast<float>(-loss.by_chosen); });
  }
  return sum;
}

std::vector<SampleFacts> Kto::survey(const Batch& batch, const LabelLogProbs& log_probs) const {
  std::vector<SampleFacts> found;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    found.push_back({sample_number(batch, d), {log_ratio(batch, log_probs, d)}});
  }
  return found;
}

std::vector<double> Kto::settle(std::span<const SampleFacts> facts) const {
  return {std::max(0.0, mean_of(facts, [](const SampleFacts& fact) { return fact.values[0]; }))};
}

std::vector<SampleFacts> Kto::facts(const Batch& batch, const LabelLogProbs& log_probs) const {
  std::vector<SampleFacts> found;
  for (size_t d = 0; d < batch.spans.size(); ++d) {
    const TokenStatistics& statistics = log_probs.statistics;
    found.push_back({sample_number(batch, d),
                     {is_desirable(batch, d) ? 1.0 : 0.0, options_.beta * log_ratio(batch, log_probs, d),
                      answer_sum(batch, d, log_probs.policy), answer_sum(batch, d, statistics.mean_logits),
                      answer_tokens(batch, d), answer_sum(batch, d, statistics.entropies)}});
  }
  return found;
}

Metrics Kto::metrics(std::span<const SampleFacts> facts, const LossCounts& step) const {
  const auto mean = [&](size_t i, bool desirable) {
    return mean_of(
        facts, [i](const SampleFacts& f) { return f.values[i]; },
        [desirable](const SampleFacts& f) { return (f.values[0] != 0) == desirable; });
  };
  const double chosen = mean(1, true), rejected = mean(1, false);
  const auto mean_logit = [&](bool desirable) { return mean(3, desirable) / mean(4, desirable); };
  return {{"kl", kl_of(step)},
          {"entropy", ratio_of(facts, 5, 4)},
          {"logits/chosen", mean_logit(true)},
          {"logits/rejected", mean_logit(false)},
          {"rewards/chosen", chosen},
          {"rewards/rejected", rejected},
          {"rewards/margins", chosen - rejected},
          {"logps/chosen", mean(2, true)},
          {"logps/rejected", mean(2, false)}};
}

}  // namespace nibble
