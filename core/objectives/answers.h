#pragma once
// Answers in a batch: sums over their tokens, pairs, means for metrics. For .cpp files of this folder.

#include <cmath>
#include <limits>
#include <span>

#include "nibble/core/base/error.h"
#include "nibble/core/objectives/objective.h"

namespace nibble {

/// Calls use(row, k) for the rows that predict the k-th (from 0) labelled token of document d's answer.
template <typename Use>
void each_answer_row(const Batch& batch, size_t d, const Use& use) {
  const std::span<const int32_t> targets = batch.targets.span<const int32_t>();
  int64_t k = 0;
  for (auto row = static_cast<size_t>(batch.answers[d]); row < static_cast<size_t>(batch.spans[d].q_end); ++row) {
    if (targets[row] != kIgnoreLabel) use(row, k++);
  }
}

inline double answer_tokens(const Batch& batch, size_t d) {
  double tokens = 0;
  each_answer_row(batch, d, [&](size_t, int64_t) { ++tokens; });
  return tokens;
}

/// Likewise, with a token that no row predicts: the first of an answer without a prompt.
inline double answer_length(const Batch& batch, size_t d) {
  return answer_tokens(batch, d) + (batch.answers_open[d] ? 1 : 0);
}

/// Sum of `values` [T], as log-probabilities are, over the answer's tokens; 0 where there are none.
inline double answer_sum(const Batch& batch, size_t d, std::span<const float> values) {
  double sum = 0;
  each_answer_row(batch, d, [&](size_t row, int64_t) {
    if (!values.empty()) sum += static_cast<double>(values[row]);
  });
  return sum;
}

/// Calls use(document) for the first document of each pair; the other is the next one.
template <typename Use>
void each_pair(const Batch& batch, const Use& use) {
  for (size_t g = 0; g + 1 < batch.groups.size(); ++g) {
    NIBBLE_CHECK(batch.groups[g + 1] - batch.groups[g] == 2, "a pair of a chosen and a rejected answer");
    use(static_cast<size_t>(batch.groups[g]));
  }
}

/// Sample::index of document d.
inline int64_t sample_number(const Batch& batch, size_t d) {
  return batch.row_keys.span<const int64_t>()[static_cast<size_t>(batch.spans[d].q_begin)] >> 32;
}

/// The row of each document that a score head scores: its last token; with a pad id as Transformers finds it, the last
/// token with another id, or the first where there is none.
inline std::vector<int32_t> scored_rows(const Batch& batch, int32_t pad_id) {
  const std::span<const int32_t> ids = batch.ids.span<const int32_t>();
  std::vector<int32_t> rows;
  for (const ops::AttentionSpan& document : batch.spans) {
    int64_t row = document.q_end - 1;
    const auto is_pad = [&](int64_t t) { return pad_id >= 0 && ids[static_cast<size_t>(t)] == pad_id; };
    while (row > document.q_begin && is_pad(row)) --row;
    rows.push_back(static_cast<int32_t>(row));
  }
  return rows;
}

/// Mean of of(fact) over the facts that `counts`; nan without any.
template <typename Of, typename Counts>
double mean_of(std::span<const SampleFacts> facts, const Of& of, const Counts& counts) {
  double sum = 0, number = 0;
  for (const SampleFacts& fact : facts) {
    if (!counts(fact)) continue;
    sum += of(fact);
    ++number;
  }
  return number > 0 ? sum / number : std::numeric_limits<double>::quiet_NaN();
}
template <typename Of>
double mean_of(std::span<const SampleFacts> facts, const Of& of) {
  return mean_of(facts, of, [](const SampleFacts&) { return true; });
}

/// Sum of value `i` by that of value `j`: a mean over tokens. nan where there are none.
inline double ratio_of(std::span<const SampleFacts> facts, size_t i, size_t j) {
  double sum = 0, number = 0;
  for (const SampleFacts& fact : facts) {
    sum += fact.values[i];
    number += fact.values[j];
  }
  return number > 0 ? sum / number : std::numeric_limits<double>::quiet_NaN();
}

/// The first kPairFacts facts of pairs: rewards and log-probabilities of both answers, their mean logits and tokens as
/// sums.
inline constexpr size_t kPairFacts = 8, kChosenTokens = 6, kRejectedTokens = 7;
inline SampleFacts pair_facts(const Batch& batch, const LabelLogProbs& seen, size_t chosen,
                              const std::array<double, 2>& rewards, const std::array<double, 2>& log_probs) {
  const std::span<const float> logits = seen.statistics.mean_logits;
  return {sample_number(batch, chosen),
          {rewards[0], rewards[1], log_probs[0], log_probs[1], answer_sum(batch, chosen, logits),
           answer_sum(batch, chosen + 1, logits), answer_tokens(batch, chosen), answer_tokens(batch, chosen + 1)}};
}

/// rewards/*, logps/* and logits/* of pairs whose facts begin with pair_facts().
inline Metrics pair_metrics(std::span<const SampleFacts> facts) {
  const auto mean = [&](size_t i) { return mean_of(facts, [i](const SampleFacts& f) { return f.values[i]; }); };
  return {{"rewards/chosen", mean(0)},
          {"rewards/rejected", mean(1)},
          {"rewards/accuracies",
           mean_of(facts, [](const SampleFacts& f) { return f.values[0] > f.values[1] ? 1.0 : 0.0; })},
          {"rewards/margins", mean_of(facts, [](const SampleFacts& f) { return f.values[0] - f.values[1]; })},
          {"logps/chosen", mean(2)},
          {"logps/rejected", mean(3)},
          {"logits/chosen", ratio_of(facts, 4, kChosenTokens)},
          {"logits/rejected", ratio_of(facts, 5, kRejectedTokens)}};
}

}  // namespace nibble
