#include "nibble/core/train/step_executor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/train/each_parameter.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

namespace {

// The largest of the ranks' counts.
int64_t most_of(Communicator& ranks, int64_t own) {
  MemoryPool pool;
  const Tensor part = Tensor::from<int64_t>(pool, {1}, std::span<const int64_t>(&own, 1));
  Tensor all = Tensor::empty(pool, {ranks.size()}, DType::i64);
  ranks.all_gather("microbatches", part, all);
  return std::ranges::max(all.span<const int64_t>());
}

/// Objective::survey in the place of a loss.
class Survey final : public Objective {
 public:
  Survey(const Objective& of, std::vector<SampleFacts>& found) : of_(of), found_(found) {}
  double loss_sum(const Batch& batch, const LabelLogProbs& log_probs, const LossCounts&,
                  std::span<float>) const override {
    const std::vector<SampleFacts> facts = of_.survey(batch, log_probs);
    found_.insert(found_.end(), facts.begin(), facts.end());
    return 0;
  }
  bool wants_reference() const override { return of_.wants_reference(); }
  bool wants_statistics() const override { return of_.wants_statistics(); }
  bool wants_scores() const override { return of_.wants_scores(); }
  std::vector<int32_t> score_rows(const Batch& batch) const override { return of_.score_rows(batch); }
  double temperature() const override { return of_.temperature(); }

 private:
  const Objective& of_;
  std::vector<SampleFacts>& found_;
};

/// No products in 8 bits (Decoder::set_int8) as long as it lives.
class Floats {
 public:
  Floats(Decoder& decoder, MemoryPool& pool) : pool_(pool) {
    decoder.visit_linears([&](Linear& linear) {
      if (linear.weight().in_int8()) rounded_.push_back(&linear);
    });
    for (Linear* linear : rounded_) linear->set_int8(nullptr);
  }
  ~Floats() {
    for (Linear* linear : rounded_) linear->set_int8(&pool_);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

 private:
  MemoryPool& pool_;
  std::vector<Linear*> rounded_;
};

}  // namespace

const Batch* StepWork::microbatch(int64_t i) const {
  if (i >= static_cast<int64_t>(microbatches.size())) return nullptr;
  const Batch& batch = microbatches[static_cast<size_t>(i)];
  return objective.counts(batch).divisor > 0 ? &batch : nullptr;
}

StepContext StepWork::context(RankContext& rank, const Batch& batch) const {
  return {.rank = rank,
          .compute_dtype = options.compute_dtype,
          .training = true,
          .step = static_cast<uint64_t>(options.step),
          .row_keys = batch.row_keys,
          .balance = balance,
          .neftune_noise_alpha = options.neftune_noise_alpha};
}

std::vector<int64_t> StepExecutor::begin_step(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

StepSums StepExecutor::gradients(std::span<const Batch> microbatches, const Objective& objective,
                                 const std::vector<Parameter*>& parameters, const StepOptions& options) {
  Trace* const trace = rank_.comm.size() > 1 ? options.trace : nullptr;  // what one rank does is no communication
  std::array<double, 5> counts{};
  for (const Batch& batch : microbatches) {
    const LossCounts own = objective.counts(batch);
    counts[0] += own.divisor;
    counts[1] += own.second;
    counts[2] += static_cast<double>(batch.label_tokens);
    counts[3] += static_cast<double>(sample_tokens(batch));
    counts[4] += static_cast<double>(batch.ids.numel());
  }
  Tensor counted = Tensor::from<double>(rank_.pool.host(), {std::ssize(counts)}, counts);
  traced(trace, Phase::communication, "label tokens", [&] { data_ranks().all_reduce_sum("label tokens", counted); });

  const std::span<const double> total = counted.span<const double>();
  StepSums sums;
  sums.counts = {total[0], total[1]};
  sums.label_tokens = static_cast<int64_t>(total[2]);
  sums.tokens = static_cast<int64_t>(total[3]);
  sums.computed_tokens = static_cast<int64_t>(total[4]);
  if (sums.counts.divisor == 0) return sums;
  if (objective.surveys()) {
    const auto own = static_cast<int64_t>(microbatches.size());
    const auto batch_at = [&](int64_t i) { return i < own ? &microbatches[static_cast<size_t>(i)] : nullptr; };
    const StepContext context{rank_, options.compute_dtype, false, 0, {}};
    sums.counts.settled = survey(objective, most_of(data_ranks(), own), batch_at, context);
  }
  facts_.clear();
  const double scale = 1.0 / sums.counts.divisor;
  std::optional<RouterBalance> balance = router_balance();
  const StepWork work{microbatches,
                      objective,
                      parameters,
                      options,
                      sums.counts,
                      static_cast<float>(scale),
                      balance ? &*balance : nullptr};
  if (balance) {
    count_choices(work);
    Tensor all = Tensor::from<double>(rank_.pool.host(), {std::ssize(balance->counts)}, balance->counts);
    traced(trace, Phase::communication, "router balance", [&] { rank_.comm.all_reduce_sum("router balance", all); });
    std::copy_n(all.data<const double>(), balance->counts.size(), balance->counts.begin());
    balance->counting = false;
  }
  const double loss =
      traced(trace, Phase::communication, "sum gradients, wait", [&] { return sum(work); });  // with spans of layers
  sums.loss = loss * scale + (balance ? balance->loss() : 0);
  sums.metrics = take_metrics(objective, sums.counts);
  if (balance) sums.metrics.emplace_back("aux_loss", balance->loss() / balance->coefficient);
  sums.squares = traced(options.trace, trace ? Phase::communication : Phase::optimizer, "gradient norm",
                        [&] { return squares(parameters); });
  return sums;
}

std::vector<double> StepExecutor::survey(const Objective& objective, int64_t rounds,
                                         const std::function<const Batch*(int64_t)>& batch_at,
                                         const StepContext& step) {
  std::vector<SampleFacts> found;
  const Survey survey(objective, found);
  for (int64_t round = 0; round < rounds; ++round) {
    const Batch* batch = batch_at(round);
    if (batch && objective.counts(*batch).divisor == 0) batch = nullptr;
    if (batch && batch->survey) batch = batch->survey.get();
    loss_sum(batch, survey, {}, step);
  }
  const std::vector<SampleFacts> all = gather_facts(std::move(found));
  return objective.settle(all);
}

std::vector<SampleFacts> StepExecutor::gather_facts(std::vector<SampleFacts> own) {
  constexpr int64_t kWidth = 1 + std::tuple_size_v<decltype(SampleFacts::values)>;
  Communicator& ranks = data_ranks();
  const int64_t most = ranks.size() > 1 ? most_of(ranks, std::ssize(own)) : std::ssize(own);
  if (most == 0) return {};
  MemoryPool pool;
  Tensor part = Tensor::zeros(pool, {most, kWidth}, DType::f64);
  for (int64_t i = 0; i < most; ++i) {
    double* row = part.data<double>() + i * kWidth;
    const bool here = i < std::ssize(own);
    row[0] = here ? static_cast<double>(own[static_cast<size_t>(i)].sample) : -1;
    if (here) std::ranges::copy(own[static_cast<size_t>(i)].values, row + 1);
  }
  Tensor all = part;
  if (ranks.size() > 1) {
    all = Tensor::empty(pool, {ranks.size() * most, kWidth}, DType::f64);
    ranks.all_gather("facts of samples", part, all);
  }
  std::vector<SampleFacts> facts;
  for (int64_t i = 0; i < all.dim(0); ++i) {
    const double* row = all.data<const double>() + i * kWidth;
    if (row[0] < 0) continue;
    facts.push_back({static_cast<int64_t>(row[0]), {}});
    std::copy(row + 1, row + kWidth, facts.back().values.begin());
  }
  std::ranges::stable_sort(facts, {}, &SampleFacts::sample);
  return facts;
}

Metrics StepExecutor::take_metrics(const Objective& objective, const LossCounts& counts) {
  if (objective.is_next_token()) return {};
  const std::vector<SampleFacts> facts = gather_facts(std::exchange(facts_, {}));
  Metrics found = objective.metrics(facts, counts);
  if (found.empty()) return found;
  std::vector<double> values;
  for (const auto& [name, value] : found) values.push_back(value);
  MemoryPool pool;
  Tensor shared = Tensor::from<double>(pool, {std::ssize(values)}, values);
  share_from_head(shared);
  for (size_t i = 0; i < found.size(); ++i) found[i].second = shared.data<const double>()[i];
  std::erase_if(found, [](const auto& metric) { return std::isnan(metric.second); });
  return found;
}

Communicator& StepExecutor::data_ranks() const {
  NIBBLE_CHECK(rank_.comm.size() == 1, "several ranks have an executor of their own");
  return rank_.comm;
}

double StepExecutor::sum(const StepWork& work) {
  const int64_t count = static_cast<int64_t>(work.microbatches.size());
  return sum_gradients(
      work.options.gradient_sum, work.parameters, count, [&](int64_t i) { return microbatch(work, i); }, rank_.pool);
}

double StepExecutor::squares(const std::vector<Parameter*>& parameters) const { return gradient_squares(parameters); }

TokenLoss LocalExecutor::token_loss(const Objective& objective, const Batch& batch, const LossCounts& counts,
                                    const StepContext& step) {
  if (objective.is_next_token()) return {};
  TokenLoss of_logits;
  if (objective.is_of_logits()) {
    if (!decoder_.has_head()) return of_logits;
    of_logits.of_logits =
        objective.logit_loss(batch, step, [this](std::vector<SampleFacts> facts) { add_facts(std::move(facts)); });
    return of_logits;
  }
  if (objective.wants_scores()) {
    of_logits.of_logits = score_loss(objective, batch, counts);
    return of_logits;
  }
  Tensor reference = batch.reference;
  if (objective.wants_reference() && !reference) {
    StepContext base = step;
    base.training = base.adapters_enabled = false;
    base.row_keys = {};
    TokenLoss record = [&](const Tensor& log_probs, Tensor&) {
      reference = log_probs;
      return 0.0;
    };
    record.temperature = static_cast<float>(objective.temperature());
    forward(batch, base, record);
  }
  TokenLoss loss = [this, &objective, &batch, counts, reference](const Tensor& log_probs, Tensor& weights) {
    const std::span<const float> none, all = log_probs.span<const float>();
    const size_t tokens = static_cast<size_t>(weights.numel());
    LabelLogProbs seen{all.first(tokens), reference ? reference.span<const float>() : none};
    if (all.size() > tokens) {
      const auto row = [&](ops::TokenStatistic which) {
        return all.subspan((1 + static_cast<size_t>(which)) * tokens, tokens);
      };
      seen.statistics = {row(ops::TokenStatistic::collision), row(ops::TokenStatistic::entropy),
                         row(ops::TokenStatistic::mean_logit), row(ops::TokenStatistic::top1)};
    }
    add_facts(objective.facts(batch, seen));
    return objective.loss_sum(batch, seen, counts, weights.span<float>());
  };
  if (!objective.weighs_by_log_probs(batch)) {
    loss.weigh = [&objective, &batch, counts](Tensor& weights) {
      const std::vector<float> none(static_cast<size_t>(weights.numel()));
      objective.loss_sum(batch, {none, {}}, counts, weights.span<float>());
    };
  }
  loss.wants_statistics = objective.wants_statistics();
  loss.temperature = static_cast<float>(objective.temperature());
  return loss;
}

LogitLoss LocalExecutor::score_loss(const Objective& objective, const Batch& batch, const LossCounts& counts) {
  const auto of = [this, &objective, &batch, counts](int64_t, Tensor& scores, float, const float* scale) {
    MemoryPool& host = rank().pool.host();
    const Tensor values =
        scores.device().has_bytes() ? scores.to(host) : Tensor::zeros(host, scores.shape(), DType::f32);
    LabelLogProbs seen;
    seen.scores = values.span<const float>();
    add_facts(objective.facts(batch, seen));
    Tensor weights = Tensor::zeros(host, scores.shape(), DType::f32, "weights of scores");
    const double sum = objective.loss_sum(batch, seen, counts, weights.span<float>());
    if (scale) {
      for (float& weight : weights.span<float>()) weight *= -*scale;
      scores = weights.to(rank().pool);
    }
    return sum;
  };
  return {objective.score_rows(batch), true, of};
}

double LocalExecutor::forward(const Batch& batch, const StepContext& step, const TokenLoss& loss) {
  return decoder_.loss_sum(batch, step, loss);
}

double LocalExecutor::loss_sum(const Batch* batch, const Objective& objective, const LossCounts& counts,
                               const StepContext& step) {
  if (batch) return forward(*batch, step, token_loss(objective, *batch, counts, step));
  idle_forward(objective, step, false);
  return 0;
}

Tensor LocalExecutor::next_logits(const Batch& batch, const StepContext& step, KvCache& cache) {
  // A pass has a row for each of a few dozen answers: rounding the weights would take longer than it saves.
  const Floats floats(decoder_, rank().pool);
  return decoder_.next_logits(batch, step, cache);
}

double LocalExecutor::microbatch(const StepWork& work, int64_t i) {
  const Batch* batch = work.microbatch(i);
  if (!batch) return 0;
  const StepContext context = work.context(rank(), *batch);
  const TokenLoss loss = token_loss(work.objective, *batch, work.counts, context);
  return decoder_.loss_sum_and_gradients(*batch, context, work.scale, loss);
}

void LocalExecutor::count_choices(const StepWork& work) {
  for (int64_t i = 0; i < passes(work); ++i) {
    const Batch* batch = work.microbatch(i);
    forward_layers(batch, batch ? work.context(rank(), *batch)
                                : StepContext{.rank = rank(), .compute_dtype = work.options.compute_dtype});
  }
}

void LocalExecutor::forward_layers(const Batch* batch, const StepContext& step) {
  if (batch) DecoderPass(decoder_, *batch, step, false).forward({});
}

double gradient_squares(const std::vector<Parameter*>& parameters) {
  std::vector<double> squares(parameters.size());
  for_each_parameter(parameters, [&](size_t i) { squares[i] = ops::sum_of_squares(parameters[i]->gradient); });
  return std::accumulate(squares.begin(), squares.end(), 0.0);
}

}  // namespace nibble
