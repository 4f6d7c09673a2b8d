#include "nibble/recipes/preferences/objective_samples.h"

#include <algorithm>

namespace nibble {

ObjectiveSamples::ObjectiveSamples(const ObjectiveOptions& options, const Dataset& dataset, int64_t max_length,
                                   int64_t step_samples)
    : dataset_(&dataset),
      max_length_(max_length),
      step_samples_(step_samples),
      surveys_(options.type == ObjectiveType::kto && make_objective(options, false)->surveys()),
      prompt_counts_(options.type == ObjectiveType::orpo) {}

Sample ObjectiveSamples::surveyed(int64_t row) const {
  const int64_t count = size();
  int64_t other = (row + (count + 1) / 2) % count;
  if (step_samples_ > 0) {
    const int64_t begin = row / step_samples_ * step_samples_, end = std::min(begin + step_samples_, count);
    other = row == begin ? end - 1 : row - 1;
  }
  Sample mixed = sample(row);
  const Sample answer = sample(other);
  mixed.ids.resize(answer_begin(mixed));
  mixed.labels.resize(mixed.ids.size());
  const auto from = static_cast<ptrdiff_t>(answer_begin(answer));
  mixed.ids.insert(mixed.ids.end(), answer.ids.begin() + from, answer.ids.end());
  for (size_t k = 1; k < answer.values.size(); ++k) mixed.ids.push_back(static_cast<int32_t>(answer.values[k]));
  mixed.labels.insert(mixed.labels.end(), mixed.ids.begin() + std::ssize(mixed.labels), mixed.ids.end());
  const size_t length = std::min(mixed.ids.size(), static_cast<size_t>(max_length_));
  mixed.ids.resize(length);
  mixed.labels.resize(length);
  return mixed;
}

Batch ObjectiveSamples::make(std::vector<Sample> samples, MemoryPool& pool) const {
  const auto with_reference = [](Sample& sample, const std::vector<std::vector<float>>& known) {
    if (!known.empty()) sample.reference = known[static_cast<size_t>(sample.row)];
  };
  std::vector<Sample> others;
  for (size_t k = 0; k < samples.size(); ++k) {
    Sample& sample = samples[k];
    if (surveys_) {
      others.push_back(surveyed(sample.row));
      others.back().index = sample.index;
      with_reference(others.back(), reference_.surveyed);
    }
    sample.prompt_counts = prompt_counts_ && !dataset_->continues_group(sample.row);
    with_reference(sample, reference_.samples);
  }
  Batch batch = make_batch(samples, pool, share_);
  if (surveys_) batch.survey = std::make_shared<const Batch>(make_batch(others, pool));
  return batch;
}

}  // namespace nibble
