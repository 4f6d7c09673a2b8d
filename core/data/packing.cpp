#include "nibble/core/data/packing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "nibble/core/base/philox.h"

namespace nibble {

namespace {

constexpr uint32_t kOrderPurpose = 0x6f726472;     // "ordr": samples
constexpr uint32_t kSequencePurpose = 0x73657173;  // "seqs": packed sequences
constexpr uint32_t kWeightPurpose = 0x77656967;    // "weig": which samples a broken weight takes

// Sample numbers of an epoch in its order: floor(weight) copies of each sample, and the keyed share of the rest.
std::vector<uint32_t> epoch_order(const Dataset& dataset, const EpochOptions& options, uint64_t epoch) {
  std::vector<std::vector<uint32_t>> by_source(dataset.weights().size());
  for (int64_t i = 0; i < dataset.size(); ++i) by_source.at(dataset.info(i).source).push_back(static_cast<uint32_t>(i));
  std::vector<uint32_t> copies(static_cast<size_t>(dataset.size()));
  for (size_t s = 0; s < by_source.size(); ++s) {
    const double weight = dataset.weights()[s], whole = std::floor(weight);
    const auto rest = static_cast<uint64_t>(std::llround((weight - whole) * static_cast<double>(by_source[s].size())));
    for (const uint32_t i : by_source[s]) copies[i] = static_cast<uint32_t>(whole);
    if (rest == 0) continue;
    const uint64_t key = (epoch << 16) | s;
    const auto drawn = keyed_permutation(by_source[s].size(), options.seed, kWeightPurpose, key);
    for (uint64_t k = 0; k < rest; ++k) ++copies[by_source[s][drawn[k]]];
  }
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < copies.size(); ++i) order.insert(order.end(), copies[i], i);
  if (!options.shuffle) return order;
  const auto permutation = keyed_permutation(order.size(), options.seed, kOrderPurpose, epoch);
  std::vector<uint32_t> shuffled(order.size());
  for (size_t i = 0; i < order.size(); ++i) shuffled[i] = order[permutation[i]];
  return shuffled;
}

bool predicts(const Dataset& dataset, const Piece& piece) {
  return dataset.trained(piece.sample, piece.begin, piece.end) > 0;
}

std::vector<uint32_t> sequence_order(size_t count, const EpochOptions& options, uint64_t epoch) {
  if (options.shuffle) return keyed_permutation(count, options.seed, kSequencePurpose, epoch);
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

// One document a sequence; text longer than max_length takes several.
EpochPlan plan_unpacked(const Dataset& dataset, const std::vector<uint32_t>& order, const EpochOptions& options,
                        uint64_t epoch) {
  const auto limit = static_cast<uint32_t>(options.max_length);
  std::vector<Piece> pieces;
  pieces.reserve(order.size());
  for (const uint32_t i : order) {
    const uint32_t length = dataset.info(i).length;
    for (uint32_t begin = 0; begin < length; begin += limit) {
      pieces.push_back({i, begin, std::min(length, begin + limit), static_cast<uint32_t>(pieces.size())});
    }
  }
  EpochPlan plan;
  const bool any_cut = pieces.size() > order.size();
  EpochOptions keep = options;
  keep.shuffle = options.shuffle && any_cut;  // the parts of one text stand together; else the order is final
  for (const uint32_t k : sequence_order(pieces.size(), keep, epoch)) {
    if (predicts(dataset, pieces[k])) plan.add({&pieces[k], 1});
  }
  return plan;
}

// Puts several documents in one sequence; pieces are numbered in the order in which they are made.
class Packer {
 public:
  Packer(const Dataset& dataset, const EpochOptions& options) : dataset_(dataset), options_(options) {}

  void add_cut(const std::vector<uint32_t>& texts) {
    uint32_t used = limit();
    for (const uint32_t i : texts) {
      const uint32_t length = dataset_.info(i).length;
      for (uint32_t begin = 0; begin < length;) {
        if (used == limit()) {
          sequences_.emplace_back();
          used = 0;
        }
        const uint32_t end = std::min(length, begin + limit() - used);
        sequences_.back().push_back(piece(i, begin, end));
        used += end - begin;
        begin = end;
      }
    }
  }

  void add_in_order(const std::vector<uint32_t>& samples) {
    uint32_t used = limit();
    for (const uint32_t i : samples) {
      const uint32_t length = dataset_.info(i).length;
      if (used + length > limit()) {
        sequences_.emplace_back();
        used = 0;
      }
      sequences_.back().push_back(piece(i, 0, length));
      used += length;
    }
  }

  void add_best_fit(const std::vector<uint32_t>& samples) {
    std::vector<Piece> pieces;
    pieces.reserve(samples.size());
    for (const uint32_t i : samples) pieces.push_back(piece(i, 0, dataset_.info(i).length));
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.end > b.end; });
    std::map<uint32_t, std::vector<size_t>> by_room;  // free tokens -> sequences
    for (const Piece& next : pieces) {
      size_t target = sequences_.size();
      uint32_t room = limit();
      if (const auto best = by_room.lower_bound(next.end); best != by_room.end()) {
        room = best->first;
        target = best->second.back();
        best->second.pop_back();
        if (best->second.empty()) by_room.erase(best);
      } else {
        sequences_.emplace_back();
      }
      sequences_[target].push_back(next);
      if (room > next.end) by_room[room - next.end].push_back(target);
    }
    for (auto& sequence : sequences_) {
      std::sort(sequence.begin(), sequence.end(), [](const Piece& a, const Piece& b) { return a.number < b.number; });
    }
  }

  EpochPlan finish(uint64_t epoch) const {
    EpochPlan plan;
    for (const uint32_t k : sequence_order(sequences_.size(), options_, epoch)) {
      const auto& sequence = sequences_[k];
      if (std::any_of(sequence.begin(), sequence.end(), [&](const Piece& p) { return predicts(dataset_, p); })) {
        plan.add(sequence);
      }
    }
    return plan;
  }

 private:
  uint32_t limit() const { return static_cast<uint32_t>(options_.max_length); }
  Piece piece(uint32_t i, uint32_t begin, uint32_t end) { return {i, begin, end, made_++}; }

  const Dataset& dataset_;
  const EpochOptions& options_;
  std::vector<std::vector<Piece>> sequences_;
  uint32_t made_ = 0;
};

}  // namespace

std::vector<uint32_t> keyed_permutation(uint64_t count, uint64_t seed, uint32_t purpose, uint64_t index) {
  NIBBLE_CHECK(count <= uint64_t{INT32_MAX}, "a permutation has at most 2^31 - 1 elements");
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  PhiloxStream stream(seed, purpose, index);
  for (uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[stream.next_below(i)]);
  return order;
}

void EpochPlan::add(std::span<const Piece> documents) {
  pieces_.insert(pieces_.end(), documents.begin(), documents.end());
  first_.push_back(pieces_.size());
}

EpochPlan plan_epoch(const Dataset& dataset, const EpochOptions& options, uint64_t epoch) {
  NIBBLE_CHECK(
      std::all_of(dataset.samples().begin(), dataset.samples().end(),
                  [&](const SampleInfo& sample) { return !sample.whole || sample.length <= options.max_length; }),
      "samples were loaded with the max_length that batches use");
  const std::vector<uint32_t> order = epoch_order(dataset, options, epoch);
  if (!options.pack) return plan_unpacked(dataset, order, options, epoch);
  std::vector<uint32_t> whole, texts;
  for (const uint32_t i : order) (dataset.info(i).whole ? whole : texts).push_back(i);
  Packer packer(dataset, options);
  if (options.shuffle) {
    packer.add_best_fit(whole);
  } else {
    packer.add_in_order(whole);
  }
  packer.add_cut(texts);
  return packer.finish(epoch);
}

}  // namespace nibble
