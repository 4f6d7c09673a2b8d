#include "nibble/recipes/machine_speed.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <thread>

#include "nibble/adapters/attach.h"
#include "nibble/core/base/machine.h"
#include "nibble/core/base/parallel.h"
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

/// Seconds of one pass: of the layer, of the head, of everything else.
struct TrialSeconds {
  double forward, backward, head, rest;
};

/// One rank's layer, head and optimizer.
class Trial {
 public:
  Trial(const Recipe& recipe, const PlanJob& job, const DecoderConfig& config, int threads)
      : rank_{alone_, pool_, threads, 0}, model_(trial_model(recipe, job, config, rank_)) {
    double weights = 0;
    model_.visit_linears(
        [&](Linear& linear) { weights += static_cast<double>(linear.in_features() * linear.out_features()); });
    const double wanted = std::clamp(kOperations / (6 * weights), 64.0, static_cast<double>(job.tokens));
    tokens_ = std::min(job.tokens, static_cast<int64_t>(wanted));
    batch_ = trial_batch(tokens_, std::min(tokens_, job.document_length), config.vocab_size, pool_);
    model_.set_hooks(&watch_);
    optimizer_.emplace(trainable_parameters(model_), recipe.optimizer.options(), pool_);
    options_.gradient_sum = job.gradient_sum;
    options_.compute_dtype = job.compute_dtype;
  }

  TrialSeconds step() {
    watch_ = Stopwatch();
    const double begin = seconds_now();
    train_step(model_, {&batch_, 1}, *optimizer_, options_, rank_);
    const double rest = seconds_now() - begin - watch_.forward - watch_.backward - watch_.head;
    return {watch_.forward, watch_.backward, watch_.head, rest};
  }

  int64_t tokens() const { return tokens_; }
  int64_t trained_values() const { return optimizer_->size(); }

 private:
  MemoryPool pool_;
  SelfComm alone_;
  RankContext rank_;
  Decoder model_;
  int64_t tokens_ = 0;
  Batch batch_;
  Stopwatch watch_;
  std::optional<Optimizer> optimizer_;
  StepOptions options_;
};

/// Ranks on the other cores, at the same work until stop(): they share caches and memory.
class Neighbours {
 public:
  Neighbours(int64_t count, const Recipe& recipe, const PlanJob& job, const DecoderConfig& config, int threads) {
    failures_.resize(static_cast<size_t>(count));
    for (std::exception_ptr& failure : failures_) {
      trials_.push_back(std::make_unique<Trial>(recipe, job, config, threads));
      at_work_.emplace_back([threads, &trial = *trials_.back(), &failure](const std::stop_token& stop) {
        try {
          const ThreadsOfTrial limit(threads);
          while (!stop.stop_requested()) trial.step();
        } catch (...) {
          failure = std::current_exception();
        }
      });
    }
  }

  /// Throws what a neighbour threw.
  void stop() {
    at_work_.clear();
    for (const std::exception_ptr& failure : failures_) {
      if (failure) std::rethrow_exception(failure);
    }
  }

 private:
  std::vector<std::unique_ptr<Trial>> trials_;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::jthread> at_work_;  // ends before what it uses
};

double median(std::vector<double> of) {
  std::ranges::sort(of);
  return of[of.size() / 2];
}

/// The median of some passes.
TrialSeconds typical_seconds(Trial& trial) {
  trial.step();  // warms up
  std::vector<double> forward, backward, head, rest;
  double spent = 0;
  for (int pass = 0; pass < 12 && (pass < 5 || spent < 1); ++pass) {
    const TrialSeconds seconds = trial.step();
    forward.push_back(seconds.forward);
    backward.push_back(seconds.backward);
    head.push_back(seconds.head);
    rest.push_back(seconds.rest);
    spent += seconds.forward + seconds.backward + seconds.head + seconds.rest;
  }
  return {median(forward), median(backward), median(head), median(rest)};
}

}  // namespace

PassSeconds measure_passes(const Recipe& recipe, const PlanJob& job, int64_t ranks, int threads) {
  const ThreadsOfTrial limit(threads);
  const DecoderConfig config = trial_config(job);
  Trial one(recipe, job, config, threads);
  const int64_t side_by_side = std::clamp<int64_t>(this_machine().usable_cores() / threads, 1, ranks);
  Neighbours neighbours(side_by_side - 1, recipe, job, config, threads);
  const TrialSeconds seconds = typical_seconds(one);
  neighbours.stop();
  const int64_t tokens = one.tokens();

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
    pass.layer_forward.push_back(seconds.forward * scale * work.forward / measured.forward);
    pass.layer_backward.push_back(seconds.backward * scale * work.backward / std::max(measured.backward, 1.0));
  }
  const GroupWork head = group_work(job, job.model.config.layers);
  pass.head = seconds.head * scale * (head.forward + head.backward) / (measured_head.forward + measured_head.backward);
  pass.update =
      seconds.rest * static_cast<double>(job.model.trained_values()) / static_cast<double>(one.trained_values());
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
  here.reduction = 4;  // what arrives is stored, and summed in the order of the ranks
  here.latency = 5e-6;
  here.ranks_per_node = ranks;
  here.overlap = 1;
  here.growth = 0;
  return here;
}

}  // namespace nibble
