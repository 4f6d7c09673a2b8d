#pragma once
// What a new kind of mixer or feed-forward has to do, and with it everything around a Block: gradients, recomputing,
// generating, devices, training, checkpoints, shards, stages. A test of a kind is one file that calls these.

#include <gtest/gtest.h>

#include "nibble/core/base/parallel.h"
#include "nibble/core/base/philox.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/core/train/checkpoint/checkpoint.h"
#include "nibble/core/train/train_step.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/pipeline/pipelined_executor.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/core/ops/refusing_device.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble::test {

/// A small Llama of four layers, every other one as `set` makes it.
inline DecoderConfig with_kind(const std::function<void(LayerConfig&)>& set) {
  DecoderConfig config = parse_decoder_config(R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 24,
      "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 40, "initializer_range": 0.3,
      "tie_word_embeddings": false})",
                                              "test");
  for (size_t l = 1; l < config.layer.size(); l += 2) set(config.layer[l]);
  return config;
}

/// Three documents, the same for the same number.
inline Batch documents(uint64_t number, MemoryPool& pool) {
  PhiloxStream stream(2, 8, number);
  std::vector<Sample> samples;
  for (const size_t length : {9, 4, 13}) {
    Sample sample{.ids = {}, .labels = {}, .index = 3 * number + samples.size()};
    for (size_t t = 0; t < length; ++t) sample.ids.push_back(static_cast<int32_t>(stream.next_below(40)));
    sample.labels = sample.ids;
    samples.push_back(sample);
  }
  return make_batch(samples, pool);
}

inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    sum += static_cast<double>(a.data<const float>()[i]) * static_cast<double>(b.data<const float>()[i]);
  }
  return sum;
}

/// The gradient of the loss against its differences along a random direction of every parameter: over a long way, where
/// rounding is small, or over a short one, where it curves less, whichever errs less by its own estimate: how far it is
/// from the plain quotient and from that over the longer way before.
inline void expect_gradients_are_finite_differences(const DecoderConfig& config) {
  Rank rank;
  MemoryPool& pool = rank.context().pool;
  Decoder decoder = random_decoder(config, 1, rank.context());
  make_trainable(decoder, rank.context());
  const Batch batch = documents(0, pool);
  decoder.loss_sum_and_gradients(batch, rank.step(), 1);
  uint64_t number = 0;
  decoder.visit([&](Parameter& parameter) {
    Tensor direction = Tensor::empty(pool, parameter.value.shape(), DType::f32);
    ops::fill_normal(direction, 1, 5, number++);
    const Tensor start = parameter.value.clone(pool);
    constexpr double kUnknown = std::numeric_limits<double>::infinity();
    double difference_quotient = 0, error = kUnknown, longer = kUnknown;
    for (const float reach : {2e-3f, 1e-3f, 5e-4f, 2e-4f, 1e-4f, 3e-5f}) {
      const auto at = [&](float steps) {
        ops::add(direction, parameter.value, steps * reach);
        const double loss = decoder.loss_sum(batch, rank.step());
        ops::cast(start, parameter.value);
        return loss;
      };
      const double width = static_cast<double>(reach), near = at(1) - at(-1), far = at(2) - at(-2);
      const double found = (8 * near - far) / (12 * width);
      const double curved = std::max(std::abs(found - far / (4 * width)), std::abs(found - longer));
      const double rounded = 1e-7 * std::abs(at(0)) / width;
      longer = found;
      if (curved + rounded > error) continue;
      difference_quotient = found;
      error = curved + rounded;
    }
    const double size = std::sqrt(dot(parameter.gradient, parameter.gradient));
    EXPECT_NEAR(dot(parameter.gradient, direction), difference_quotient, 3e-3 * size + 1e-2) << parameter.name;
    EXPECT_GT(size, 1e-3) << parameter.name;
  });
}

/// Running a layer again, and keeping what it needs in a file, change no bit; nor do the others of a batch.
inline void expect_same_bits_however_kept(const DecoderConfig& config) {
  Rank rank;
  TemporaryDirectory directory;
  const auto gradients = [&](Recompute recompute, bool spills) {
    Decoder decoder = random_decoder(config, 1, rank.context());
    make_trainable(decoder, rank.context());
    SpillFile spill(directory.path().string(), int64_t{1} << 20, rank.context().pool);
    decoder.set_recompute(recompute);
    if (spills) decoder.set_spill(&spill);
    decoder.loss_sum_and_gradients(documents(0, rank.context().pool), rank.step(), 1);
    return gradients_of(decoder);
  };
  const auto kept = gradients(Recompute::none, false);
  EXPECT_TRUE(gradients(Recompute::block, false) == kept);
  EXPECT_TRUE(gradients(Recompute::none, true) == kept);
}

/// Documents one behind another, whose seams lie within chunks of a recurrence and at their ends, have the logits of
/// each alone, its gradients, and those logits too where a cache begins with all but the last tokens.
inline void expect_documents_are_apart(const DecoderConfig& config) {
  Rank rank;
  const StepContext step = rank.step();
  MemoryPool& pool = rank.context().pool;
  Decoder decoder = random_decoder(config, 1, rank.context());
  make_trainable(decoder, rank.context());
  std::vector<Sample> samples;
  PhiloxStream stream(2, 9, 0);
  for (const size_t length : {70, 1, 57, 64, 130, 2}) {  // ends at 70, 71, 128, 192, 322, 324; chunks have 64
    Sample sample{.ids = {}, .labels = {}, .index = samples.size()};
    for (size_t t = 0; t < length; ++t) sample.ids.push_back(static_cast<int32_t>(stream.next_below(40)));
    sample.labels = sample.ids;
    samples.push_back(sample);
  }
  const auto batch_of = [&](const Sample& sample) { return make_batch(std::span(&sample, 1), pool); };
  const Batch together = make_batch(samples, pool);
  const std::vector<float> logits = all_logits(decoder, together, step);
  std::vector<float> alone;
  for (const Sample& sample : samples) {
    const std::vector<float> own = all_logits(decoder, batch_of(sample), step);
    alone.insert(alone.end(), own.begin(), own.end());
    if (sample.ids.size() < 3) continue;
    KvCache cache = decoder.make_cache(step, 1);
    const auto cut = sample.ids.end() - 2;
    Batch begin = batch_of({.ids = {sample.ids.begin(), cut}, .labels = {}});
    Batch end = batch_of({.ids = {cut, sample.ids.end()}, .labels = {}});
    begin.sequences = end.sequences = {0};
    std::vector<float> continued = all_logits(decoder, begin, step, &cache);
    const std::vector<float> last = all_logits(decoder, end, step, &cache);
    continued.insert(continued.end(), last.begin(), last.end());
    EXPECT_LE(largest_difference(continued, own), 2e-5) << sample.ids.size();
  }
  EXPECT_LE(largest_difference(logits, alone), 2e-5);
  decoder.loss_sum_and_gradients(together, step, 1);
  const auto gradients = gradients_of(decoder);
  Decoder other = random_decoder(config, 1, rank.context());
  make_trainable(other, rank.context());
  for (const Sample& sample : samples) other.loss_sum_and_gradients(batch_of(sample), step, 1);
  for (const auto& [name, wanted] : gradients_of(other)) {
    EXPECT_LE(distance(gradients.at(name), wanted), 1e-4 * norm(wanted)) << name;
  }
}

/// Sequences that are read and continued together in one cache give the logits of their whole texts.
inline void expect_cached_text(const DecoderConfig& config) {
  Rank rank;
  const StepContext step = rank.step();
  Decoder decoder = random_decoder(config, 1, rank.context());
  const Batch whole = documents(0, step.pool());
  const std::vector<float> wanted = all_logits(decoder, whole, step);
  KvCache cache = decoder.make_cache(step, 3);
  const std::span<const int32_t> ids = whole.ids.span<const int32_t>();
  for (const std::vector<int64_t>& counts :
       std::vector<std::vector<int64_t>>{{3, 1, 5}, {0, 1, 1}, {1, 1, 1}, {4, 0, 0}, {1, 1, 6}}) {
    std::vector<Sample> pieces;
    Batch batch;
    std::vector<float> expected;
    std::vector<int64_t> sequences;
    for (size_t s = 0; s < 3; ++s) {
      if (counts[s] == 0) continue;
      const int64_t begin = whole.spans[s].q_begin + cache.length(static_cast<int64_t>(s)), end = begin + counts[s];
      pieces.push_back({.ids = {ids.begin() + begin, ids.begin() + end}, .labels = {}});
      expected.insert(expected.end(), wanted.begin() + begin * 40, wanted.begin() + end * 40);
      sequences.push_back(static_cast<int64_t>(s));
    }
    batch = make_batch(pieces, step.pool());
    batch.sequences = sequences;
    EXPECT_LE(largest_difference(all_logits(decoder, batch, step, &cache), expected), 2e-5);
  }
  EXPECT_EQ(cache.length(0), 9);
}

/// Two steps on `device`: the loss of the second and how much memory was held.
inline std::pair<double, size_t> train_on(const Device& device, const DecoderConfig& config) {
  MemoryPool pool(0, device);
  LocalRank local(2);
  RankContext rank{local.context().comm, pool, 2, 3};
  Decoder decoder = random_decoder(config, 1, rank);
  make_trainable(decoder, rank);
  Optimizer optimizer(trainable_parameters(decoder), {}, pool);
  const std::vector<Batch> batches = {documents(0, pool), documents(1, pool)};
  StepOptions options{.lr = 0.01};
  double loss = 0;
  for (options.step = 1; options.step <= 2; ++options.step) {
    loss = train_step(decoder, batches, optimizer, options, rank).loss;
  }
  return {loss, pool.peak() + (&pool.host() == &pool ? 0 : pool.host().peak())};
}

/// A device whose elements the host may not read gives the same bits, and one without bytes counts about the memory.
inline void expect_same_on_devices(const DecoderConfig& config) {
  const auto [loss, peak] = train_on(cpu_device(), config);
  EXPECT_EQ(train_on(RefusingDevice(), config).first, loss);
  EXPECT_NEAR(static_cast<double>(train_on(MetaDevice(), config).second), static_cast<double>(peak), 0.1 * peak);
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> weights;  ///< as the checkpoint has them
};

/// Three steps of four microbatches on the ranks of `shape`, and what their checkpoint holds.
inline Trained train(const DecoderConfig& config, const MeshShape& shape) {
  TemporaryDirectory directory;
  Trained trained;
  run_on_threads(static_cast<int>(shape.ranks()), [&](Communicator& comm) {
    MemoryPool pool;
    RankContext rank{comm, pool, 1, 5};
    set_threads(1);
    const Mesh mesh(shape, comm);
    const int64_t layers = config.layers / shape.pipeline;
    Decoder decoder = random_decoder(config, 1, rank, {mesh.stage() * layers, (mesh.stage() + 1) * layers});
    ParallelOptions parallel_options;
    parallel_options.gradient_sum = GradientSum::tree;
    ParallelModel parallel = parallelize(decoder, true, parallel_options, mesh, rank);
    Optimizer optimizer(parallel.parameters(), {}, pool, true,
                        [&](const Parameter& part) { return parallel.global_shape(part); });
    const std::unique_ptr<StepExecutor> executor = make_executor(decoder, parallel, {}, rank);
    StepOptions options{.lr = 0.01, .max_grad_norm = 1};
    for (options.step = 1; options.step <= 3; ++options.step) {
      std::vector<Batch> mine;
      for (const int64_t i : executor->begin_step(4)) {
        mine.push_back(i == kIdle ? Batch() : documents(static_cast<uint64_t>(i), pool));
      }
      const StepResult result = train_step(*executor, mine, NextToken(), optimizer, options);
      if (comm.rank() == 0) trained.losses.push_back(result.loss);
    }
    std::vector<NamedTensor> values;
    for (const Parameter* parameter : parallel.parameters()) values.push_back({parameter->name, parameter->value});
    save_checkpoint(directory.path(), TrainingState{}, parallel.written_slicer()(values), {}, comm);
  });
  Rank rank;
  std::vector<NamedTensor> whole;
  random_decoder(config, 2, rank.context()).visit([&](Parameter& parameter) {
    whole.push_back({parameter.name, parameter.value});
  });
  load_checkpoint_tensors(directory / "step-0", full_slices(whole), {});
  for (const NamedTensor& tensor : whole) {
    const std::span<const float> values = tensor.value.span<const float>();
    trained.weights[tensor.name] = {values.begin(), values.end()};
  }
  return trained;
}

/// Training helps; two shards give the bits of one rank, two stages its numbers.
inline void expect_trains_shards_and_pipelines(const DecoderConfig& config) {
  const Trained one = train(config, {}), shards = train(config, {.shard = 2}), stages = train(config, {.pipeline = 2});
  ASSERT_EQ(one.losses.size(), 3u);
  EXPECT_LT(one.losses[2], 0.99 * one.losses[0]);
  EXPECT_EQ(shards.losses, one.losses);
  EXPECT_TRUE(shards.weights == one.weights);
  ASSERT_EQ(stages.weights.size(), one.weights.size());
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(stages.losses[i], one.losses[i], 1e-5);
  for (const auto& [name, wanted] : one.weights) {
    EXPECT_LE(distance(stages.weights.at(name), wanted), 1e-4 * norm(wanted)) << name;
  }
}

}  // namespace nibble::test
