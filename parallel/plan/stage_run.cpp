#include "nibble/parallel/plan/stage_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "nibble/core/objectives/ppo.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/core/tensor/spill_file.h"
#include "nibble/core/train/checkpoint/checkpoint_writer.h"
#include "nibble/core/train/train_step.h"
#include "nibble/parallel/comm/meta_comm.h"
#include "nibble/parallel/experts/expert_parallel.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/pipeline/pipelined_executor.h"
#include "nibble/parallel/plan/sampled_drawing.h"
#include "nibble/parallel/tensor/tensor_parallel.h"

namespace nibble::detail {

namespace {

constexpr int64_t kMostBatches = 4096;  // of a step, whose ids are counted

/// Notes the peak of every moment, and what is done outside layers.
class Moments final : public BlockHooks {
 public:
  Moments(StageRun& run, MemoryPool& pool, const MetaDevice& device, int64_t layers)
      : run_(run), pool_(pool), device_(device), layers_(layers) {}

  void set_inner(BlockHooks* inner) { inner_ = inner; }
  void enter(Moment next) {
    StageRun::Peak& peak = run_.peaks[static_cast<size_t>(now_)];
    const MemoryPool::Peak most = pool_.take_peak();
    resident_ = std::max(resident_, most.resident);
    if (most.split.total() > peak.split.total()) {
      peak.split = most.split;
      peak.mapped = most.mapped;
    }
    peak.pool = std::max(peak.pool, static_cast<int64_t>(pool_.peak()));
    pool_.reset_peak();
    now_ = next;
  }

  void end() {
    enter(Moment::between);
    run_.margin = resident_ - run_.largest().split.total();
  }

  void before_forward(int64_t layer) override {
    begin(layer, Moment::forward, StepPart::forward, &BlockHooks::before_forward);
  }
  void after_forward(int64_t layer) override { leave(layer, &BlockHooks::after_forward); }
  void before_backward(int64_t layer) override {
    begin(layer, Moment::backward, StepPart::backward, &BlockHooks::before_backward);
  }
  void after_backward(int64_t layer) override { leave(layer, &BlockHooks::after_backward); }

  MetaComm::Counter counter_of(MeshAxis axis) {
    return [this, axis](const std::string& operation, CommKind kind, double bytes) {
      StepCost::Amount& amount = cost_.exchanges[{axis, part_, operation, kind}];
      ++amount.messages;
      amount.bytes += bytes;
    };
  }
  /// What was counted since the last call.
  StepCost take() {
    const StepCost now = counted();
    cost_.zeroed = now.zeroed - taken_.zeroed - in_layers_.zeroed;
    cost_.copied = now.copied - taken_.copied - in_layers_.copied;
    cost_.flops = now.flops - taken_.flops;
    taken_ = now;
    in_layers_ = {};
    return std::exchange(cost_, {});
  }

 private:
  using Call = void (BlockHooks::*)(int64_t);
  StepCost counted() const {
    return {
        {}, device_.work(ops::Operation::zero).bytes, device_.work(ops::Operation::copy).bytes, device_.total().flops};
  }
  void begin(int64_t layer, Moment moment, StepPart part, Call inner) {
    enter(layer < 0 ? Moment::embedding : layer == layers_ ? Moment::head : moment);
    part_ = part;
    if (inner_) (inner_->*inner)(layer);
    layer_ = counted();
  }
  void leave(int64_t layer, Call inner) {
    in_layers_ = StepCost::sum(1, in_layers_, 1, StepCost::sum(1, counted(), -1, layer_));
    if (inner_) (inner_->*inner)(layer);
    part_ = StepPart::between;
    enter(Moment::between);
  }

  StageRun& run_;
  MemoryPool& pool_;
  const MetaDevice& device_;
  int64_t layers_;
  BlockHooks* inner_ = nullptr;
  Moment now_ = Moment::before;
  StepPart part_ = StepPart::between;
  int64_t resident_ = 0;
  StepCost cost_, taken_, in_layers_, layer_;  // counted by the device: when taken, in layers, as the layer began
};

/// The costs of a step of so many microbatches, and of one that has one less.
StepCosts costs_of(const StepCost& step, const StepCost& less, int64_t microbatches) {
  StepCosts costs{.pass = StepCost::sum(1, step, -1, less)};
  if (microbatches == 1) {
    costs.pass = step;
    std::erase_if(costs.pass.exchanges, [](const auto& entry) { return entry.first.part == StepPart::between; });
    costs.pass.zeroed = costs.pass.copied = 0;
  }
  costs.once = StepCost::sum(1, step, -static_cast<double>(microbatches), costs.pass);
  return costs;
}

/// The rank's place, in a pipeline no longer than its schedule needs for so many microbatches in flight.
struct Place {
  int stages = 1, stage = 0;
  int64_t microbatches = 1;
};

Place place_of(const PlanJob& job, const DecoderConfig& config, const PlanLayout& layout, const StageRank& rank) {
  const int64_t count = microbatches_of_rank(job, layout);
  // One more shows what a sum of several takes, and a schedule that is full.
  Place place{.microbatches = std::min(count, rank.in_flight + 1)};
  if (layout.mesh.pipeline == 1) return place;
  place.stage = rank.layers.begin > 0 ? 1 : 0;
  const bool alternates = layout.schedule == PipelineSchedule::one_f_one_b;
  const int above = rank.layers.end == config.layers ? 0 : alternates ? static_cast<int>(rank.in_flight) - 1 : 1;
  place.stages = place.stage + 1 + std::max(above, rank.layers.end == config.layers ? 0 : 1);
  if (layout.schedule == PipelineSchedule::gpipe) place.microbatches = rank.in_flight;
  return place;
}

ParallelOptions options_of(const PlanJob& job, const PlanLayout& layout) {
  ParallelOptions options;
  options.level = static_cast<ShardLevel>(layout.zero);
  options.shard_trainable = job.everything || layout.shard_adapters;
  options.reshard_after_forward = layout.reshard_after_forward;
  options.prefetch = layout.prefetch;
  options.wire.dtype = layout.wire_dtype;
  options.gradient_sum = job.gradient_sum;
  return options;
}

std::vector<NamedTensor> values_of(const std::vector<Parameter*>& parameters) {
  std::vector<NamedTensor> values;
  for (const Parameter* parameter : parameters) values.push_back({parameter->name, parameter->value});
  return values;
}

MeshGroups groups_of(const MeshShape& shape, const Place& place, int shard, Moments& moments) {
  const auto group = [&](int rank, int64_t size, MeshAxis axis) {
    return std::make_unique<MetaComm>(rank, static_cast<int>(size), moments.counter_of(axis));
  };
  return {group(place.stage, shape.pipeline, MeshAxis::pipeline),
          group(0, shape.replicate, MeshAxis::replicate),
          group(shard, shape.shard, MeshAxis::shard),
          group(shard, shape.data(), MeshAxis::data),
          group(static_cast<int>(shape.tensor) - 1, shape.tensor, MeshAxis::tensor),
          group(static_cast<int>(shape.experts) - 1, shape.experts, MeshAxis::experts),  // has most of them
          group(0, shape.data() / shape.experts, MeshAxis::expert_replicas)};
}

/// The value model of PPO, which learns from every step after the policy.
struct ValueRun {
  ValueRun(const PlanJob& job, const DecoderConfig& config, const PlanLayout& layout, const StageRank& stage,
           const Mesh& mesh, RankContext& rank)
      : model(job.make_value(config, stage.layers, nullptr, nullptr, rank)),
        parallel(parallelize(model, job.everything, options_of(job, layout), mesh, rank)),
        optimizer(parallel.parameters(), {.kind = job.optimizer}, rank.pool, layout.mesh.ranks() > 1,
                  [this](const Parameter& part) { return parallel.global_shape(part); }),
        executor(make_executor(model, parallel, {layout.schedule, 0}, rank)),
        objective(job.objective) {
    model.recompute_below(stage.layers.begin + stage.recomputed);
  }
  Decoder model;
  ParallelModel parallel;
  Optimizer optimizer;
  std::unique_ptr<StepExecutor> executor;
  PpoValue objective;
};

/// The reference that answers are compared with.
struct ReferenceRun {
  ReferenceRun(const PlanJob& job, const DecoderConfig& config, const PlanLayout& layout, const StageRank& stage,
               const LayerSharding* sharding, const Mesh& mesh, RankContext& rank)
      : model(job.make_reference(config, stage.layers, sharding, nullptr, rank)),
        parallel(parallelize(model, false, options_of(job, layout), mesh, rank)),
        executor(make_executor(model, parallel, {layout.schedule, 0}, rank)) {}
  Decoder model;
  ParallelModel parallel;
  std::unique_ptr<StepExecutor> executor;
};

}  // namespace

const StageRun::Peak& StageRun::largest() const {
  return *std::ranges::max_element(peaks, {}, [](const Peak& peak) { return peak.split.total(); });
}

PlannedRuns& runs_of(const PlanJob& job) {
  if (!job.runs) job.runs = std::make_shared<PlannedRuns>();
  return *job.runs;
}

SampledJob sample_job(const PlanJob& job, int64_t most) {
  if (job.tokens <= most) return {job, 1};
  SampledJob found{job, 1};
  const int64_t documents = std::max<int64_t>(1, most / job.document_length);
  found.job.answers_together = std::min(job.answers_together, documents);
  const int64_t together = is_pairwise(job.objective.type) ? 2 : std::max<int64_t>(1, found.job.answers_together);
  const int64_t unit = job.document_length * together;
  found.job.runs = {};
  found.job.tokens = std::min(job.tokens, std::max<int64_t>(1, most / unit) * unit);
  found.times = static_cast<double>(job.tokens) / static_cast<double>(found.job.tokens);
  return found;
}

namespace {

StageRun run_all(const PlanJob& job, const DecoderConfig& config, const PlanLayout& layout, const StageRank& stage) {
  StageRun run;
  MetaDevice device;
  MemoryPool pool(0, device);
  device.on_mapped([&](int64_t more) { pool.count_mapped(more); });
  MetaComm world(0, static_cast<int>(layout.mesh.ranks()));
  RankContext rank{world, pool, stage.threads, 0};
  const Place place = place_of(job, config, layout, stage);
  MeshShape shape = layout.mesh;
  shape.pipeline = place.stages;
  Moments moments(run, pool, device, config.layers);
  const Mesh mesh(shape, world, groups_of(shape, place, static_cast<int>(stage.shard), moments));
  const std::unique_ptr<LayerSharding> sharding = tensor_parallel(config, mesh.tensor(), pool);
  const std::unique_ptr<ExpertExchange> experts = expert_parallel(config, mesh.experts(), job.gradient_sum, pool);

  std::optional<Decoder> teacher;
  if (job.make_teacher && stage.layers.end == config.layers) teacher = job.make_teacher(rank);
  Decoder model = job.make_model(config, stage.layers, sharding.get(), experts.get(), rank);
  model.recompute_below(stage.layers.begin + stage.recomputed);
  std::optional<SpillFile> spill;
  if (layout.offload) model.set_spill(&spill.emplace("", 0, pool));
  ParallelModel parallel = parallelize(model, job.everything, options_of(job, layout), mesh, rank);
  Optimizer optimizer(parallel.parameters(), {.kind = job.optimizer}, pool, layout.mesh.ranks() > 1,
                      [&](const Parameter& part) { return parallel.global_shape(part); });
  const std::unique_ptr<StepExecutor> executor = make_executor(model, parallel, {layout.schedule, 0}, rank);
  std::optional<ValueRun> value;
  if (job.make_value) value.emplace(job, config, layout, stage, mesh, rank);
  std::optional<ReferenceRun> reference;
  if (job.make_reference) reference.emplace(job, config, layout, stage, sharding.get(), mesh, rank);
  moments.set_inner(parallel.sharded());
  model.set_hooks(&moments);

  // What the microbatches hold that are not run: ids, and sums of some.
  const int64_t count = microbatches_of_rank(job, layout);
  const Batch spare = planned_batch(job, config, pool);
  std::vector<Tensor> held;
  const auto batch_bytes = static_cast<int64_t>(spare.ids.bytes() + spare.targets.bytes() + spare.positions.bytes() +
                                                spare.row_keys.bytes());
  const int64_t others = std::min(count, kMostBatches) - place.microbatches;
  if (others > 0) held.push_back(Tensor::empty(pool, {others * batch_bytes}, DType::u8));
  const bool rounds = sums_in_rounds(job, layout);
  const int64_t sums = partial_sums(job.gradient_sum, count) - partial_sums(job.gradient_sum, place.microbatches);
  for (int64_t i = 0; i < sums; ++i) {
    const MemoryPool::Use use(pool, MemoryUse::gradients);
    for (const Parameter* one : rounds ? parallel.parameters() : trainable_parameters(model)) {
      held.push_back(Tensor::empty(pool, one->value.shape(), DType::f32));
    }
  }

  const ObjectiveOptions& asked = job.objective;
  const bool adapter_off = asked.reference == "adapter_off" && !asked.precompute_ref_log_probs;
  const std::unique_ptr<Objective> objective = make_objective(asked, adapter_off, teacher ? &*teacher : nullptr);
  CheckpointWriter writer("", pool);
  const StepOptions options{.gradient_sum = job.gradient_sum, .compute_dtype = job.compute_dtype};
  moments.enter(Moment::between);
  std::vector<Decoder> scorers;
  const auto make_block = [&] {
    moments.take();
    run.costs.draw_passes = 0;
    const auto go_on = [&] {
      ++run.costs.draw_passes;
      return true;
    };
    const auto sampled = [&](StepExecutor& by, Decoder& of) {
      const auto look_up = [&](const Batch& batch) {
        const bool releases = &of == &model && stage.recomputed > 0 && batch.ids.numel() >= kMinTokensToUnmap;
        of.visit_embeddings([&](Embedding& one) {
          const Tensor& table = one.table().value;
          if (!releases && table.has_bytes()) device.use_rows(table, batch.ids.numel());
        });
      };
      return SampledDrawing(
          by, job.block.longest, [&] { return moments.take(); }, look_up);
    };
    SampledDrawing by_model = sampled(*executor, model);
    const double drawn = job.block.draw ? job.block.draw(model, by_model, go_on) : 1;
    const StepCost drawing = by_model.cost();
    run.costs.draw_flops = job.block.share * drawn * drawing.flops;
    run.costs.draw_passes *= job.block.share * drawn;
    double by_teacher = 0;
    if (teacher && job.block.draw_by_teacher) {
      LocalExecutor alone(*teacher, rank);
      SampledDrawing by_it = sampled(alone, *teacher);
      job.block.draw_by_teacher(*teacher, by_it);
      by_teacher = (1 - job.block.share) * drawn * by_it.cost().flops;
    }
    const bool asks = stage.layers.begin == 0 && stage.shard == 0;
    if (asks && scorers.empty()) {
      for (const auto& make : job.block.scorers) scorers.push_back(make(rank));
    }
    StepExecutor* const of_value = value ? value->executor.get() : nullptr;
    StepExecutor* const of_reference = reference ? reference->executor.get() : nullptr;
    const double judged = job.block.judge ? job.block.judge(*executor, of_value, of_reference, scorers) : 1;
    const StepCost judging = moments.take();
    run.costs.judge_flops = judged * judging.flops + by_teacher;
    const auto steps = static_cast<double>(job.block.steps);
    run.costs.block = StepCost::sum(job.block.share * drawn / steps, drawing, judged / steps, judging);
    run.costs.block.flops = run.costs.block.zeroed = run.costs.block.copied = 0;
  };
  const auto train = [&](int64_t passes) {
    std::vector<Batch> microbatches;
    for (const int64_t i : executor->begin_step(passes * layout.mesh.data())) {
      microbatches.push_back(i == kIdle ? Batch() : spare);
    }
    moments.take();
    train_step(*executor, microbatches, *objective, optimizer, options);
    if (value) {
      value->executor->begin_step(passes * layout.mesh.data());
      train_step(*value->executor, microbatches, value->objective, value->optimizer, options);
    }
    return moments.take();
  };
  StepCost whole;
  for (int step = 0; step < 2; ++step) {
    device.forget_use();
    if (step == 0) make_block();
    whole = train(place.microbatches);
    device.fill_tables();
    if (step > 0 || !job.saves_midway || layout.mesh.ranks() > 1) continue;
    std::vector<CheckpointSlice> values, states;
    const auto add = [&](const ParallelModel& of, const Optimizer& trained) {
      const Slicer slices = of.slicer();
      std::ranges::move(slices(values_of(trained.parameters())), std::back_inserter(values));
      std::ranges::move(slices(trained.state()), std::back_inserter(states));
    };
    add(parallel, optimizer);
    if (value) add(value->parallel, value->optimizer);
    writer.copy(values, states);
  }
  // The first rank has all of an adapter when it is written.
  std::optional<Tensor> adapter;
  const bool apart = layout.mesh.pipeline > 1 || layout.mesh.tensor > 1 || parallel.trains_spread_experts() ||
                     (layout.mesh.shard > 1 && layout.shard_adapters);
  if (!job.everything && stage.layers.begin == 0 && apart) {
    const MemoryPool::Use use(pool, MemoryUse::checkpoint);
    adapter = Tensor::empty(pool, {job.model.trained_values()}, DType::f32);
  }
  moments.end();
  run.used_maps = device.used_bytes();
  if (spill) {
    run.file = spill->file_bytes();
    run.written = spill->written_bytes() / (2 * place.microbatches) * count;
  }
  const StepCost less = place.microbatches > 1 ? train(place.microbatches - 1) : StepCost();
  const StepCosts of_steps = costs_of(whole, less, place.microbatches);
  run.costs.pass = of_steps.pass;
  run.costs.once = of_steps.once;
  run.costs.updated = static_cast<double>(optimizer.size());
  model.set_hooks(nullptr);
  return run;
}

// Where the two have their peaks at different places, the larger one's shares are kept.
MemorySplit grown(const MemorySplit& from, const MemorySplit& to, double times) {
  const double total = static_cast<double>(to.total()) + times * static_cast<double>(to.total() - from.total());
  MemorySplit line, scaled;
  bool falls = false;
  for (size_t use = 0; use < kMemoryUses; ++use) {
    const int64_t a = from.bytes[use], b = to.bytes[use];
    line.bytes[use] = b + static_cast<int64_t>(times * static_cast<double>(b - a));
    falls = falls || line.bytes[use] < 0;
    const double share = static_cast<double>(b) / static_cast<double>(std::max<int64_t>(1, to.total()));
    scaled.bytes[use] = static_cast<int64_t>(share * total);
  }
  return falls ? scaled : line;
}

}  // namespace

StageRun grown(const StageRun& from, const StageRun& to, double times) {
  const auto line = [times](int64_t a, int64_t b) {
    return std::max<int64_t>(0, b + static_cast<int64_t>(times * static_cast<double>(b - a)));
  };
  StageRun result;
  for (size_t m = 0; m < kMoments; ++m) {
    const StageRun::Peak &a = from.peaks[m], &b = to.peaks[m];
    result.peaks[m].split = grown(a.split, b.split, times);
    result.peaks[m].mapped = line(a.mapped, b.mapped);
    result.peaks[m].pool = line(a.pool, b.pool);
  }
  result.margin = to.margin;
  result.used_maps = line(from.used_maps, to.used_maps);
  result.file = line(from.file, to.file);
  result.written = line(from.written, to.written);
  const auto costs = [times](const StepCost& a, const StepCost& b) { return StepCost::sum(1 + times, b, -times, a); };
  result.costs = {costs(from.costs.pass, to.costs.pass), costs(from.costs.once, to.costs.once),
                  costs(from.costs.block, to.costs.block)};
  for (double StepCosts::*of :
       {&StepCosts::updated, &StepCosts::draw_passes, &StepCosts::draw_flops, &StepCosts::judge_flops}) {
    result.costs.*of = to.costs.*of + times * (to.costs.*of - from.costs.*of);
  }
  return result;
}

StageRun run_stage(const PlanJob& job, const DecoderConfig& config, const PlanLayout& layout, const StageRank& stage) {
  const PlanJob few = sample_job(job, kMostTokens / 2).job, more = sample_job(job, 2 * few.tokens).job;
  if (job.tokens <= kMostTokens || more.tokens <= few.tokens) return run_all(job, config, layout, stage);
  return grown(run_all(few, config, layout, stage), run_all(more, config, layout, stage),
               static_cast<double>(job.tokens - more.tokens) / static_cast<double>(more.tokens - few.tokens));
}

}  // namespace nibble::detail
