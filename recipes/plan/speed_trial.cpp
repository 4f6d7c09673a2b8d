#include "nibble/recipes/plan/speed_trial.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "nibble/adapters/attach.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/base/seconds_now.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/core/tensor/spill_file.h"
#include "nibble/core/train/gradient_sum.h"
#include "nibble/core/train/train_step.h"
#include "nibble/parallel/comm/meta_comm.h"
#include "nibble/parallel/plan/stage_run.h"
#include "nibble/parallel/plan/work.h"
#include "nibble/parallel/tensor/tensor_parallel.h"
#include "nibble/quant/codec.h"
#include "nibble/quant/nf4_weight.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/plan/plan_job.h"
#include "nibble/recipes/plan/trial_config.h"

namespace nibble {

namespace {

constexpr int64_t kMostFiles = 8;
constexpr double kOperations = 2e11;  // of a step, about

// A layer of more weights stands for so much time that a smaller one tells its speed as well (trial_config).
constexpr double kLarge = 48e6;
constexpr double kLargeOperations = 2e10;

double median(std::vector<double> seconds) {
  if (seconds.empty()) return 0;
  std::ranges::sort(seconds);
  return (seconds[(seconds.size() - 1) / 2] + seconds[seconds.size() / 2]) / 2;
}

// The mean of a few steps that wait for a file. A step of the whole model is as long as several of these and has its
// share of such waits; what held one up to more than twice the median is left out of it.
double clipped_mean(std::vector<double> seconds) {
  const double limit = 2 * median(seconds);
  for (double& one : seconds) one = std::min(one, limit);
  return seconds.empty() ? 0 : std::reduce(seconds.begin(), seconds.end()) / static_cast<double>(seconds.size());
}

// Of layers [begin, end) together: what holds one of them up, in one step, is there in every step.
std::vector<double> sums_of_layers(const std::vector<std::vector<double>>& seconds, int64_t begin, int64_t end) {
  std::vector<double> sums;
  for (int64_t l = begin; l < end; ++l) {
    const std::vector<double>& layer = seconds[static_cast<size_t>(l)];
    sums.resize(layer.size());
    for (size_t step = 0; step < layer.size(); ++step) sums[step] += layer[step];
  }
  return sums;
}

/// Seconds of every step, by part.
struct MeasuredSeconds {
  std::vector<std::vector<double>> forward, backward;  // [layer][step]
  std::vector<double> embed, embed_backward, head, zero_grad, accumulate, update;
};

/// Of a pass that draws.
struct Drawn {
  double layers = 0, once = 0;  ///< seconds of the layers, and of all else
  double rows = 0;              ///< tokens
};

class Stopwatch final : public BlockHooks {
 public:
  Stopwatch(MeasuredSeconds& measured, int64_t layers, Communicator* gathering)
      : measured_(measured), layers_(layers), gathering_(gathering) {}

  void before_forward(int64_t) override { start(); }
  void after_forward(int64_t layer) override { note(layer, measured_.forward, measured_.embed); }
  void before_backward(int64_t) override { start(); }
  void after_backward(int64_t layer) override { note(layer, measured_.backward, measured_.embed_backward); }

 private:
  // What a rank waits for others that are slower for a moment is part of the layer's time.
  void start() {
    start_ = seconds_now();
    if (gathering_) gathering_->barrier("trial");
  }
  void note(int64_t layer, std::vector<std::vector<double>>& of_layers, std::vector<double>& of_embedding) {
    std::vector<double>& seconds = layer < 0          ? of_embedding
                                   : layer == layers_ ? measured_.head
                                                      : of_layers[static_cast<size_t>(layer)];
    seconds.push_back(seconds_now() - start_);
  }

  MeasuredSeconds& measured_;
  int64_t layers_;
  Communicator* gathering_;
  double start_ = 0;
};

std::unique_ptr<LinearWeight> packed_zeros(const std::string& name, const Shape& shape, MemoryPool& pool) {
  QuantizedMatrix matrix = plan_quantized(shape, DType::bf16, {}, 0);
  for (Tensor* part :
       {&matrix.packed, &matrix.absmax, &matrix.absmax_codes, &matrix.nested_absmax, &matrix.nested_map}) {
    if (part->defined() && !part->has_bytes()) *part = Tensor::zeros(pool, part->shape(), part->dtype(), name);
  }
  return std::make_unique<Nf4Weight>(name, matrix, std::vector<NamedTensor>(), matrix.matrices);
}

// The recipe's adapter, as far as the trial's layers can have it; without any of its modules, on all their Linears.
AdapterOptions trial_adapter(const Recipe& recipe, const PlanJob& job, const DecoderConfig& config) {
  AdapterOptions options = planned_adapter(*recipe.adapter);
  options.layers_to_transform.reset();
  options.layers_pattern.clear();
  options.trainable_token_indices.clear();
  options.modules_to_save.clear();
  for (int64_t l = 0; l < config.layers; ++l) {
    if (job.model.group(l).trained > 0) return options;
  }
  options.target_modules = {.names = {}, .pattern = "all-linear"};
  options.target_parameters.clear();
  options.exclude_modules = {};
  const Family* family = family_of(config.family);
  if (family && !family->peft_refuses.empty()) options.exclude_modules.names.emplace_back(family->peft_refuses);
  return options;
}

Decoder trial_model(const Recipe& recipe, const PlanJob& job, const DecoderConfig& config,
                    const LayerSharding* sharding, RankContext& rank) {
  const DType dtype = job.everything ? DType::f32 : DType::bf16;
  const ParameterMaker parameter = [&](const std::string& name, const Shape& shape) {
    const DType parameter_dtype = is_f32(config.names, name, shape) ? DType::f32 : dtype;
    return std::make_shared<Parameter>(
        Parameter{.name = name, .value = Tensor::zeros(rank.pool, shape, parameter_dtype, name), .gradient = {}});
  };
  const LinearWeightMaker linear = [&](const std::string& module, const Shape& shape) -> std::unique_ptr<LinearWeight> {
    if (job.model.group(0).packed && module != config.names.head)
      return packed_zeros(weight_name(module, shape), shape, rank.pool);
    return std::make_unique<DenseWeight>(parameter(weight_name(module, shape), shape));
  };
  Decoder model(config, linear, parameter, rank, {}, sharding);
  if (job.everything) {
    make_trainable(model, rank);
    return model;
  }
  const AdapterOptions options = trial_adapter(recipe, job, config);
  attach_adapter(model, options, rank);
  if (options.use_dora) {  // divides by lengths of rows, which those of zeros have not
    for (Parameter* trained : trainable_parameters(model)) ops::fill_uniform(trained->value, 0.01F, 0.02F, 0, 0);
  }
  if (recipe.model.int8()) use_int8(model, rank);
  return model;
}

// What a rank of the trial computes.
ModelWork trial_work(const Recipe& recipe, const PlanJob& job, const DecoderConfig& config, int64_t tensor,
                     int64_t tokens) {
  const MetaDevice device;
  MemoryPool pool(0, device);
  MetaComm tp_ranks(0, static_cast<int>(tensor));
  RankContext rank{tp_ranks, pool, 1, 0};
  const std::unique_ptr<LayerSharding> sharding = tensor_parallel(config, tp_ranks, pool);
  Decoder model = trial_model(recipe, job, config, sharding.get(), rank);
  const Batch batch = planned_batch(tokens, std::min(tokens, job.document_length), 1, false, config, pool);
  return count_work(model, device, batch, job.compute_dtype, rank);
}

}  // namespace

struct SpeedTrial::Impl {
  Impl(const Recipe& asked, const PlanJob& of, Communicator& tp_ranks, Communicator* gathering, int threads,
       int64_t side_by_side, int64_t ranks)
      : recipe(asked),
        job(of),
        tensor(tp_ranks.size()),
        config(trial_config(of, is_large(of), tensor, side_by_side, ranks)),
        rank{alone, pool, threads, 0},
        sharding(tensor_parallel(config, tp_ranks, pool)),
        model(trial_model(recipe, of, config, sharding.get(), rank)),
        watch(measured, config.layers, gathering) {
    double weights = 0;
    model.visit_linears(
        [&](Linear& linear) { weights += static_cast<double>(linear.in_features() * linear.out_features()); });
    const double operations = SpeedTrial::is_large(job) ? kLargeOperations : kOperations;
    tokens =
        static_cast<int64_t>(std::min(static_cast<double>(job.tokens), std::max(64.0, operations / (6 * weights))));
    batch = planned_batch(tokens, std::min(tokens, job.document_length), 1, false, config, pool);
    model.set_hooks(&watch);
    recomputed = config.layers / 2;  // the lower layers show what recomputing costs
    model.recompute_below(recomputed);
    optimizer.emplace(parameters_of_layers(), recipe.optimizer.options(), pool);
    options.max_grad_norm = recipe.train.max_grad_norm;
    options.gradient_sum = job.gradient_sum;
    options.compute_dtype = job.compute_dtype;
    forget();
  }

  void forget() {
    measured = {};
    measured.forward.resize(static_cast<size_t>(config.layers));
    measured.backward.resize(static_cast<size_t>(config.layers));
  }

  // Passes over gradients and state cost the same for every value: those of embedding and head would only take memory.
  std::vector<Parameter*> parameters_of_layers() {
    const std::vector<Parameter*> all = trainable_parameters(model);
    std::vector<Parameter*> of_layers;
    for (Parameter* parameter : all) {
      if (parameter->name.find(config.names.layers) != std::string::npos) of_layers.push_back(parameter);
    }
    return of_layers.empty() ? all : of_layers;
  }
  void keep_in_file(const std::string& directory, Recompute recompute);
  double step();
  void draw();
  // Of a few steps: what disturbs one of them is in few of a run's.
  double usual(const std::vector<double>& seconds) const {
    return files.empty() ? median(seconds) : clipped_mean(seconds);
  }
  PartSeconds seconds() const;
  class Timed;
  class Drawing;

  const Recipe& recipe;
  const PlanJob& job;
  int64_t tensor;
  DecoderConfig config;
  MemoryPool pool;
  SelfComm alone;
  RankContext rank;
  std::vector<std::unique_ptr<SpillFile>> files;
  size_t steps_in_files = 0;
  std::unique_ptr<LayerSharding> sharding;
  Decoder model;
  int64_t tokens = 0, recomputed = 0;
  Batch batch;
  MeasuredSeconds measured;
  std::optional<Drawn> drawn;
  Stopwatch watch;
  std::optional<Optimizer> optimizer;
  StepOptions options;
};

void SpeedTrial::Impl::keep_in_file(const std::string& directory, Recompute recompute) {
  // As many steps in turn as it takes to write what one of the whole model does: the system has passed pages on to the
  // disk before they are written again.
  const int64_t like_a_step = std::clamp<int64_t>(job.model.config.layers / config.layers, 1, kMostFiles);
  while (static_cast<int64_t>(files.size()) < like_a_step) {
    files.push_back(std::make_unique<SpillFile>(directory, 0, pool));
  }
  recomputed = recompute == Recompute::block ? config.layers : 0;
  model.recompute_below(recomputed);
  for (size_t i = steps_in_files; i < files.size(); ++i) step();
}

// A step of one microbatch, whose sum is timed.
class SpeedTrial::Impl::Timed final : public LocalExecutor {
 public:
  explicit Timed(Impl& trial) : LocalExecutor(trial.model, trial.rank), trial_(trial) {}
  double sum_end = 0;  // when the gradients were summed

 private:
  double sum(const StepWork& work) override {
    const double begin = seconds_now();
    zero_gradients(work.parameters);
    trial_.measured.zero_grad.push_back(seconds_now() - begin);
    const double loss = microbatch(work, 0);
    const double from = seconds_now();
    if (trial_.job.accumulate > 1) {  // see gradient_sum.cpp
      std::vector<Tensor> gradients;
      for (const Parameter* parameter : work.parameters) gradients.push_back(parameter->gradient.clone(trial_.pool));
      for (size_t i = 0; i < gradients.size(); ++i) ops::add(gradients[i], work.parameters[i]->gradient);
    }
    sum_end = seconds_now();
    trial_.measured.accumulate.push_back(sum_end - from);
    return loss;
  }

  Impl& trial_;
};

double SpeedTrial::Impl::step() {
  if (!files.empty()) model.set_spill(files[steps_in_files++ % files.size()].get());
  Timed executor(*this);
  const double begin = seconds_now();
  train_step(executor, {&batch, 1}, NextToken(), *optimizer, options);
  const double end = seconds_now();
  measured.update.push_back(end - executor.sum_end);
  return end - begin;
}

// Times the passes in which every answer goes on by a token, and none has prompts.
class SpeedTrial::Impl::Drawing final : public LocalExecutor {
 public:
  explicit Drawing(Impl& trial)
      : LocalExecutor(trial.model, trial.rank),
        trial_(trial),
        ranks_(0, static_cast<int>(std::max<int64_t>(1, trial.recipe.parallel.replicate))) {}

  Communicator& data_ranks() const override { return ranks_; }
  Tensor next_logits(const Batch& pass, const StepContext& step, KvCache& cache) override {
    counts_ = pass.ids.numel() == std::ssize(pass.spans);
    const size_t first = trial_.measured.forward.front().size();
    Tensor logits = LocalExecutor::next_logits(pass, step, cache);
    for (std::vector<double>& seconds : trial_.measured.forward) {
      if (!counts_) seconds.resize(first);
    }
    rows = static_cast<double>(pass.ids.numel());
    return logits;
  }
  /// Before every pass.
  bool go_on() {
    const double now = seconds_now();
    if (counts_) passes.push_back(now - begin_);
    begin_ = now;
    return passes.size() < kPasses;
  }

  std::vector<double> passes;
  double rows = 0;

 private:
  static constexpr size_t kPasses = 12;
  Impl& trial_;
  mutable MetaComm ranks_;  // that share the prompts out
  bool counts_ = false;
  double begin_ = 0;
};

void SpeedTrial::Impl::draw() {
  forget();
  Drawing drawing(*this);
  job.block.draw(model, drawing, [&] { return drawing.go_on(); });
  const double layers = usual(sums_of_layers(measured.forward, 0, config.layers));
  drawn = {.layers = layers, .once = std::max(0.0, usual(drawing.passes) - layers), .rows = drawing.rows};
  forget();
}

PartSeconds SpeedTrial::Impl::seconds() const {
  const ModelWork trial = trial_work(recipe, job, config, tensor, tokens), &rank_work = model_work(job, tensor);
  MemoryPool host;
  const auto [some, times] = detail::sample_job(job, detail::kMostTokens);
  const double rows = times * static_cast<double>(planned_batch(some, config, host).ids.numel());
  const double scale = rows / static_cast<double>(tokens);

  // Seconds of an operation, over the layers: of all forward passes, and of backward passes by kind. Where only
  // adapters train, the lowest layer has no gradient to pass on and is like no other.
  const int64_t lowest = !job.everything && config.layers > 3 ? 1 : 0, first_kept = std::max(lowest, recomputed);
  const double forward = usual(sums_of_layers(measured.forward, lowest, config.layers));
  const double backward[2] = {usual(sums_of_layers(measured.backward, first_kept, config.layers)),
                              usual(sums_of_layers(measured.backward, lowest, first_kept))};
  double forward_work = 0, backward_work[2] = {0, 0}, forward_of_backward[2] = {0, 0};
  for (int64_t l = lowest; l < config.layers; ++l) {
    const LayerWork& work = trial.layers[static_cast<size_t>(l)];
    forward_work += work.forward;
    const size_t kind = l < recomputed ? 1 : 0;
    backward_work[kind] += work.backward;
    forward_of_backward[kind] += work.recompute;
  }
  const double forward_speed = forward / forward_work;
  // Where all layers are recomputed both passes are taken to be equally fast.
  const double backward_speed =
      backward_work[0] > 0 ? backward[0] / backward_work[0] : backward[1] / (backward_work[1] + forward_of_backward[1]);
  // What a recomputed layer takes beyond its backward pass.
  const double recompute_speed =
      backward_work[1] > 0 ? std::max(0.0, backward[1] - backward_speed * backward_work[1]) / forward_of_backward[1]
                           : forward_speed;
  PartSeconds result;
  for (const LayerWork& work : rank_work.layers) {
    result.forward.push_back(forward_speed * work.forward);
    result.backward.push_back(backward_speed * work.backward);
    result.backward_recompute.push_back(result.backward.back() + recompute_speed * work.recompute);
  }
  result.forward_recompute = result.forward;
  result.embed = scale * usual(measured.embed);
  result.embed_backward = scale * usual(measured.embed_backward);
  result.head = usual(measured.head) * rank_work.head / trial.head;
  result.operation = forward_speed;
  if (drawn) {
    // Beyond what its operations would take in a pass of many tokens; in proportion to weights.
    double forward_of_trial = 0;
    for (const LayerWork& work : trial.layers) forward_of_trial += work.forward;
    const double share = drawn->rows / static_cast<double>(tokens);
    const double overhead = std::max(0.0, drawn->layers - forward_speed * forward_of_trial * share);
    for (const LayerWork& work : rank_work.layers) {
      result.draw.push_back(overhead * work.forward / scale / forward_of_trial);
    }
    const double width = static_cast<double>(job.model.config.vocab_size) / static_cast<double>(config.vocab_size);
    result.draw_once = drawn->once * width;
  }
  const double values = static_cast<double>(optimizer->size());
  result.zero_grad = usual(measured.zero_grad) / values;
  result.accumulate = usual(measured.accumulate) / values;
  result.update = usual(measured.update) / values;
  return result;
}

SpeedTrial::SpeedTrial(const Recipe& recipe, const PlanJob& job, Communicator& tp_ranks, Communicator* gathering,
                       int threads, int64_t side_by_side, int64_t ranks)
    : impl_(std::make_unique<Impl>(recipe, job, tp_ranks, gathering, threads, side_by_side, ranks)) {}
SpeedTrial::~SpeedTrial() = default;

bool SpeedTrial::is_large(const PlanJob& job) {
  const DecoderConfig& config = job.model.config;
  const bool plain = !config.experts && config.embedding_width == config.width && config.streams == 1 &&
                     config.layer_input_size == 0 && std::ranges::none_of(config.layer, [](const LayerConfig& layer) {
                       return layer.mixer || layer.feed_forward || layer.heads > 0 || layer.mlp_width > 0;
                     });
  return plain && static_cast<double>(job.model.group(0).weights) > kLarge;
}

double SpeedTrial::operations() const {
  const ModelWork work = trial_work(impl_->recipe, impl_->job, impl_->config, impl_->tensor, impl_->tokens);
  double sum = work.head;
  for (const LayerWork& layer : work.layers) sum += layer.forward + layer.backward;
  return sum;
}

void SpeedTrial::keep_in_file(const std::string& directory, Recompute recompute) {
  impl_->keep_in_file(directory, recompute);
}
double SpeedTrial::step() { return impl_->step(); }
void SpeedTrial::draw() { impl_->draw(); }
PartSeconds SpeedTrial::seconds() const { return impl_->seconds(); }
void SpeedTrial::forget() { impl_->forget(); }

}  // namespace nibble
