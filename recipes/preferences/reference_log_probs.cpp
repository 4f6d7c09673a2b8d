#include "nibble/recipes/preferences/reference_log_probs.h"

#include <algorithm>
#include <chrono>

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
constexpr std::chrono::seconds kKeepEvery{30};  // what a run that is killed computes again, at most

// At most `count` values: fewer of a pass that was stopped.
std::vector<float> read_kept(const std::filesystem::path& file, size_t count) {
  if (file.empty() || !std::filesystem::exists(file)) return {};
  try {
    const SafetensorsFile stored(file);
    const Tensor values = stored.at(kName);
    if (values.numel() > static_cast<int64_t>(count) || values.dtype() != DType::f32) return {};
    return {values.data<const float>(), values.data<const float>() + values.numel()};
  } catch (const Error&) {  // what cannot be read is made again
    return {};
  }
}

void keep(const std::filesystem::path& file, std::span<const float> values) {
  MemoryPool pool;
  std::filesystem::create_directories(file.parent_path());
  write_safetensors(file, {{kName, Tensor::from<float>(pool, {std::ssize(values)}, values)}});
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
  all.resize(static_cast<size_t>(rank.comm.all_reduce_sum("reference is known", static_cast<double>(all.size()))));
  if (!all.empty()) {
    MemoryPool pool;
    Tensor shared = Tensor::from<float>(pool, {std::ssize(all)}, all);
    rank.comm.broadcast("reference", shared, 0);
    all.assign(shared.data<const float>(), shared.data<const float>() + all.size());
  }
  if (all.size() < begins.back()) {
    bool keeps = !pass.kept.empty() && rank.comm.rank() == 0;
    const auto try_to_keep = [&](std::span<const float> values) {
      try {
        keep(pass.kept, values);
      } catch (const std::exception& error) {  // the other ranks wait, and only the next start would be shorter
        keeps = false;
        observer.message("warning: data.cache does not keep the reference's log-probabilities: " +
                         std::string(error.what()));
      }
    };
    const auto texts_of = [&](size_t values) { return std::ranges::lower_bound(begins, values) - begins.begin(); };
    const int64_t known = texts_of(all.size()), left = documents - known;
    observer.message("computing the reference's log-probabilities of " + count_text(left, "text") +
                     (pass.kept.empty() ? "; data.cache keeps them for the next start" : ""));
    ReferencePass watched = pass;
    auto last_kept = std::chrono::steady_clock::now();
    watched.go_on = [&](std::span<const float> values) {
      observer.work({0, "reference", texts_of(values.size()) - known, left});
      if (const auto now = std::chrono::steady_clock::now(); keeps && now - last_kept >= kKeepEvery) {
        try_to_keep(values);
        last_kept = now;
      }
      return rank.comm.all_reduce_sum("stop", observer.stop() ? 1 : 0) == 0;
    };
    all = text_log_probs(executor, begins, document, watched, std::move(all));
    if (keeps) try_to_keep(all);
    if (all.size() < begins.back()) {
      throw Interrupted("the reference", "stopped before the first step", "run the same command to continue");
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
