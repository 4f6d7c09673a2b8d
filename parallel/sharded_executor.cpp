#include "nibble/parallel/sharded_executor.h"

#include <algorithm>
#include <numeric>

#include "nibble/core/train/telemetry/trace.h"
#include "nibble/parallel/data/assignment.h"
#include "nibble/parallel/data/tree_sum.h"

namespace nibble {

bool ShardedExecutor::collective() const {
  return has_rounds() || (parallel_.sharded() && parallel_.sharded()->gathers());
}

// The gradients of its one prediction are multiplied by 0, its loss is left out.
const Batch& ShardedExecutor::idle_batch() {
  if (!idle_batch_) {
    const Sample sample{.ids = {0, 0}, .labels = {kIgnoreLabel, 0}};
    idle_batch_ = make_batch(std::span(&sample, 1), rank().pool);
  }
  return *idle_batch_;
}

StepContext ShardedExecutor::idle_context(const StepWork& work) {
  StepContext context = work.context(rank(), idle_batch());
  context.balance = nullptr;
  return context;
}

void ShardedExecutor::idle_reference(const Objective& objective, const StepContext& step) {
  if (!objective.wants_reference()) return;
  StepContext base = step;
  base.training = base.adapters_enabled = false;
  base.row_keys = {};
  forward(idle_batch(), base, {});
}

void ShardedExecutor::idle_forward(const Objective& objective, const StepContext& step, bool training) {
  if (!collective()) return;
  if (serves()) {
    idle_reference(objective, step);
    forward(idle_batch(), step, {});
    return;
  }
  if (objective.wants_reference()) decoder().idle_forward(false);
  decoder().idle_forward(training);
}

int64_t ShardedExecutor::passes(const StepWork& work) const {
  const int64_t own = LocalExecutor::passes(work);
  return collective() ? std::max(own, passes_in_step()) : own;
}

void ShardedExecutor::forward_layers(const Batch* batch, const StepContext& step) {
  if (batch) return LocalExecutor::forward_layers(batch, step);
  if (serves()) return forward_layers(&idle_batch(), step);
  if (collective()) decoder().idle_forward(false, false);
}

double ShardedExecutor::microbatch(const StepWork& work, int64_t i) {
  if (work.microbatch(i) || !collective()) return LocalExecutor::microbatch(work, i);
  const TraceSpan span(work.options.trace, Phase::communication, "idle");
  if (serves()) {
    const StepContext context = idle_context(work);
    idle_reference(work.objective, context);
    decoder().loss_sum_and_gradients(idle_batch(), context, 0);
    return 0;
  }
  idle_forward(work.objective, {rank()}, true);
  decoder().idle_backward();
  return 0;
}

// ---- which microbatches ----

std::vector<int64_t> ShardedExecutor::begin_step(int64_t count) {
  step_count_ = count;
  const int ranks = data_ranks().size(), rank = data_ranks().rank();
  if (!has_rounds()) return whole_subtrees(count, ranks, rank);
  round_begins_ = round_begins(count, ranks, parallel_.options().gradient_sum);
  return in_rounds(round_begins_, ranks, rank);
}

int64_t ShardedExecutor::passes_in_step() const {
  if (has_rounds()) return static_cast<int64_t>(round_begins_.size()) - 1;
  const int ranks = data_ranks().size();
  size_t most = 0;
  for (int d = 0; d < ranks; ++d) most = std::max(most, whole_subtrees(step_count_, ranks, d).size());
  return static_cast<int64_t>(most);
}

std::vector<bool> ShardedExecutor::present(int64_t count) const {
  const int ranks = data_ranks().size();
  std::vector<bool> present;
  for (int d = 0; d < ranks; ++d) present.push_back(!whole_subtrees(count, ranks, d).empty());
  return present;
}

std::vector<bool> ShardedExecutor::contributing(std::vector<bool> present) const {
  const auto group = static_cast<size_t>(serves() ? parallel_.mesh().experts().size() : 1);
  for (size_t begin = 0; begin < present.size(); begin += group) {
    const auto first = present.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto end = first + static_cast<std::ptrdiff_t>(group);
    if (std::find(first, end, true) != end) std::fill(first, end, true);
  }
  return present;
}

// ---- sums ----

double ShardedExecutor::sum(const StepWork& work) {
  const Mesh& mesh = parallel_.mesh();
  if (mesh.data().size() == 1 && mesh.tensor().size() == 1) return LocalExecutor::sum(work);
  const double loss = has_rounds() ? sum_rounds(work) : accumulate_then_reduce(work);
  if (mesh.tensor().size() > 1) {
    parallel_.trained().visit_partial_gradients(
        [&](Tensor& gradient) { decoder().sharding()->all_reduce("sum partial gradients", gradient); });
  }
  return loss;
}

// Every rank adds up its own microbatches, then the ranks' sums are added.
double ShardedExecutor::accumulate_then_reduce(const StepWork& work) {
  const std::vector<bool> present = this->present(step_count_);
  const std::vector<Parameter*>& parameters = parallel_.decoder_parameters();
  const int64_t count = static_cast<int64_t>(work.microbatches.size());
  const double loss = sum_gradients(
      work.options.gradient_sum, parameters, count, [&](int64_t i) { return microbatch(work, i); }, rank().pool);
  for (int64_t i = count; collective() && i < passes_in_step(); ++i) microbatch(work, i);
  parallel_.trained().reduce_gradients(present);
  return all_reduce_tree(data_ranks(), "sum loss", loss, present);
}

// The ranks' gradients are added after every microbatch: block by block where only shards are kept.
double ShardedExecutor::sum_rounds(const StepWork& work) {
  const auto present_in = [&](int64_t round) {
    const auto begin = round_begins_.begin() + round;
    return present(begin[1] - begin[0]);
  };
  const bool at_once = work.options.gradient_sum == GradientSum::tree;  // else the copies are summed at the end
  const auto clear = [&] { zero_gradients(parallel_.decoder_parameters()); };
  const auto run = [&](int64_t round) {
    const std::vector<bool> present = present_in(round), contributing = this->contributing(present);
    if (sums_by_block()) {
      parallel_.sharded()->begin_round(contributing);
    } else if (at_once) {
      clear();
    }
    const double mine = microbatch(work, round);
    if (at_once) parallel_.trained().reduce_gradients(contributing);
    return all_reduce_tree(data_ranks(), "sum loss", mine, present);
  };
  if (!sums_by_block() && !at_once) clear();
  const double loss = sum_gradients(work.options.gradient_sum, work.parameters, passes_in_step(), run, rank().pool);
  if (!at_once) parallel_.trained().reduce_gradients(contributing(present_in(0)));
  return loss;
}

double ShardedExecutor::squares(const std::vector<Parameter*>&) const {
  if (!rank().pool.device().has_bytes()) return 0;
  std::vector<const Parameter*> counted;
  for (const Parameter* parameter : parallel_.decoder_parameters()) {
    if (parallel_.is_owner(*parameter)) counted.push_back(parameter);
  }
  const std::vector<double> terms = parallel_.trained().gradient_squares(counted);
  const double mine = std::accumulate(terms.begin(), terms.end(), 0.0);
  return parallel_.mesh().tensor().all_reduce_sum("gradient norm", mine);
}

}  // namespace nibble
