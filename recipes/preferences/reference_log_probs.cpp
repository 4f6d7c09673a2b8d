#include "nibble/recipes/preferences/reference_log_probs.h"

#include <algorithm>
#include <numeric>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/safetensors/safetensors.h"

namespace nibble {

namespace {

/// Takes down the log-probabilities of a batch.
class Recorder final : public Objective {
 public:
  double loss_sum(const Batch&, const LabelLogProbs& log_probs, const LossCounts&, std::span<float>) const override {
    seen.assign(log_probs.policy.begin(), log_probs.policy.end());
    return 0;
  }
  mutable std::vector<float> seen;
};

// Where each document's tokens begin among those of all: samples by row, then what is surveyed.
std::vector<size_t> places_of(const ObjectiveSamples& samples) {
  std::vector<size_t> begins = {0};
  for (int64_t row = 0; row < samples.size(); ++row) begins.push_back(begins.back() + samples.sample(row).ids.size());
  for (int64_t row = 0; samples.surveys() && row < samples.size(); ++row) {
    begins.push_back(begins.back() + samples.surveyed(row).ids.size());
  }
  return begins;
}

// [first, last) of documents that are computed together.
std::vector<size_t> cut(const std::vector<size_t>& begins, int64_t batch_tokens) {
  std::vector<size_t> firsts = {0};
  for (size_t d = 1; d + 1 < begins.size(); ++d) {
    if (begins[d + 1] - begins[firsts.back()] > static_cast<size_t>(batch_tokens)) firsts.push_back(d);
  }
  firsts.push_back(begins.size() - 1);
  return firsts;
}

constexpr const char* kName = "log_probs";

std::vector<float> read_kept(const std::filesystem::path& file, size_t count) {
  if (file.empty() || !std::filesystem::exists(file)) return {};
  try {
    const SafetensorsFile stored(file);
    const Tensor values = stored.at(kName);
    if (values.numel() != static_cast<int64_t>(count) || values.dtype() != DType::f32) return {};
    return {values.data<const float>(), values.data<const float>() + count};
  } catch (const Error&) {  // what cannot be read is made again
    return {};
  }
}

}  // namespace

ReferenceLogProbs reference_log_probs(StepExecutor& executor, const ObjectiveSamples& samples,
                                      const ReferencePass& pass, const Observer& observer) {
  RankContext& rank = executor.rank();
  Communicator& ranks = executor.data_ranks();
  const std::vector<size_t> begins = places_of(samples);
  const auto documents = static_cast<int64_t>(begins.size()) - 1;
  const auto document = [&](size_t d) {
    const auto row = static_cast<int64_t>(d);
    return row < samples.size() ? samples.sample(row) : samples.surveyed(row - samples.size());
  };

  std::vector<float> all = rank.comm.rank() == 0 ? read_kept(pass.kept, begins.back()) : std::vector<float>{};
  const bool known = rank.comm.all_reduce_sum("reference is known", all.empty() ? 0.0 : 1.0) > 0;
  if (known) {
    all.resize(begins.back());
    MemoryPool pool;
    Tensor shared = Tensor::from<float>(pool, {std::ssize(all)}, all);
    rank.comm.broadcast("reference", shared, 0);
    all.assign(shared.data<const float>(), shared.data<const float>() + all.size());
  } else {
    observer.message("computing the reference's log-probabilities of " + std::to_string(documents) + " texts");
    all.resize(begins.back());
    const std::vector<size_t> firsts = cut(begins, pass.batch_tokens);
    const size_t batches = firsts.size() - 1, width = static_cast<size_t>(ranks.size());
    StepContext context{rank, pass.compute_dtype, false, 0, {}};
    context.adapters_enabled = pass.adapters_enabled;
    for (size_t round = 0; round * width < batches; ++round) {
      const size_t own = round * width + static_cast<size_t>(ranks.rank());
      const size_t from = begins[firsts[round * width]], to = begins[firsts[std::min(batches, (round + 1) * width)]];
      MemoryPool pool;
      Tensor values = Tensor::zeros(pool, {static_cast<int64_t>(to - from)}, DType::f64);
      const Recorder recorder;
      Batch batch;
      if (own < batches) {
        std::vector<Sample> together;
        for (size_t d = firsts[own]; d < firsts[own + 1]; ++d) together.push_back(document(d));
        batch = make_batch(together, rank.pool);
      }
      executor.loss_sum(own < batches ? &batch : nullptr, recorder, {}, context);
      // A row's log-probability is that of the token behind it; none is of a text's first.
      for (size_t t = 0; t + 1 < recorder.seen.size(); ++t) {
        values.data<double>()[begins[firsts[own]] - from + t + 1] = static_cast<double>(recorder.seen[t]);
      }
      ranks.all_reduce_sum("reference", values);
      executor.share_from_head(values);
      for (size_t i = from; i < to; ++i) all[i] = static_cast<float>(values.data<const double>()[i - from]);
    }
    if (!pass.kept.empty() && rank.comm.rank() == 0) {
      MemoryPool pool;
      std::filesystem::create_directories(pass.kept.parent_path());
      write_safetensors(pass.kept, {{kName, Tensor::from<float>(pool, {std::ssize(all)}, all)}});
    }
  }
  ReferenceLogProbs made;
  for (size_t d = 0; d + 1 < begins.size(); ++d) {
    auto& part = static_cast<int64_t>(d) < samples.size() ? made.samples : made.surveyed;
    part.emplace_back(all.begin() + static_cast<ptrdiff_t>(begins[d]),
                      all.begin() + static_cast<ptrdiff_t>(begins[d + 1]));
  }
  return made;
}

}  // namespace nibble
