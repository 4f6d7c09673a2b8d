#include "nibble/parallel/plan/work.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/parallel/comm/meta_comm.h"
#include "nibble/parallel/plan/stage_run.h"
#include "nibble/parallel/tensor/tensor_parallel.h"

namespace nibble {

namespace {

/// Notes what every layer's passes compute.
class WorkByLayer final : public BlockHooks {
 public:
  WorkByLayer(ModelWork& work, const MetaDevice& device) : work_(work), device_(device) {}

  void before_forward(int64_t) override { begin_ = device_.total().flops; }
  void after_forward(int64_t layer) override { note(layer, &LayerWork::forward); }
  void before_backward(int64_t) override { begin_ = device_.total().flops; }
  void after_backward(int64_t layer) override { note(layer, &LayerWork::backward); }

 private:
  void note(int64_t layer, double LayerWork::*pass) {
    const double done = device_.total().flops - begin_;
    const auto at = static_cast<size_t>(layer);
    if (layer >= 0) (at < work_.layers.size() ? work_.layers[at].*pass : work_.head) += done;
  }

  ModelWork& work_;
  const MetaDevice& device_;
  double begin_ = 0;
};

/// For every layer the first that computes the same: its tensors, what a token sees and whether a gradient passes.
std::vector<int64_t> first_alike(const PlannedModel& model) {
  std::map<std::tuple<std::string, int64_t, bool>, int64_t> seen;
  std::vector<int64_t> first;
  bool below = model.group(-1).trained > 0;
  for (int64_t l = 0; l < model.config.layers; ++l) {
    const int64_t window = model.config.layer.empty() ? 0 : model.config.layer[static_cast<size_t>(l)].window;
    first.push_back(seen.try_emplace({model.group(l).kind, window, below}, l).first->second);
    below = below || model.group(l).trained > 0;
  }
  return first;
}

}  // namespace

Batch planned_batch(int64_t tokens, int64_t document_length, double label_share, bool pairs,
                    const DecoderConfig& config, MemoryPool& pool) {
  const int64_t ids = std::min(config.vocab_size, config.head_rows());
  std::vector<Sample> samples;
  for (int64_t begin = 0; begin < tokens; begin += document_length) {
    Sample sample{.ids = {}, .labels = {}, .index = samples.size()};
    for (int64_t t = begin; t < std::min(tokens, begin + document_length); ++t) {
      sample.ids.push_back(static_cast<int32_t>(t * 7919 % ids));
      const double labelled = static_cast<double>(t - begin) * label_share;
      const bool has_label = labelled - std::floor(labelled) < label_share;
      sample.labels.push_back(has_label ? sample.ids.back() : kIgnoreLabel);
    }
    sample.values = {1, 0};
    if (pairs) sample.group = static_cast<int64_t>(samples.size() / 2);
    samples.push_back(std::move(sample));
  }
  return make_batch(samples, pool);
}

namespace {

// Answers of equal length to prompts, which those of a group have in common.
Batch planned_answers(const PlanJob& job, int64_t vocabulary, MemoryPool& pool) {
  std::vector<Sample> samples;
  const int64_t prompt = std::max<int64_t>(1, job.document_length - job.answer_tokens);
  for (int64_t begin = 0; begin < job.tokens; begin += job.document_length) {
    Sample sample{.ids = {}, .labels = {}, .index = samples.size()};
    for (int64_t t = 0; t < job.document_length; ++t) {
      sample.ids.push_back(static_cast<int32_t>(t * 7919 % vocabulary));
      sample.labels.push_back(t < prompt ? kIgnoreLabel : sample.ids.back());
    }
    sample.values = {1, 0};
    if (job.answers_together > 0) sample.group = static_cast<int64_t>(samples.size()) / job.answers_together;
    samples.push_back(std::move(sample));
  }
  return make_batch(samples, pool, job.answers_together > 0);
}

}  // namespace

Batch planned_batch(const PlanJob& job, const DecoderConfig& config, MemoryPool& pool) {
  const bool pairs = is_pairwise(job.objective.type);
  Batch batch = job.answer_tokens > 0
                    ? planned_answers(job, std::min(config.vocab_size, config.head_rows()), pool)
                    : planned_batch(job.tokens, job.document_length, job.label_share, pairs, config, pool);
  const int64_t labels = job.model.config.score_labels;
  for (std::vector<float>& values : batch.values) {
    if (labels > 0) values.resize(static_cast<size_t>(labels), 0);
  }
  if (job.objective.type == ObjectiveType::ppo) {  // advantages, values and returns by token
    for (size_t d = 0; d < batch.values.size(); ++d) {
      const int64_t tokens = batch.spans[d].q_end - 1 - batch.answers[d];
      batch.values[d].assign(static_cast<size_t>(3 * tokens), 0);
    }
  }
  return batch;
}

ModelWork count_work(Decoder& model, const MetaDevice& device, const Batch& batch, DType compute_dtype,
                     RankContext& rank) {
  const StepContext step{rank, compute_dtype, true, 1, batch.row_keys};
  ModelWork kept{std::vector<LayerWork>(static_cast<size_t>(model.config().layers))}, recomputed = kept;
  for (ModelWork* work : {&kept, &recomputed}) {
    WorkByLayer hooks(*work, device);
    model.set_hooks(&hooks);
    model.set_recompute(work == &recomputed ? Recompute::block : Recompute::none);
    model.loss_sum_and_gradients(batch, step, 1);
    model.set_hooks(nullptr);
  }
  for (size_t l = 0; l < kept.layers.size(); ++l) {
    kept.layers[l].recompute = recomputed.layers[l].backward - kept.layers[l].backward;
  }
  return kept;
}

const ModelWork& model_work(const PlanJob& job, int64_t tensor) {
  auto& found = detail::runs_of(job).work;
  if (const auto known = found.find(tensor); known != found.end()) return known->second;
  const std::vector<int64_t> first = first_alike(job.model);
  DecoderConfig config = job.model.config;
  config.layers = std::ranges::max(first) + 1;
  if (!config.layer.empty()) config.layer.resize(static_cast<size_t>(config.layers));
  const MetaDevice device;
  MemoryPool pool(0, device);
  MetaComm ranks(0, static_cast<int>(tensor));
  RankContext rank{ranks, pool, 1, 0};
  const std::unique_ptr<LayerSharding> sharding = tensor_parallel(config, ranks, pool);
  Decoder model = job.make_model(config, {}, sharding.get(), nullptr, rank);
  if (job.everything) make_trainable(model, rank);
  const auto [some, times] = detail::sample_job(job, detail::kMostTokens);
  ModelWork run = count_work(model, device, planned_batch(some, config, pool), job.compute_dtype, rank);
  for (LayerWork& layer : run.layers) layer = {times * layer.forward, times * layer.backward, times * layer.recompute};
  ModelWork work{{}, times * run.head};
  for (const int64_t alike : first) work.layers.push_back(run.layers[static_cast<size_t>(alike)]);
  return found.emplace(tensor, std::move(work)).first->second;
}

Work training_work(const PlanJob& job) {
  constexpr int64_t kTokens = 64;  // in pairs, of which the first has a label
  PlanJob pairs = job;
  pairs.runs = {};
  pairs.tokens = kTokens;
  pairs.document_length = 2;
  pairs.label_share = 1;
  pairs.answer_tokens = 0;
  const ModelWork& work = model_work(pairs, 1);
  Work result{.per_token = 0, .per_label_token = 2 * work.head / kTokens};
  for (const LayerWork& layer : work.layers) result.per_token += (layer.forward + layer.backward) / kTokens;
  return result;
}

}  // namespace nibble
