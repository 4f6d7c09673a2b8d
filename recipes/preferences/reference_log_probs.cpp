#include "nibble/recipes/preferences/reference_log_probs.h"

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/safetensors/safetensors.h"

namespace nibble {

namespace {

// Where each document's tokens begin among those of all: samples by row, then what is surveyed.
std::vector<size_t> places_of(const ObjectiveSamples& samples) {
  std::vector<size_t> begins = {0};
  for (int64_t row = 0; row < samples.size(); ++row) begins.push_back(begins.back() + samples.sample(row).ids.size());
  for (int64_t row = 0; samples.surveys() && row < samples.size(); ++row) {
    begins.push_back(begins.back() + samples.surveyed(row).ids.size());
  }
  return begins;
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
    observer.message("computing the reference's log-probabilities of " + count_text(documents, "text"));
    all = text_log_probs(executor, begins, document, pass);
    if (!pass.kept.empty() && rank.comm.rank() == 0) {
      MemoryPool pool;
      std::filesystem::create_directories(pass.kept.parent_path());
      write_safetensors(pass.kept, {{kName, Tensor::from<float>(pool, {std::ssize(all)}, all)}});
    }
  }
  ReferenceLogProbs result;
  for (size_t d = 0; d + 1 < begins.size(); ++d) {
    auto& part = static_cast<int64_t>(d) < samples.size() ? result.samples : result.surveyed;
    part.emplace_back(all.begin() + static_cast<ptrdiff_t>(begins[d]),
                      all.begin() + static_cast<ptrdiff_t>(begins[d + 1]));
  }
  return result;
}

}  // namespace nibble
