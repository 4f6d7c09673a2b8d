#include "nibble/recipes/preferences/text_log_probs.h"

#include <algorithm>
#include <numeric>

#include "nibble/core/comm/communicator.h"

namespace nibble {

namespace {

/// Takes down the log-probabilities, or scores, of a batch.
class Recorder final : public Objective {
 public:
  explicit Recorder(const LogProbPass& pass) : pass_(pass) {}
  double loss_sum(const Batch&, const LabelLogProbs& found, const LossCounts&, std::span<float>) const override {
    const std::span<const float> of = pass_.scores ? found.scores : found.policy;
    seen.assign(of.begin(), of.end());
    return 0;
  }
  double temperature() const override { return pass_.temperature; }
  bool wants_scores() const override { return pass_.scores; }
  std::vector<int32_t> score_rows(const Batch& batch) const override {
    std::vector<int32_t> rows(static_cast<size_t>(batch.ids.numel()));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  }
  mutable std::vector<float> seen;

 private:
  const LogProbPass& pass_;
};

// [first, last) of texts that are computed together.
std::vector<size_t> cut(const std::vector<size_t>& begins, int64_t batch_tokens) {
  std::vector<size_t> firsts = {0};
  for (size_t d = 1; d + 1 < begins.size(); ++d) {
    if (begins[d + 1] - begins[firsts.back()] > static_cast<size_t>(batch_tokens)) firsts.push_back(d);
  }
  firsts.push_back(begins.size() - 1);
  return firsts;
}

}  // namespace

std::vector<float> text_log_probs(StepExecutor& executor, const std::vector<size_t>& begins,
                                  const std::function<Sample(size_t)>& text, const LogProbPass& pass,
                                  std::vector<float> begun) {
  RankContext& rank = executor.rank();
  Communicator& ranks = executor.data_ranks();
  std::vector<float> all = std::move(begun);
  const std::vector<size_t> firsts = cut(begins, pass.batch_tokens);
  const size_t batches = firsts.size() - 1, width = static_cast<size_t>(ranks.size());
  StepContext context{rank, pass.compute_dtype, false, 0, {}};
  context.adapters_enabled = pass.adapters_enabled;
  size_t first = 0;
  while (begins[firsts[first]] < all.size()) ++first;
  if (begins[firsts[first]] > all.size()) first = 0;
  all.resize(begins[firsts[first]]);
  for (; first < batches; first += width) {
    if (pass.go_on && !pass.go_on(all)) break;
    const size_t own = first + static_cast<size_t>(ranks.rank());
    const size_t from = begins[firsts[first]], to = begins[firsts[std::min(batches, first + width)]];
    MemoryPool pool;
    Tensor values = Tensor::zeros(pool, {static_cast<int64_t>(to - from)}, DType::f64);
    const Recorder recorder(pass);
    Batch batch;
    if (own < batches) {
      std::vector<Sample> together;
      for (size_t d = firsts[own]; d < firsts[own + 1]; ++d) together.push_back(text(d));
      batch = make_batch(together, rank.pool);
    }
    executor.loss_sum(own < batches ? &batch : nullptr, recorder, {}, context);
    // A row's log-probability is that of the token behind it; none is of a text's first.
    const size_t behind = pass.scores ? 0 : 1;
    for (size_t t = 0; t + behind < recorder.seen.size(); ++t) {
      values.data<double>()[begins[firsts[own]] - from + t + behind] = static_cast<double>(recorder.seen[t]);
    }
    ranks.all_reduce_sum("reference", values);
    executor.share_from_head(values);
    for (const double value : values.span<const double>()) all.push_back(static_cast<float>(value));
  }
  return all;
}

}  // namespace nibble
