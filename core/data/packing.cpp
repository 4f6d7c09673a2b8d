#include "nibble/core/data/packing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "nibble/core/base/philox.h"

namespace nibble {

namespace {

constexpr uint32_t kOrderPurpose = 0x6f726472;     // "ordr": samples
constexpr uint32_t kSequencePurpose = 0x73657173;  // "seqs": packed sequences
constexpr uint32_t kWeightPurpose = 0x77656967;    // "weig": which samples a broken weight takes

constexpr uint32_t kNone = UINT32_MAX;

// Fisher-Yates on Philox.
void shuffle(LargeArray<uint32_t>& order, uint64_t seed, uint32_t purpose, uint64_t index) {
  NIBBLE_CHECK(order.size() <= uint64_t{INT32_MAX}, "a permutation has at most 2^31 - 1 elements");
  PhiloxStream stream(seed, purpose, index);
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[stream.next_below(i)]);
}

// What packing asks of a sample, by its number: 4 bytes, for the order in which they are asked for is a random one. The
// first sample of a group stands for it.
class Lengths {
 public:
  explicit Lengths(const Dataset& dataset) : of_(dataset.scratch(), static_cast<size_t>(dataset.size())) {
    size_t first = 0;
    dataset.for_each([&](int64_t i, const SampleInfo& sample) {
      if (!dataset.has_groups() || !dataset.continues_group(i)) first = static_cast<size_t>(i);
      NIBBLE_CHECK(uint64_t{of_[first]} + sample.length <= kLength, "a sample has fewer than 2^31 tokens");
      of_[first] += sample.length;
      if (sample.whole) longest_whole_ = std::max(longest_whole_, of_[first]);
      if (!sample.whole) of_[first] |= kText;
    });
  }
  /// Of what is not text.
  uint32_t longest_whole() const { return longest_whole_; }
  uint32_t operator[](uint32_t i) const { return of_[i] & kLength; }
  bool is_text(uint32_t i) const { return (of_[i] & kText) != 0; }

 private:
  static constexpr uint32_t kText = uint32_t{1} << 31, kLength = kText - 1;
  LargeArray<uint32_t> of_;
  uint32_t longest_whole_ = 0;
};

// How often each sample (or group) of source s is taken: floor(weight) times, and the keyed share of the rest once
// more. firsts: the samples that open a group; empty: all, [begin, end) counts them.
void add_copies(LargeArray<uint32_t>& order, const Dataset& dataset, const LargeArray<uint32_t>& firsts, size_t s,
                uint32_t begin, uint32_t end, uint64_t seed, uint64_t epoch) {
  const double weight = dataset.weights()[s], whole = std::floor(weight);
  const uint64_t count = end - begin;
  const auto rest = static_cast<uint64_t>(std::llround((weight - whole) * static_cast<double>(count)));
  LargeArray<uint8_t> once_more(dataset.scratch(), rest == 0 ? 0 : count);
  if (rest > 0) {
    const auto drawn = keyed_permutation(count, seed, kWeightPurpose, (epoch << 16) | s, dataset.scratch());
    for (uint64_t k = 0; k < rest; ++k) once_more[drawn[k]] = 1;
  }
  for (uint32_t i = begin; i < end; ++i) {
    const uint32_t copies = static_cast<uint32_t>(whole) + (rest > 0 ? once_more[i - begin] : 0u);
    for (uint32_t k = 0; k < copies; ++k) order.push_back(firsts.size() == 0 ? i : firsts[i]);
  }
}

// Sample numbers of an epoch in its order.
LargeArray<uint32_t> epoch_order(const Dataset& dataset, const EpochOptions& options, uint64_t epoch) {
  std::vector<uint32_t> count(dataset.weights().size());
  LargeArray<uint32_t> firsts(dataset.scratch());
  uint16_t last = 0;
  dataset.for_each([&](int64_t i, const SampleInfo& sample) {
    NIBBLE_CHECK(sample.source >= last, "samples of a source stand together");
    if (dataset.has_groups()) {
      if (dataset.continues_group(i)) return;
      firsts.push_back(static_cast<uint32_t>(i));
    }
    ++count.at(last = sample.source);
  });
  LargeArray<uint32_t> order(dataset.scratch());
  uint32_t begin = 0;
  for (size_t s = 0; s < count.size(); ++s) {
    add_copies(order, dataset, firsts, s, begin, begin + count[s], options.seed, epoch);
    begin += count[s];
  }
  if (options.shuffle) shuffle(order, options.seed, kOrderPurpose, epoch);
  return order;
}

// Pieces of text may have nothing to predict; samples were loaded because they do.
bool predicts(const Dataset& dataset, const Lengths& lengths, const Piece& piece) {
  return !lengths.is_text(piece.sample) || dataset.trained(piece.sample, piece.begin, piece.end) > 0;
}

// Those of the group that sample i opens.
uint32_t samples_in_group(const Dataset& dataset, uint32_t i) {
  uint32_t count = 1;
  while (dataset.has_groups() && i + count < dataset.size() && dataset.continues_group(i + count)) ++count;
  return count;
}

// Calls use(k) for the numbers below `count`, in the order that an epoch gives its sequences.
template <typename Use>
void in_sequence_order(size_t count, bool shuffled, const EpochOptions& options, uint64_t epoch,
                       const std::filesystem::path& scratch, const Use& use) {
  if (!shuffled) {
    for (size_t k = 0; k < count; ++k) use(k);
    return;
  }
  const auto order = keyed_permutation(count, options.seed, kSequencePurpose, epoch, scratch);
  for (const uint32_t k : order) use(k);
}

// One document a sequence; text longer than max_length takes several.
EpochPlan plan_unpacked(const Dataset& dataset, const Lengths& lengths, const LargeArray<uint32_t>& order,
                        const EpochOptions& options, uint64_t epoch) {
  LargeArray<Piece> pieces(dataset.scratch());
  uint32_t number = 0;
  for (const uint32_t i : order) {
    const uint32_t length = lengths[i];
    const uint32_t limit = lengths.is_text(i) ? static_cast<uint32_t>(options.max_length) : length;
    for (uint32_t begin = 0; begin < length; begin += limit) {
      const uint32_t end = length - begin < limit ? length : begin + limit;
      pieces.push_back({i, begin, end, number});
      number += samples_in_group(dataset, i);
    }
  }
  EpochPlan plan(dataset.scratch());
  const bool any_cut = pieces.size() > order.size();  // the parts of one text stand together; else the order is final
  in_sequence_order(pieces.size(), options.shuffle && any_cut, options, epoch, dataset.scratch(), [&](size_t k) {
    if (predicts(dataset, lengths, pieces[k])) plan.add_groups({&pieces[k], 1}, dataset);
  });
  return plan;
}

// Puts several documents in one sequence; pieces are numbered in the order in which they are made.
class Packer {
 public:
  Packer(const Dataset& dataset, const Lengths& lengths, const EpochOptions& options)
      : dataset_(dataset),
        lengths_(lengths),
        options_(options),
        pieces_(dataset.scratch()),
        sequence_of_(dataset.scratch()) {}

  void add_cut(const LargeArray<uint32_t>& order) {
    uint32_t used = limit();
    for (const uint32_t i : order) {
      if (!lengths_.is_text(i)) continue;
      const uint32_t length = lengths_[i];
      for (uint32_t begin = 0; begin < length;) {
        if (used == limit()) {
          ++sequences_;
          used = 0;
        }
        const uint32_t room = limit() - used, end = length - begin < room ? length : begin + room;
        add(i, begin, end, sequences_ - 1);
        used += end - begin;
        begin = end;
      }
    }
  }

  void add_in_order(const LargeArray<uint32_t>& order) {
    uint32_t used = limit();
    for (const uint32_t i : order) {
      if (lengths_.is_text(i)) continue;
      const uint32_t length = lengths_[i];
      if (used + length > limit()) {
        ++sequences_;
        used = 0;
      }
      add(i, 0, length, sequences_ - 1);
      used += length;
    }
  }

  void add_best_fit(const LargeArray<uint32_t>& order) {
    for (const uint32_t i : order)
      if (!lengths_.is_text(i)) add(i, 0, lengths_[i], kNone);
    // Free tokens -> the sequence that came to have them last, and for each the one before it.
    std::map<uint32_t, uint32_t> by_room;
    LargeArray<uint32_t> before(dataset_.scratch());
    for (const uint32_t k : longest_first()) {
      const uint32_t length = pieces_[k].end;
      uint32_t target = sequences_, room = limit();
      if (const auto best = by_room.lower_bound(length); best != by_room.end()) {
        room = best->first;
        target = best->second;
        if (before[target] == kNone) {
          by_room.erase(best);
        } else {
          best->second = before[target];
        }
      } else {
        before.push_back(kNone);
        ++sequences_;
      }
      sequence_of_[k] = target;
      if (room <= length) continue;
      const auto [place, is_new] = by_room.try_emplace(room - length, target);
      before[target] = is_new ? kNone : place->second;
      place->second = target;
    }
  }

  EpochPlan finish(uint64_t epoch) {
    LargeArray<uint64_t> first(dataset_.scratch(), size_t{sequences_} + 1);  // of each sequence, in `grouped`
    for (const uint32_t sequence : sequence_of_) ++first[sequence + 1];
    for (size_t k = 0; k < sequences_; ++k) first[k + 1] += first[k];
    LargeArray<Piece> grouped(dataset_.scratch(), pieces_.size());
    for (size_t k = 0; k < pieces_.size(); ++k) grouped[first[sequence_of_[k]]++] = pieces_[k];
    EpochPlan plan(dataset_.scratch());
    in_sequence_order(sequences_, options_.shuffle, options_, epoch, dataset_.scratch(), [&](size_t k) {
      const Piece* begin = grouped.data() + (k == 0 ? 0 : first[k - 1]);  // filling moved each to the next one's
      const std::span<const Piece> sequence(begin, grouped.data() + first[k]);
      if (std::any_of(sequence.begin(), sequence.end(),
                      [&](const Piece& p) { return predicts(dataset_, lengths_, p); }))
        plan.add_groups(sequence, dataset_);
    });
    return plan;
  }

 private:
  uint32_t limit() const { return static_cast<uint32_t>(options_.max_length); }
  void add(uint32_t i, uint32_t begin, uint32_t end, uint32_t sequence) {
    pieces_.push_back({i, begin, end, next_number_});
    next_number_ += samples_in_group(dataset_, i);
    sequence_of_.push_back(sequence);
  }

  // Places in pieces_; of equal ones the first comes first.
  LargeArray<uint32_t> longest_first() const {
    std::vector<uint64_t> place(static_cast<size_t>(lengths_.longest_whole()) + 2);  // [longest - length]
    const auto shorter = [&](const Piece& piece) { return lengths_.longest_whole() - piece.end; };
    for (const Piece& piece : pieces_) ++place[shorter(piece) + 1];
    std::partial_sum(place.begin(), place.end(), place.begin());
    LargeArray<uint32_t> sorted(dataset_.scratch(), pieces_.size());
    for (size_t k = 0; k < pieces_.size(); ++k) sorted[place[shorter(pieces_[k])]++] = static_cast<uint32_t>(k);
    return sorted;
  }

  const Dataset& dataset_;
  const Lengths& lengths_;
  const EpochOptions& options_;
  LargeArray<Piece> pieces_;          // a group is one, as add_groups() takes it
  LargeArray<uint32_t> sequence_of_;  // of each piece
  uint32_t sequences_ = 0, next_number_ = 0;
};

}  // namespace

LargeArray<uint32_t> keyed_permutation(uint64_t count, uint64_t seed, uint32_t purpose, uint64_t index,
                                       const std::filesystem::path& scratch) {
  LargeArray<uint32_t> order(scratch, count);
  std::iota(order.begin(), order.end(), 0u);
  shuffle(order, seed, purpose, index);
  return order;
}

void EpochPlan::add(std::span<const Piece> documents) {
  pieces_.append(documents);
  first_.push_back(pieces_.size());
}

void EpochPlan::add_groups(std::span<const Piece> groups, const Dataset& dataset) {
  if (!dataset.has_groups()) return add(groups);
  std::vector<Piece> samples;
  for (const Piece& group : groups) {
    if (!dataset.info(group.sample).whole) {
      samples.push_back(group);
      continue;
    }
    for (uint32_t k = 0; k < samples_in_group(dataset, group.sample); ++k) {
      samples.push_back({group.sample + k, 0, dataset.info(group.sample + k).length, group.number + k});
    }
  }
  add(samples);
}

void EpochPlan::release() const {
  pieces_.release();
  first_.release();
}

EpochPlan plan_epoch(const Dataset& dataset, const EpochOptions& options, uint64_t epoch) {
  NIBBLE_CHECK(dataset.longest_whole() <= options.max_length,
               "samples were loaded with the max_length that batches use");
  const LargeArray<uint32_t> order = epoch_order(dataset, options, epoch);
  const Lengths lengths(dataset);
  if (!options.pack) return plan_unpacked(dataset, lengths, order, options, epoch);
  Packer packer(dataset, lengths, options);
  if (options.shuffle) {
    packer.add_best_fit(order);
  } else {
    packer.add_in_order(order);
  }
  packer.add_cut(order);
  return packer.finish(epoch);
}

}  // namespace nibble
