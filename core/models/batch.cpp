#include "nibble/core/models/batch.h"

#include <algorithm>

namespace nibble {

namespace {

constexpr int64_t kMinShared = 16;  // fewer tokens cost less than the tiles of keys that they would be cut into

/// What documents share: where it begins, and how many tokens it has.
struct Beginning {
  const Sample* first = nullptr;
  int64_t row = 0, length = 0;  // 0: nobody has shared it yet
};

/// Tokens of the sample, before its last, that the first one of its group has too and whose rows have no targets.
int64_t common_tokens(const Sample& first, const Sample& sample) {
  if (sample.group < 0 || sample.group != first.group || sample.prompt_counts) return 0;
  const size_t most =
      std::min({first.ids.size(), sample.ids.size() - 1, std::max<size_t>(answer_begin(sample), 1) - 1});
  const auto end =
      std::mismatch(sample.ids.begin(), sample.ids.begin() + static_cast<ptrdiff_t>(most), first.ids.begin());
  return end.first - sample.ids.begin();
}

/// How many of its first tokens a sample leaves to those before it.
int64_t shared_tokens(Beginning& beginning, const Sample& sample, int64_t row) {
  const int64_t common = beginning.first ? common_tokens(*beginning.first, sample) : 0;
  if (common >= std::max(beginning.length, kMinShared)) {
    if (beginning.length == 0) beginning.length = common;
    return beginning.length;
  }
  beginning = {&sample, row, 0};
  return 0;
}

std::vector<ops::AttentionSpan> documents_of(std::span<const Sample> samples, bool share) {
  int64_t tokens = 0;
  Beginning beginning;
  std::vector<ops::AttentionSpan> spans;
  for (const Sample& sample : samples) {
    NIBBLE_CHECK(!sample.ids.empty(), "a sample has at least one token");
    const int64_t shared = share ? shared_tokens(beginning, sample, tokens) : 0;
    const int64_t rows = static_cast<int64_t>(sample.ids.size()) - shared;
    spans.push_back({tokens, tokens + rows, tokens, tokens + rows});
    if (shared > 0) {
      spans.back().k_begin = beginning.row;
      spans.back().hole_begin = beginning.row + shared;
      spans.back().hole_end = tokens;
    }
    tokens += rows;
  }
  NIBBLE_CHECK(tokens > 0, "a batch has at least one sample");
  return spans;
}

}  // namespace

size_t answer_begin(const Sample& sample) {
  size_t t = 0;
  while (t < sample.labels.size() && sample.labels[t] == kIgnoreLabel) ++t;
  return t;
}

int64_t sample_tokens(const Batch& batch) {
  int64_t tokens = 0;
  for (const ops::AttentionSpan& span : batch.spans) tokens += span.k_end - span.k_begin - span.hole();
  return tokens;
}

int64_t batch_rows(std::span<const Sample> samples, bool share) { return documents_of(samples, share).back().q_end; }

Batch make_batch(std::span<const Sample> samples, MemoryPool& memory) { return make_batch(samples, memory, false); }

Batch make_batch(std::span<const Sample> samples, MemoryPool& memory, bool share) {
  MemoryPool& pool = memory.host();
  for (const Sample& sample : samples) {
    NIBBLE_CHECK(sample.labels.empty() || sample.labels.size() == sample.ids.size(), "one label for each token");
    NIBBLE_CHECK(sample.index <= INT32_MAX && sample.ids.size() <= UINT32_MAX,
                 "sample index and position fit a row key");
  }
  std::vector<ops::AttentionSpan> spans = documents_of(samples, share);
  const int64_t tokens = spans.back().q_end;

  Batch batch;
  batch.ids = Tensor::empty(pool, {tokens}, DType::i32, "token ids");
  batch.targets = Tensor::empty(pool, {tokens}, DType::i32, "targets");
  batch.positions = Tensor::empty(pool, {tokens}, DType::i32, "positions");
  batch.row_keys = Tensor::empty(pool, {tokens}, DType::i64, "row keys");
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
  for (size_t number = 0; number < samples.size(); ++number) {
    const Sample& sample = samples[number];
    const int64_t length = static_cast<int64_t>(sample.ids.size());
    const int64_t shared = length - (spans[number].q_end - row),
                  first = row - shared;  // of its own rows, were they all
    if (sample.group < 0 || sample.group != group) batch.groups.push_back(static_cast<int64_t>(number));
    group = sample.group;
    batch.values.push_back(sample.values);
    const auto label_of = [&](size_t t) { return t < sample.labels.size() ? sample.labels[t] : kIgnoreLabel; };
    int64_t answer = 1;
    while (answer < length && label_of(static_cast<size_t>(answer)) == kIgnoreLabel) ++answer;
    batch.answers.push_back(first + (answer < length ? answer - 1 : length));
    batch.answers_open.push_back(label_of(0) != kIgnoreLabel);
    for (int64_t t = shared; t < length; ++t, ++row) {
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
  batch.spans = std::move(spans);
  return batch;
}

}  // namespace nibble
