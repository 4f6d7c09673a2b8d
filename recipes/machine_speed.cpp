#include "nibble/recipes/machine_speed.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "nibble/adapters/attach.h"
#include "nibble/core/base/machine.h"
#include "nibble/core/base/peak_flops.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/family_names.h"
#include "nibble/core/models/load.h"
#include "nibble/core/train/train_step.h"
#include "nibble/quant/codec.h"
#include "nibble/quant/nf4_weight.h"

namespace nibble {

namespace {

constexpr int64_t kLayerWeights = int64_t{16} << 20, kHeadWeights = int64_t{16} << 20;
constexpr double kOperations = 2e11;  // of one trial pass, about

using Clock = std::chrono::steady_clock;
double seconds_now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

/// Times of the parts of a pass.
class Stopwatch final : public BlockHooks {
 public:
  double forward = 0, backward = 0, head = 0;

  void before_forward(int64_t) override { start_ = seconds_now(); }
  void after_forward(int64_t layer) override {
    if (layer == 0) forward += seconds_now() - start_;
  }
  void before_backward(int64_t) override { start_ = seconds_now(); }
  void after_backward(int64_t layer) override {
    if (layer >= 0) (layer == 0 ? backward : head) += seconds_now() - start_;
  }

 private:
  double start_ = 0;
};

// One layer of the model, of the same width, with as many heads and hidden units as fit the trial.
DecoderConfig trial_config(const PlanJob& job) {
  DecoderConfig config = job.model.config;
  config.layers = 1;
  config.layer.resize(1);
  int64_t weights = job.model.layers.front().weights();
  while (weights > kLayerWeights && config.heads % 2 == 0 && config.mlp_width % 2 == 0 &&
         (config.kv_heads == 1 || config.kv_heads % 2 == 0) &&
         config.heads / 2 % std::max<int64_t>(1, config.kv_heads / 2) == 0) {
    config.heads /= 2;
    config.kv_heads = std::max<int64_t>(1, config.kv_heads / 2);
    config.qkv_groups =
        config.qkv_groups > 1 ? config.kv_heads == 1 ? 1 : std::max<int64_t>(1, config.qkv_groups / 2) : 1;
    config.mlp_width /= 2;
    weights /= 2;
  }
  config.alibi = Alibi::none;
  config.vocab_size = std::min(config.vocab_size, std::max<int64_t>(2048, kHeadWeights / config.embedding_width));
  return config;
}

std::unique_ptr<LinearWeight> packed_zeros(const std::string& name, const Shape& shape, MemoryPool& pool) {
  QuantizedMatrix matrix = plan_quantized(shape, DType::bf16, {}, 0);
  for (Tensor* part :
       {&matrix.packed, &matrix.absmax, &matrix.absmax_codes, &matrix.nested_absmax, &matrix.nested_map}) {
    if (part->defined() && !part->has_bytes()) *part = Tensor::zeros(pool, part->shape(), part->dtype(), name);
  }
  return std::make_unique<Nf4Weight>(name, matrix);
}

Decoder trial_model(const Recipe& recipe, const PlanJob& job, const DecoderConfig& config, RankContext& rank) {
  const DType dtype = job.everything ? DType::f32 : DType::bf16;
  const ParameterMaker parameter = [&](const std::string& name, const Shape& shape) {
    const DType held = shape.size() == 1 || is_head_norm(config.names, name) ? DType::f32 : dtype;
    return std::make_shared<Parameter>(
        Parameter{.name = name, .value = Tensor::zeros(rank.pool, shape, held, name), .gradient = {}});
  };
  const std::vector<PlannedLinear>& linears = job.model.layers.front().linears;
  const bool packed = std::ranges::any_of(linears, &PlannedLinear::packed);
  const LinearWeightMaker linear = [&](const std::string& module, const Shape& shape) -> std::unique_ptr<LinearWeight> {
    if (packed && module != config.names.head) return packed_zeros(module + ".weight", shape, rank.pool);
    return std::make_unique<DenseWeight>(parameter(module + ".weight", shape));
  };
  Decoder model(config, linear, parameter, rank);
  if (job.everything) {
    make_trainable(model, rank);
    return model;
  }
  AdapterOptions options = recipe.adapter->options;
  options.init_lora_weights = LoraInit::standard;
  options.layers_to_transform.reset();
  options.trainable_token_indices.clear();
  options.modules_to_save.clear();
  attach_adapter(model, options, rank);
  return model;
}

Batch trial_batch(int64_t tokens, int64_t document, int64_t vocabulary, MemoryPool& pool) {
  std::vector<Sample> samples;
  for (int64_t begin = 0; begin < tokens; begin += document) {
    Sample sample;
    for (int64_t t = begin; t < std::min(tokens, begin + document); ++t) {
      sample.ids.push_back(static_cast<int32_t>(t * 7919 % vocabulary));
    }
    sample.labels = sample.ids;
    samples.push_back(std::move(sample));
  }
  return make_batch(samples, pool);
}

}  // namespace

PassSeconds measure_passes(const Recipe& recipe, const PlanJob& job, int threads) {
  const DecoderConfig config = trial_config(job);
  MemoryPool pool;
  SelfComm alone;
  RankContext rank{alone, pool, threads, 0};
  Decoder model = trial_model(recipe, job, config, rank);
  double weights = 0;
  model.visit_linears(
      [&](Linear& linear) { weights += static_cast<double>(linear.in_features() * linear.out_features()); });
  const double wanted = std::clamp(kOperations / (6 * weights), 64.0, static_cast<double>(job.tokens));
  const int64_t tokens = std::min(job.tokens, static_cast<int64_t>(wanted));
  const Batch batch = trial_batch(tokens, std::min(tokens, job.document_length), config.vocab_size, pool);
  Stopwatch watch;
  model.set_hooks(&watch);
  Optimizer optimizer(trainable_parameters(model), recipe.optimizer.options(), pool);
  StepOptions options;
  options.gradient_sum = job.gradient_sum;
  options.compute_dtype = job.compute_dtype;

  Stopwatch best;
  double update = 0, spent = 0;
  for (int trial = 0; trial < 8 && (trial < 3 || spent < 0.5); ++trial) {
    watch = Stopwatch();
    const double begin = seconds_now();
    train_step(model, {&batch, 1}, optimizer, options, rank);
    const double whole = seconds_now() - begin, rest = whole - watch.forward - watch.backward - watch.head;
    if (trial == 0) continue;  // warms up
    const bool first = spent == 0;
    spent += whole;
    const auto keep = [first](double& kept, double got) { kept = first ? got : std::min(kept, got); };
    keep(best.forward, watch.forward);
    keep(best.backward, watch.backward);
    keep(best.head, watch.head);
    keep(update, rest);
  }

  // By operations, from the trial's layer to each of the model's.
  PlanJob trial = job;
  trial.model = plan_model(
      config,
      [&](PlannedLinear& linear) {
        linear.trained = job.everything;
        linear.r = job.everything || linear.module == config.names.head ? 0 : recipe.adapter->options.r;
      },
      [&](PlannedTable& table) { table.trained = job.everything; }, job.everything);
  trial.document_length = std::min(tokens, job.document_length);
  const GroupWork measured = group_work(trial, 0), measured_head = group_work(trial, 1);
  const double scale = static_cast<double>(job.tokens) / static_cast<double>(tokens);
  PassSeconds pass;
  for (int64_t l = 0; l < job.model.config.layers; ++l) {
    const GroupWork work = group_work(job, l);
    pass.layer_forward.push_back(best.forward * scale * work.forward / measured.forward);
    pass.layer_backward.push_back(best.backward * scale * work.backward / std::max(measured.backward, 1.0));
  }
  const GroupWork head = group_work(job, job.model.config.layers);
  pass.head = best.head * scale * (head.forward + head.backward) / (measured_head.forward + measured_head.backward);
  pass.update = update * static_cast<double>(job.model.trained_values()) / static_cast<double>(optimizer.size());
  return pass;
}

Cluster this_machine_as_cluster(int ranks, int threads, bool bf16) {
  constexpr size_t kBytes = size_t{32} << 20;
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes);
  double copy = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double begin = seconds_now();
    std::memcpy(to.data(), from.data(), kBytes);
    copy = std::min(copy, seconds_now() - begin);
  }
  const double bandwidth = static_cast<double>(kBytes) / copy;
  const double cores = std::max(1, this_machine().usable_cores());
  const double share = std::min(1.0, cores / (static_cast<double>(ranks) * threads));
  Cluster here;
  here.name = "this machine";
  here.flops = peak_flops(bf16) * share;
  here.memory_bandwidth = bandwidth * share;
  here.link_bandwidth = here.node_bandwidth = bandwidth / 4 * share;  // copied in and out, by both sides
  here.latency = 5e-6;
  here.ranks_per_node = ranks;
  here.overlap = 1;
  here.growth = 0;
  return here;
}

}  // namespace nibble
