#include "nibble/recipes/plan/machine_speed.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/base/seconds_now.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/data/tree_sum.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/models/arithmetic.h"
#include "nibble/recipes/plan/speed_trial.h"

namespace nibble {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PartSeconds, forward, backward, forward_recompute, backward_recompute, embed,
                                   embed_backward, head, operation, draw, draw_once, zero_grad, accumulate, update)

namespace {

using nlohmann::json;

constexpr double kTrialSeconds = 3;
constexpr int kWarmest = 8, kFewest = 3, kMost = 40;  // steps of a trial
constexpr double kSettled = 0.97;                     // of the fastest step: the next is hardly any faster
constexpr int64_t kFloat = 4;                         // bytes
constexpr int64_t kSmallMessage = int64_t{1} << 12, kMediumMessage = int64_t{1} << 19, kLargeMessage = int64_t{1} << 24;

// Bytes exchanged: small, medium, and as many as the job has in a message, up to a size from where on they take time in
// proportion. So what is measured needs no more memory than what is run.
std::vector<int64_t> message_sizes(int64_t largest) {
  std::vector<int64_t> sizes = {kSmallMessage, kMediumMessage};
  if (largest > kMediumMessage) sizes.push_back(std::min(largest, kLargeMessage) / 64 * 64);
  return sizes;
}

// Of weights and gradients: those of a layer, or of a whole adapter.
int64_t largest_exchange(const PlanJob& job) {
  int64_t largest = job.everything ? 0 : kFloat * job.model.trained_values();
  for (const PlannedGroup& group : job.model.groups) {
    largest = std::max(largest, group.frozen_bytes + kFloat * group.trained);
  }
  return largest;
}

int64_t largest_passed_on(const PlanJob& job) {
  return kFloat * job.tokens * job.model.config.width * job.model.config.streams;
}

/// As many threads as a planned rank will have, as long as it lives; of the calling thread.
class ThreadsOfTrial {
 public:
  explicit ThreadsOfTrial(int count) { set_threads(count); }
  ~ThreadsOfTrial() { set_threads(before_); }
  ThreadsOfTrial(const ThreadsOfTrial&) = delete;
  ThreadsOfTrial& operator=(const ThreadsOfTrial&) = delete;

 private:
  const int before_ = threads();
};

// Times without what comes from sharing cores.
void speed_up(PartSeconds& seconds, double times) {
  for (std::vector<double>* of :
       {&seconds.forward, &seconds.backward, &seconds.forward_recompute, &seconds.backward_recompute, &seconds.draw}) {
    for (double& one : *of) one /= times;
  }
  for (double* one : {&seconds.embed, &seconds.embed_backward, &seconds.head, &seconds.zero_grad, &seconds.accumulate,
                      &seconds.update, &seconds.operation, &seconds.draw_once}) {
    *one /= times;
  }
}

// Where the run will keep its activations, or the nearest directory above.
std::string directory_of_activations(const Recipe& recipe) {
  const std::string& other = recipe.parallel.offload_directory;
  return nearest_existing(other.empty() ? recipe.output.dir : other).string();
}

// The usual seconds of the trial's parts on a rank that has one. Steps until they get no faster come first: the system
// may take its time to hand out memory.
PartSeconds measure_steps(SpeedTrial* trial, bool large, bool draws, int at_work, Communicator& ranks) {
  double best = std::numeric_limits<double>::infinity();
  for (int warm = 0; warm < kWarmest; ++warm) {
    const double each = ranks.all_reduce_sum("trial", trial ? trial->step() : 0) / at_work;
    const bool settled = each > kSettled * best;
    best = std::min(best, each);
    if (settled) break;
  }
  if (trial && draws) trial->draw();
  const int steps = large ? kFewest : std::clamp(static_cast<int>(kTrialSeconds / best), kFewest, kMost);
  if (trial) trial->forget();
  for (int step = 0; step < steps && trial; ++step) trial->step();
  return trial ? trial->seconds() : PartSeconds();
}

// The seconds of a pass on the first rank, with others at work beside it.
void measure_part(const Recipe& recipe, const PlanJob& job, int tensor, MachineSpeed& speed, Communicator& ranks) {
  const int cores = std::max(1, static_cast<int>(speed.cores) / speed.threads);
  const int groups = std::clamp(cores / tensor, 1, std::max(1, ranks.size() / tensor)), at_work = groups * tensor;
  const bool takes_part = ranks.rank() < at_work;
  const auto tp_ranks = ranks.split(takes_part ? ranks.rank() / tensor : groups, ranks.rank());
  const auto side_by_side = ranks.split(takes_part ? 0 : 1, ranks.rank());
  const bool gathers = recipe.parallel.shard > 1 && recipe.parallel.zero >= 3 && at_work > tensor;
  std::optional<SpeedTrial> trial;
  if (takes_part) {
    trial.emplace(recipe, job, *tp_ranks, gathers ? side_by_side.get() : nullptr, speed.threads, at_work, ranks.size());
  }
  const auto measure = [&] {
    const bool large = SpeedTrial::is_large(job), draws = static_cast<bool>(job.block.draw);
    PartSeconds result = measure_steps(trial ? &*trial : nullptr, large, draws, at_work, ranks);
    ranks.barrier("trial");
    speed_up(result, std::max(1.0, at_work * speed.threads / speed.cores));
    return result;
  };
  speed.parts[tensor] = measure();
  if (!recipe.parallel.offload_activations) return;
  const std::string directory = directory_of_activations(recipe);
  if (trial) trial->keep_in_file(directory, Recompute::block);
  const PartSeconds inputs = measure();
  if (trial) trial->keep_in_file(directory, Recompute::none);
  PartSeconds& offloaded = speed.offloaded[tensor] = measure();
  offloaded.forward_recompute = inputs.forward_recompute;
  offloaded.backward_recompute = inputs.backward_recompute;
}

/// Exchanges that all ranks do in turns, round after round, so that what disturbs one for a moment does not decide.
class Exchanges {
 public:
  explicit Exchanges(Communicator& all) : all_(all) {}

  void add(int64_t bytes, std::function<void()> run, ByteCost& into) {
    kinds_.push_back({bytes, std::move(run), &into, {}});
  }

  /// Sets the costs: medians.
  void measure() {
    for (int round = -1; round < kRounds; ++round) {
      for (Kind& kind : kinds_) {
        if (kind.bytes <= kSmallMessage) all_.barrier("trial");
        const double begin = seconds_now();
        kind.run();
        if (round >= 0) kind.taken.push_back(seconds_now() - begin);
      }
    }
    std::map<ByteCost*, std::vector<std::pair<double, double>>> points;
    for (Kind& kind : kinds_) {
      std::ranges::sort(kind.taken);
      points[kind.into].emplace_back(static_cast<double>(kind.bytes), kind.taken[kRounds / 2]);
    }
    for (auto& [cost, of] : points) *cost = ByteCost(std::move(of));
  }

 private:
  static constexpr int kRounds = 11;
  struct Kind {
    int64_t bytes;
    std::function<void()> run;
    ByteCost* into;
    std::vector<double> taken;
  };
  Communicator& all_;
  std::vector<Kind> kinds_;
};

// In groups of neighbours, all groups at the same time.
GroupExchanges measure_exchanges(Communicator& group, Communicator& all, const Wire& wire, int64_t largest) {
  MemoryPool pool;
  GroupExchanges result;
  Exchanges exchanges(all);
  const std::vector<bool> present(static_cast<size_t>(group.size()), true);
  const auto me = static_cast<size_t>(group.rank());
  for (const int64_t bytes : message_sizes(largest)) {
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    std::vector<int64_t> bounds;
    std::vector<size_t> byte_bounds;
    for (int64_t r = 0; r <= group.size(); ++r) {
      bounds.push_back(count * r / group.size());
      byte_bounds.push_back(static_cast<size_t>(bounds.back()) * sizeof(float));
    }
    Tensor values = Tensor::zeros(pool, {count}, DType::f32, "exchanged values");
    Tensor mine = Tensor::zeros(pool, {bounds[me + 1] - bounds[me]}, DType::f32, "exchanged values");
    exchanges.add(
        bytes, [&, values]() mutable { all_reduce_tree(group, "trial", values, present, wire, pool); }, result.sum);
    exchanges.add(
        bytes,
        [&, values, mine, bounds]() mutable {
          reduce_scatter_tree(group, "trial", values, bounds, mine, present, wire, pool);
        },
        result.reduce);
    exchanges.add(
        bytes, [&, values, mine, byte_bounds]() mutable { group.all_gather("trial", mine, values, byte_bounds); },
        result.gather);
  }
  exchanges.measure();
  return result;
}

// There and back, between neighbours two by two: twice what one way takes.
ByteCost measure_pass_on(Communicator& all, int64_t largest) {
  const auto pair = all.split(all.rank() / 2, all.rank());  // ends with the buffer of its last message
  MemoryPool pool;
  ByteCost twice;
  Exchanges exchanges(all);
  for (const int64_t bytes : message_sizes(largest)) {
    const Tensor there = Tensor::zeros(pool, {bytes}, DType::u8, "exchanged values");
    Tensor here = Tensor::zeros(pool, {bytes}, DType::u8, "exchanged values");
    exchanges.add(
        bytes,
        [&pair, there, here]() mutable {
          if (pair->size() == 1) return;
          if (pair->rank() == 0) pair->send("trial", there, 1);
          pair->receive("trial", here, 1 - pair->rank());
          if (pair->rank() == 1) pair->send("trial", there, 0);
        },
        twice);
  }
  exchanges.measure();
  pair->barrier("trial");
  std::vector<std::pair<double, double>> points = twice.points();
  for (auto& [bytes, seconds] : points) seconds /= 2;
  return ByteCost(std::move(points));
}

json cost_json(const ByteCost& cost) { return cost.points(); }

ByteCost cost_from(const json& values) { return ByteCost(values.get<std::vector<std::pair<double, double>>>()); }

json parts_json(const std::map<int64_t, PartSeconds>& parts) {
  json values = json::array();
  for (const auto& [tensor, of] : parts) {
    values.push_back(of);
    values.back()["tensor"] = tensor;
  }
  return values;
}

std::map<int64_t, PartSeconds> parts_from(const json& values) {
  std::map<int64_t, PartSeconds> parts;
  for (const json& of : values) parts[of.at("tensor").get<int64_t>()] = of;
  return parts;
}

}  // namespace

MachineSpeed measure_machine(const Recipe& recipe, const PlanJob& job, std::span<const int64_t> tensors, int threads,
                             Communicator& ranks) {
  const ThreadsOfTrial limit(threads);
  use_arithmetic(recipe.model);
  MachineSpeed speed;
  speed.cores = std::max(1, this_machine().usable_cores());
  speed.threads = threads;
  for (const int64_t tensor : tensors) {
    NIBBLE_CHECK(tensor <= ranks.size(), "ranks for all parts of a layer");
    measure_part(recipe, job, static_cast<int>(tensor), speed, ranks);
  }
  const Wire wire{recipe.parallel.wire_dtype};
  for (int size = 2; size <= ranks.size(); ++size) {
    if (ranks.size() % size != 0) continue;
    const auto group = ranks.split(ranks.rank() / size, ranks.rank());
    speed.exchange[size] = measure_exchanges(*group, ranks, wire, largest_exchange(job));
  }
  if (ranks.size() > 1) speed.pass_on = measure_pass_on(ranks, largest_passed_on(job));
  return machine_speed_from_json(ranks.broadcast_text("trial", to_json(speed), 0));
}

MachineSpeed measure_machine(const Recipe& recipe, const PlanJob& job, std::span<const int64_t> tensors, int threads,
                             int ranks) {
  MachineSpeed measured;
  if (ranks == 1) {
    SelfComm alone;
    return measure_machine(recipe, job, tensors, threads, alone);
  }
  run_on_threads(ranks, [&](Communicator& comm) {
    const MachineSpeed speed = measure_machine(recipe, job, tensors, threads, comm);
    if (comm.rank() == 0) measured = speed;
  });
  return measured;
}

std::string to_json(const MachineSpeed& speed) {
  json values = {{"cores", speed.cores}, {"threads", speed.threads}, {"pass_on", cost_json(speed.pass_on)}};
  values["parts"] = parts_json(speed.parts);
  values["offloaded"] = parts_json(speed.offloaded);
  values["exchange"] = json::array();
  for (const auto& [ranks, of] : speed.exchange) {
    values["exchange"].push_back({{"ranks", ranks},
                                  {"sum", cost_json(of.sum)},
                                  {"reduce", cost_json(of.reduce)},
                                  {"gather", cost_json(of.gather)}});
  }
  return values.dump();
}

MachineSpeed machine_speed_from_json(std::string_view text) {
  const json values = json::parse(text);
  MachineSpeed speed;
  speed.cores = values.at("cores");
  speed.threads = values.at("threads");
  speed.pass_on = cost_from(values.at("pass_on"));
  speed.parts = parts_from(values.at("parts"));
  speed.offloaded = parts_from(values.at("offloaded"));
  for (const json& of : values.at("exchange")) {
    speed.exchange[of.at("ranks").get<int64_t>()] = {cost_from(of.at("sum")), cost_from(of.at("reduce")),
                                                     cost_from(of.at("gather"))};
  }
  return speed;
}

}  // namespace nibble
