#include "nibble/parallel/experts/expert_parallel.h"

#include <string>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/optimizer.h"

namespace nibble {

namespace {

class ExpertParallel final : public ExpertExchange {
 public:
  ExpertParallel(Communicator& ranks, GradientSum kind, MemoryPool& pool, Trace* trace)
      : ranks_(ranks), kind_(kind), pool_(pool), trace_(trace) {}

  Range here(int64_t experts) const override { return experts_of_rank(experts, ranks_.rank(), ranks_.size()); }
  MemoryPool& pool() const override { return pool_; }

  ExpertRoute route(std::span<const int64_t> counts) const override {
    const auto experts = std::ssize(counts);
    ExpertRoute route{{0}, {0}, {}};
    std::vector<size_t> bounds = {0}, received = {0};
    const auto mine = static_cast<size_t>(here(experts).size());
    for (int r = 0; r < ranks_.size(); ++r) {
      const Range theirs = experts_of_rank(experts, r, ranks_.size());
      int64_t rows = 0;
      for (int64_t e = theirs.begin; e < theirs.end; ++e) rows += counts[static_cast<size_t>(e)];
      route.sent.push_back(route.sent.back() + rows);
      bounds.push_back(static_cast<size_t>(theirs.end) * sizeof(int64_t));
      received.push_back(received.back() + mine * sizeof(int64_t));
    }
    MemoryPool& host = pool_.host();
    const Tensor own = Tensor::from<int64_t>(host, {experts}, counts);
    Tensor all = Tensor::zeros(host, {ranks_.size() * here(experts).size()}, DType::i64);
    exchange("rows of experts", own, bounds, all, received);
    const std::span<const int64_t> of_all = all.span<const int64_t>();
    for (size_t r = 0; r < static_cast<size_t>(ranks_.size()); ++r) {
      const std::span<const int64_t> of_rank = of_all.subspan(r * mine, mine);
      route.counts.emplace_back(of_rank.begin(), of_rank.end());
      int64_t rows = 0;
      for (const int64_t count : of_rank) rows += count;
      route.received.push_back(route.received.back() + rows);
    }
    return route;
  }

  Tensor send(std::string_view what, const Tensor& rows, const ExpertRoute& route) const override {
    return moved(what, rows, route.sent, route.received);
  }
  Tensor send_back(std::string_view what, const Tensor& rows, const ExpertRoute& route) const override {
    return moved(what, rows, route.received, route.sent);
  }

  // As a tree the sum of the ranks' microbatches is a whole subtree of that of the step: see ShardedExecutor.
  void sum_gradients(const std::vector<Parameter*>& parameters, int64_t ranks,
                     const std::function<void(int64_t)>& run) const override {
    if (kind_ == GradientSum::running || parameters.empty()) {
      for (int64_t r = 0; r < ranks; ++r) run(r);
      return;
    }
    const auto add = [&](int64_t r) {
      run(r);
      return 0.0;
    };
    nibble::sum_gradients(kind_, parameters, ranks, add, pool_);
  }

 private:
  void exchange(std::string_view what, const Tensor& from, std::span<const size_t> sent, Tensor& to,
                std::span<const size_t> received) const {
    const TraceSpan span(trace_, Phase::communication, what);
    ranks_.all_to_all(what, from, sent, to, received);
  }

  Tensor moved(std::string_view what, const Tensor& rows, const std::vector<int64_t>& from,
               const std::vector<int64_t>& to) const {
    const size_t row = static_cast<size_t>(rows.dim(1)) * dtype_size(rows.dtype());
    std::vector<size_t> sent, received;
    for (const int64_t bound : from) sent.push_back(static_cast<size_t>(bound) * row);
    for (const int64_t bound : to) received.push_back(static_cast<size_t>(bound) * row);
    Tensor result = Tensor::empty(pool_, {to.back(), rows.dim(1)}, rows.dtype(), "rows of other ranks");
    exchange(what, rows, sent, result, received);
    return result;
  }

  Communicator& ranks_;
  GradientSum kind_;
  MemoryPool& pool_;
  Trace* trace_;
};

}  // namespace

void check_experts(const DecoderConfig& config, int64_t ranks) {
  const auto refuse = [](const std::string& what, const std::string& remedy) {
    throw UsageError(what, remedy, "parallel.experts");
  };
  if (ranks == 1) return;
  if (!config.experts) refuse("the model has no experts", "leave it out");
  if (config.experts->experts < ranks) {
    refuse("the model has " + std::to_string(config.experts->experts) + " experts, fewer than the " +
               std::to_string(ranks) + " ranks that share them",
           "use at most " + std::to_string(config.experts->experts));
  }
}

void check_expert_blocks(const DecoderConfig& config, int64_t ranks,
                         const std::function<bool(const std::string& parameter)>& trains) {
  LocalRank rank;
  plan_decoder(config, rank.context()).visit_linears([&](Linear& linear) {
    const std::optional<ExpertPart> part = expert_part(config, linear.name());
    const Parameter* const tensor = part ? linear.weight().parameter() : nullptr;
    if (!tensor || tensor->value.rank() < 3 || part->expert != 0 || !trains(tensor->name)) return;
    const int64_t count = tensor->value.numel(), each = count / part->experts;
    for (int r = 1; count >= ops::kEightBitMinimum && r < ranks; ++r) {
      if (experts_of_rank(part->experts, r, static_cast<int>(ranks)).begin * each % ops::kEightBitBlock == 0) continue;
      throw UsageError(std::to_string(ranks) + " ranks would split a block of " + std::to_string(ops::kEightBitBlock) +
                           " values of adamw8bit's state: an expert has " + std::to_string(each) + " in " +
                           tensor->name,
                       "use adamw, or parallel.shard", "parallel.experts");
    }
  });
}

Range experts_of_rank(int64_t experts, int rank, int ranks) {
  return {experts * rank / ranks, experts * (rank + 1) / ranks};
}

bool is_spread(const Decoder& model, const Linear& linear) {
  return model.experts() && expert_part(model.config(), linear.name()).has_value();
}

std::set<const Parameter*> spread_weights(Decoder& model) {
  std::set<const Parameter*> found;
  model.visit_linears([&](Linear& linear) {
    const Parameter* const weight = linear.weight().parameter();
    if (weight && is_spread(model, linear)) found.insert(weight);
  });
  return found;
}

std::unique_ptr<ExpertExchange> expert_parallel(const DecoderConfig& config, Communicator& ranks, GradientSum kind,
                                                MemoryPool& pool, Trace* trace) {
  if (ranks.size() == 1 || !config.experts) return nullptr;
  NIBBLE_CHECK(config.experts->experts >= ranks.size(), "every rank has an expert");
  return std::make_unique<ExpertParallel>(ranks, kind, pool, trace);
}

}  // namespace nibble
