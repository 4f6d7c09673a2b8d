#include "nibble/core/train/evaluate.h"

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"

namespace nibble {

std::optional<Evaluation> evaluate(StepExecutor& executor, const Objective& objective, int64_t count,
                                   const std::function<Batch(int64_t)>& batch_at, DType compute_dtype,
                                   const BeforeBatch& before) {
  Evaluation result;
  std::array<double, 3> sums{};  // what the loss is divided by, label tokens, tokens
  RankContext& rank = executor.rank();
  Communicator& ranks = executor.data_ranks();
  const StepContext context{rank, compute_dtype, false, 0, {}};
  const int64_t rounds = (count + ranks.size() - 1) / ranks.size();
  const auto own_batch = [&](int64_t round) {
    const int64_t i = round * ranks.size() + ranks.rank();
    return i < count ? batch_at(i) : Batch();
  };
  LossCounts all;
  if (!objective.is_next_token()) {  // which needs none
    for (int64_t round = 0; round < rounds; ++round) {
      const LossCounts counts = objective.counts(own_batch(round));
      all = {all.divisor + counts.divisor, all.second + counts.second};
    }
    all = {ranks.all_reduce_sum("counts", all.divisor), ranks.all_reduce_sum("counts", all.second)};
  }
  if (objective.surveys()) {
    Batch batch;
    const auto batch_for = [&](int64_t round) -> const Batch* {
      batch = own_batch(round);
      return batch.ids ? &batch : nullptr;
    };
    all.settled = executor.survey(objective, rounds, batch_for, context);
  }
  executor.take_metrics(objective, all);
  // Of every batch: added up in one order, however many ranks share them out.
  std::vector<double> losses(static_cast<size_t>(rounds * ranks.size()));
  for (int64_t round = 0; round < rounds; ++round) {
    if (!before(round, rounds)) return std::nullopt;
    const Batch batch = own_batch(round);
    const LossCounts counts = objective.counts(batch);
    losses[static_cast<size_t>(round * ranks.size() + ranks.rank())] =
        executor.loss_sum(counts.divisor > 0 ? &batch : nullptr, objective, all, context);
    sums[0] += counts.divisor;
    sums[1] += static_cast<double>(batch.label_tokens);
    if (batch.ids) sums[2] += static_cast<double>(sample_tokens(batch));
  }
  result.metrics = executor.take_metrics(objective, all);
  const auto over_ranks = [&](std::span<const double> values) {
    Tensor summed = Tensor::from<double>(rank.pool.host(), {std::ssize(values)}, values);
    ranks.all_reduce_sum("evaluation", summed);
    return summed;
  };
  const Tensor counted = over_ranks(sums), each = over_ranks(losses);
  const double* total = counted.data<double>();
  result.label_tokens = static_cast<int64_t>(total[1]);
  result.tokens = static_cast<int64_t>(total[2]);
  if (total[0] == 0) throw InputError("evaluation data", "no token has a label", "check its labels");
  const std::span<const double> batches = each.span<const double>();
  result.loss = std::accumulate(batches.begin(), batches.end(), 0.0) / total[0];
  result.perplexity = objective.is_next_token() ? std::exp(result.loss) : std::nan("");
  if (!std::isfinite(result.loss)) {
    throw NumericError("evaluation", "the loss is not finite", "lower optimizer.lr, or look at the evaluation data");
  }
  return result;
}

Evaluation evaluate(Decoder& model, int64_t count, const std::function<Batch(int64_t)>& batch_at, DType compute_dtype,
                    RankContext& rank) {
  LocalExecutor executor(model, rank);
  return *evaluate(executor, NextToken(), count, batch_at, compute_dtype, [](int64_t, int64_t) { return true; });
}

}  // namespace nibble
