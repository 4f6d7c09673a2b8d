#include "nibble/core/data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/data/packing.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/formatting/readable.h"

namespace nibble {

namespace {

constexpr uint32_t kSplitPurpose = 0x73706c69;  // "spli"

constexpr size_t kHeld = size_t{64} << 20;  // bytes of a mapped file that were read and are not yet given back

template <typename T>
void release(const T* begin, const T* end) {
  release_pages(std::as_bytes(std::span(begin, end)));
}

// The first token is never predicted.
uint32_t count_trained(const int32_t* codes, uint32_t length) {
  uint32_t trained = 0;
  for (uint32_t t = 1; t < length; ++t) trained += codes[t] >= 0;
  return trained;
}

}  // namespace

double DatasetReport::trained_share() const {
  return tokens == 0 ? 0.0 : static_cast<double>(trained_tokens) / static_cast<double>(tokens);
}

size_t Dataset::checked(int64_t i) const {
  NIBBLE_CHECK(i >= 0 && i < size(), "a sample of the data set");
  return static_cast<size_t>(i);
}

void Dataset::for_each(const std::function<void(int64_t, const SampleInfo&)>& use) const {
  constexpr int64_t kRows = int64_t{1} << 16;
  for (int64_t i = 0; i < size(); ++i) {
    use(i, info(i));
    if (rows_mapped_ && i % kRows == kRows - 1) release(rows_ + i + 1 - kRows, rows_ + i + 1);
  }
}

Sample Dataset::sample(int64_t i, uint32_t begin, uint32_t end, uint64_t index) const {
  const SampleInfo& sample = info(i);
  NIBBLE_CHECK(begin < end && end <= sample.length, "tokens of the sample");
  Sample result;
  result.index = index;
  result.row = i;
  result.ids.reserve(end - begin);
  result.labels.reserve(end - begin);
  for (uint32_t t = begin; t < end; ++t) {
    const int32_t code = sample.codes[t];
    result.ids.push_back(code >= 0 ? code : ~code);
    result.labels.push_back(code >= 0 ? code : kIgnoreLabel);
  }
  for (uint32_t k = 0; k < sample.values; ++k) {
    result.values.push_back(std::bit_cast<float>(sample.codes[sample.length + k]));
  }
  if (codes_mapped_) release(sample.codes + begin, sample.codes + end);
  if (rows_mapped_) release(rows_ + i, rows_ + i + 1);
  return result;
}

Sample Dataset::sample(int64_t i) const { return sample(i, 0, info(i).length, static_cast<uint64_t>(i)); }

int64_t Dataset::trained(int64_t i, uint32_t begin, uint32_t end) const {
  const SampleInfo& sample = info(i);
  NIBBLE_CHECK(begin < end && end <= sample.length, "tokens of the sample");
  if (end - begin == sample.length) return sample.trained;
  const int64_t trained = count_trained(sample.codes + begin, end - begin);
  if (codes_mapped_) release(sample.codes + begin, sample.codes + end);
  return trained;
}

SamplePreview Dataset::preview(int64_t i, const Encoder& encoder) const {
  SamplePreview preview;
  Sample result = sample(i);
  preview.texts = encoder.token_texts(result.ids);
  preview.record = info(i).record;
  preview.values = result.values;
  while (preview.answer < result.labels.size() && result.labels[preview.answer] == kIgnoreLabel) ++preview.answer;
  for (size_t t = 0; t < result.ids.size(); ++t) {
    preview.trained.push_back(t > 0 && result.labels[t] != kIgnoreLabel);
  }
  preview.ids = std::move(result.ids);
  return preview;
}

void Dataset::take_rows(LargeArray<SampleRow> rows) {
  rows_mapped_ = !rows.directory().empty();
  const auto owned = std::make_shared<const LargeArray<SampleRow>>(std::move(rows));
  rows_ = owned->data();
  rows_count_ = owned->size();
  rows_owner_ = owned;
}

std::pair<Dataset, Dataset> Dataset::split(double fraction, uint64_t seed, int64_t max_length) const {
  NIBBLE_CHECK(fraction > 0 && fraction < 1 && max_length >= 2, "a share of the data set");
  LargeArray<SampleRow> units(scratch_);
  for_each([&](int64_t i, const SampleInfo& sample) {
    const uint32_t limit = sample.whole ? sample.length : static_cast<uint32_t>(max_length);
    for (uint32_t begin = 0; begin < sample.length; begin += limit) {
      const uint32_t end = std::min(limit, sample.length - begin) + begin;
      SampleRow unit = rows_[i];
      unit.first += begin;
      unit.length = end - begin;
      unit.trained = static_cast<uint32_t>(trained(i, begin, end));
      if (unit.trained > 0) units.push_back(unit);
    }
  });
  const auto opens_group = [&](size_t i) { return i == 0 || !continues(units[i - 1], units[i]); };
  uint64_t groups = 0;
  for (size_t i = 0; i < units.size(); ++i) groups += opens_group(i);
  if (groups < 2) {
    throw InputError("data.eval_fraction", "one sample cannot be split", "give data.eval or more data");
  }
  const auto wanted = static_cast<uint64_t>(std::llround(fraction * static_cast<double>(groups)));
  const uint64_t held_out = std::clamp<uint64_t>(wanted, 1, groups - 1);
  LargeArray<uint8_t> is_held_out(scratch_, groups);
  {
    const auto drawn = keyed_permutation(groups, seed, kSplitPurpose, 0, scratch_);
    for (uint64_t k = 0; k < held_out; ++k) is_held_out[drawn[k]] = 1;
  }
  LargeArray<SampleRow> rows[2] = {LargeArray<SampleRow>(scratch_), LargeArray<SampleRow>(scratch_)};
  DatasetSummary summaries[2];
  size_t held = 0;  // the first unit whose codes were not given back
  size_t group = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (i > 0) group += opens_group(i);
    const int part = is_held_out[group];
    rows[part].push_back(units[i]);
    summaries[part].add(units[i], codes_ + units[i].first);
    const uint64_t end = units[i].first + units[i].length + units[i].values;
    if (codes_mapped_ && (end - units[held].first) * sizeof(int32_t) > kHeld) {
      release(codes_ + units[held].first, codes_ + end);
      held = i + 1 < units.size() ? i + 1 : i;
    }
  }
  std::pair<Dataset, Dataset> parts{*this, *this};
  parts.first.take_rows(std::move(rows[0]));
  parts.second.take_rows(std::move(rows[1]));
  summaries[0].put(parts.first);
  summaries[1].put(parts.second);
  return parts;
}

std::string Dataset::place(int64_t i) const {
  int64_t before = info(i).record;  // records of the file in front of this one
  for (const DataFileFacts& file : report_.files) {
    if (before >= file.records) {
      before -= file.records;
      continue;
    }
    RecordReader reader(file.path);
    RawRecord record;
    while (reader.next(record) && before > 0) --before;
    return record_place(file.path, record);
  }
  NIBBLE_CHECK(false, "a record of the files");
}

struct DatasetSummary::State {
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash{XXH3_createState(), XXH3_freeState};
  int64_t samples = 0, tokens = 0, trained = 0;
  bool has_text = false, has_groups = false, has_codes = false;
  uint32_t longest_whole = 0;
  SampleRow last{.record = UINT32_MAX};
};

DatasetSummary::DatasetSummary() : state_(std::make_unique<State>()) { XXH3_64bits_reset(state_->hash.get()); }
DatasetSummary::~DatasetSummary() = default;

void DatasetSummary::add(const SampleRow& row, const int32_t* codes) {
  ++state_->samples;
  state_->tokens += row.length;
  state_->trained += row.trained;
  const bool continues_group = Dataset::continues(std::exchange(state_->last, row), row);
  if (continues_group) state_->has_groups = true;
  if (row.whole == 0) state_->has_text = true;
  if (row.whole != 0) state_->longest_whole = std::max(state_->longest_whole, row.length);
  if (codes == nullptr) return;
  state_->has_codes = true;
  const uint32_t facts[3] = {row.length, row.source, continues_group ? 2u : row.whole};
  XXH3_64bits_update(state_->hash.get(), facts, sizeof facts);
  XXH3_64bits_update(state_->hash.get(), codes, size_t{row.length + row.values} * sizeof(int32_t));
}

void DatasetSummary::put(Dataset& dataset) {
  dataset.report_.samples = state_->samples;
  dataset.report_.tokens = state_->tokens;
  dataset.report_.trained_tokens = state_->trained;
  dataset.has_text_ = state_->has_text;
  dataset.has_groups_ = state_->has_groups;
  dataset.longest_whole_ = state_->longest_whole;
  if (!state_->has_codes) return;
  XXH3_64bits_update(state_->hash.get(), dataset.weights_.data(), dataset.weights_.size() * sizeof(double));
  dataset.fingerprint_ = formatted("%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(state_->hash.get())));
}

}  // namespace nibble
