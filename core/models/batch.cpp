#include "nibble/core/models/batch.h"

#include <algorithm>

namespace nibble {

size_t answer_begin(const Sample& sample) {
  size_t t = 0;
  while (t < sample.labels.size() && sample.labels[t] == kIgnoreLabel) ++t;
  return t;
}

Batch make_batch(std::span<const Sample> samples, MemoryPool& memory) {
  MemoryPool& pool = memory.host();
  int64_t tokens = 0;
  for (const Sample& sample : samples) {
    NIBBLE_CHECK(!sample.ids.empty(), "a sample has at least one token");
    NIBBLE_CHECK(sample.labels.empty() || sample.labels.size() == sample.ids.size(), "one label for each token");
    NIBBLE_CHECK(sample.index <= INT32_MAX && sample.ids.size() <= UINT32_MAX,
                 "sample index and position fit a row key");
    tokens += static_cast<int64_t>(sample.ids.size());
  }
  NIBBLE_CHECK(tokens > 0, "a batch has at least one sample");

  Batch batch;
  batch.ids = Tensor::empty(pool, {tokens}, DType::i32, "token ids");
  batch.targets = Tensor::empty(pool, {tokens}, DType::i32, "targets");
  batch.positions = Tensor::empty(pool, {tokens}, DType::i32, "positions");
  batch.row_keys = Tensor::empty(pool, {tokens}, DType::i64, "row keys");
  batch.spans.reserve(samples.size());
  const auto known = [&](std::vector<float> Sample::*of, const char* what) {
    const bool all = std::ranges::all_of(samples, [of](const Sample& s) { return !(s.*of).empty(); });
    return all ? Tensor::zeros(pool, {tokens}, DType::f32, what) : Tensor();
  };
  batch.reference = known(&Sample::reference, "log-probabilities of the reference");
  batch.old = known(&Sample::old, "log-probabilities of the policy that wrote");
  int32_t* ids = batch.ids.data<int32_t>();
  int32_t* targets = batch.targets.data<int32_t>();
  int32_t* positions = batch.positions.data<int32_t>();
  int64_t* keys = batch.row_keys.data<int64_t>();

  int64_t row = 0, group = -1;
  for (const Sample& sample : samples) {
    const int64_t length = static_cast<int64_t>(sample.ids.size());
    const auto number = static_cast<int64_t>(batch.spans.size());
    if (sample.group < 0 || sample.group != group) batch.groups.push_back(number);
    group = sample.group;
    batch.spans.push_back({row, row + length, row, row + length});
    batch.values.push_back(sample.values);
    const auto label_of = [&](size_t t) { return t < sample.labels.size() ? sample.labels[t] : kIgnoreLabel; };
    int64_t answer = 1;
    while (answer < length && label_of(static_cast<size_t>(answer)) == kIgnoreLabel) ++answer;
    batch.answers.push_back(answer < length ? row + answer - 1 : row + length);
    for (int64_t t = 0; t < length; ++t, ++row) {
      const size_t next = static_cast<size_t>(t) + 1;
      ids[row] = sample.ids[next - 1];
      targets[row] = sample.prompt_counts && next < sample.ids.size() ? sample.ids[next] : label_of(next);
      const auto put = [&](const std::vector<float>& log_probs, Tensor& into) {
        if (into && next < log_probs.size()) into.data<float>()[row] = log_probs[next];
      };
      put(sample.reference, batch.reference);
      put(sample.old, batch.old);
      positions[row] = static_cast<int32_t>(t);
      keys[row] = (static_cast<int64_t>(sample.index) << 32) + t;
      batch.label_tokens += targets[row] != kIgnoreLabel;
    }
  }
  batch.groups.push_back(static_cast<int64_t>(samples.size()));
  return batch;
}

}  // namespace nibble
