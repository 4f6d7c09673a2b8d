#include "nibble/core/data/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "nibble/core/base/error.h"
#include "nibble/core/data/packing.h"
#include "nibble/core/data/token_file.h"

namespace nibble {

namespace {

constexpr uint32_t kSplitPurpose = 0x73706c69;  // "spli"

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

Sample Dataset::sample(int64_t i, uint32_t begin, uint32_t end, uint64_t index) const {
  const SampleInfo& sample = info(i);
  NIBBLE_CHECK(begin < end && end <= sample.length, "tokens of the sample");
  Sample made;
  made.index = index;
  made.ids.reserve(end - begin);
  made.labels.reserve(end - begin);
  for (uint32_t t = begin; t < end; ++t) {
    const int32_t code = sample.codes[t];
    made.ids.push_back(code >= 0 ? code : ~code);
    made.labels.push_back(code >= 0 ? code : kIgnoreLabel);
  }
  if (mapped_) release_codes(sample.codes + begin, sample.codes + end);
  return made;
}

Sample Dataset::sample(int64_t i) const { return sample(i, 0, info(i).length, static_cast<uint64_t>(i)); }

int64_t Dataset::trained(int64_t i, uint32_t begin, uint32_t end) const {
  const SampleInfo& sample = info(i);
  NIBBLE_CHECK(begin < end && end <= sample.length, "tokens of the sample");
  if (end - begin == sample.length) return sample.trained;
  const int64_t trained = count_trained(sample.codes + begin, end - begin);
  if (mapped_) release_codes(sample.codes + begin, sample.codes + end);
  return trained;
}

SamplePreview Dataset::preview(int64_t i, const Encoder& encoder) const {
  SamplePreview preview;
  Sample made = sample(i);
  preview.texts = encoder.token_texts(made.ids);
  for (size_t t = 0; t < made.ids.size(); ++t) {
    preview.trained.push_back(t > 0 && made.labels[t] != kIgnoreLabel);
  }
  preview.ids = std::move(made.ids);
  return preview;
}

std::pair<Dataset, Dataset> Dataset::split(double fraction, uint64_t seed, int64_t max_length) const {
  NIBBLE_CHECK(fraction > 0 && fraction < 1 && max_length >= 2, "a share of the data set");
  Dataset parts[2];
  for (Dataset& part : parts) {
    part.blocks_ = blocks_;
    part.mapped_ = mapped_;
    part.weights_ = weights_;
    part.report_ = report_;
  }
  std::vector<SampleInfo> units;
  units.reserve(samples_.size());
  for (const SampleInfo& sample : samples_) {
    const uint32_t limit = sample.whole ? sample.length : static_cast<uint32_t>(max_length);
    for (uint32_t begin = 0; begin < sample.length; begin += limit) {
      SampleInfo unit = sample;
      unit.codes += begin;
      unit.length = std::min(limit, sample.length - begin);
      unit.trained = count_trained(unit.codes, unit.length);
      if (unit.trained > 0) units.push_back(unit);
    }
  }
  if (units.size() < 2) {
    throw InputError("data.eval_fraction", "one sample cannot be split", "give data.eval or more data");
  }
  const auto wanted = static_cast<uint64_t>(std::llround(fraction * static_cast<double>(units.size())));
  const uint64_t held_out = std::clamp<uint64_t>(wanted, 1, units.size() - 1);
  const auto drawn = keyed_permutation(units.size(), seed, kSplitPurpose, 0);
  std::vector<bool> is_held_out(units.size(), false);
  for (uint64_t k = 0; k < held_out; ++k) is_held_out[drawn[k]] = true;
  for (size_t i = 0; i < units.size(); ++i) parts[is_held_out[i] ? 1 : 0].samples_.push_back(units[i]);
  parts[0].summarize();
  parts[1].summarize();
  return {std::move(parts[0]), std::move(parts[1])};
}

// Fills what follows from samples_: counts of the report, and the fingerprint.
void Dataset::summarize() {
  report_.samples = size();
  report_.tokens = report_.trained_tokens = 0;
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  constexpr std::ptrdiff_t kHeld = std::ptrdiff_t{1} << 24;
  const int32_t *begin = nullptr, *end = nullptr;  // read and not yet given back
  for (const SampleInfo& sample : samples_) {
    if (mapped_ && (sample.codes < end || sample.codes - begin > kHeld)) {
      release_codes(begin, end);
      begin = sample.codes;
    }
    end = sample.codes + sample.length;
    report_.tokens += sample.length;
    report_.trained_tokens += sample.trained;
    const uint32_t facts[3] = {sample.length, sample.source, sample.whole};
    XXH3_64bits_update(hash.get(), facts, sizeof facts);
    XXH3_64bits_update(hash.get(), sample.codes, size_t{sample.length} * sizeof(int32_t));
  }
  XXH3_64bits_update(hash.get(), weights_.data(), weights_.size() * sizeof(double));
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(XXH3_64bits_digest(hash.get())));
  fingerprint_ = digits;
}

}  // namespace nibble
