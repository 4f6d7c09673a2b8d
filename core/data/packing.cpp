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
constexpr uint32_t kFractionPurpose = 0x66726163;  // "frac": whether one more where it takes no whole number

constexpr uint32_t kNone = UINT32_MAX;

// Fisher-Yates on Philox.
void shuffle(LargeArray<uint32_t>& order, uint64_t seed, uint32_t purpose, uint64_t index) {
  NIBBLE_CHECK(order.size() <= uint64_t{INT32_MAX}, "a permutation has at most 2^31 - 1 elements");
  PhiloxStream stream(seed, purpose, index);
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[stream.next_below(i)]);
}

LargeArray<uint32_t> numbers_below(size_t count, const std::filesystem::path& scratch) {
  LargeArray<uint32_t> numbers(scratch, count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  return numbers;
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
// more: where that is no whole number, one more as often as epochs need to have the share on average. firsts: the
// samples that open a group; empty: all, [begin, end) counts them.
void add_copies(LargeArray<uint32_t>& order, const Dataset& dataset, const LargeArray<uint32_t>& firsts, size_t s,
                uint32_t begin, uint32_t end, uint64_t seed, uint64_t epoch) {
  const double weight = dataset.weights()[s], whole = std::floor(weight);
  const uint64_t count = end - begin;
  const double share = (weight - whole) * static_cast<double>(count);
  auto rest = static_cast<uint64_t>(share);
  PhiloxStream stream(seed, kFractionPurpose, (epoch << 16) | s);
  if (stream.next_uniform_double() < share - static_cast<double>(rest)) ++rest;
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

// Those of the group that sample i opens.
uint32_t samples_in_group(const Dataset& dataset, uint32_t i) {
  uint32_t count = 1;
  while (dataset.has_groups() && i + count < dataset.size() && dataset.continues_group(i + count)) ++count;
  return count;
}

// 0..count-1 by their keys below `keys`; of equal ones the lower comes first.
template <typename KeyOf>
LargeArray<uint32_t> sorted_by_key(size_t count, size_t keys, const std::filesystem::path& scratch,
                                   const KeyOf& key_of) {
  LargeArray<uint32_t> place(scratch, keys + 1);
  for (uint32_t k = 0; k < count; ++k) ++place[key_of(k) + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  LargeArray<uint32_t> sorted(scratch, count);
  for (uint32_t k = 0; k < count; ++k) sorted[place[key_of(k)]++] = k;
  return sorted;
}

// Makes the sequences of an epoch; pieces are numbered in the order in which they are made.
class Packer {
 public:
  Packer(const Dataset& dataset, const EpochOptions& options)
      : dataset_(dataset), lengths_(dataset), options_(options), plan_(dataset.scratch()) {}

  // One document a sequence; text longer than max_length takes several.
  void add_unpacked(const LargeArray<uint32_t>& order) {
    for (const uint32_t i : order) {
      const uint32_t length = lengths_[i], most = lengths_.is_text(i) ? limit() : length;
      for (uint32_t begin = 0; begin < length; begin += most) {
        add(i, begin, length - begin < most ? length : begin + most);
        close();
      }
    }
  }

  void add_cut(const LargeArray<uint32_t>& order) {
    uint32_t used = 0;
    for (const uint32_t i : order) {
      if (!lengths_.is_text(i)) continue;
      const uint32_t length = lengths_[i];
      for (uint32_t begin = 0; begin < length;) {
        if (used == limit()) {
          close();
          used = 0;
        }
        const uint32_t room = limit() - used, end = length - begin < room ? length : begin + room;
        add(i, begin, end);
        used += end - begin;
        begin = end;
      }
    }
    close();
  }

  void add_in_order(const LargeArray<uint32_t>& order) {
    uint32_t used = 0;
    for (const uint32_t i : order) {
      if (lengths_.is_text(i)) continue;
      const uint32_t length = lengths_[i];
      if (used + length > limit()) {
        close();
        used = 0;
      }
      add(i, 0, length);
      used += length;
    }
    close();
  }

  void add_best_fit(const LargeArray<uint32_t>& order) {
    LargeArray<Piece> pieces(dataset_.scratch());
    for (const uint32_t i : order)
      if (!lengths_.is_text(i)) pieces.push_back(numbered(i, 0, lengths_[i]));
    const uint32_t longest = lengths_.longest_whole();
    const auto longest_first = sorted_by_key(pieces.size(), size_t{longest} + 1, dataset_.scratch(),
                                             [&](uint32_t k) { return longest - pieces[k].end; });
    // Free tokens -> the sequence that came to have them last, and for each the one before it.
    std::map<uint32_t, uint32_t> by_room;
    LargeArray<uint32_t> before(dataset_.scratch()), sequence_of(dataset_.scratch(), pieces.size());
    for (const uint32_t k : longest_first) {
      const uint32_t length = pieces[k].end;
      uint32_t target = static_cast<uint32_t>(before.size()), room = limit();
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
      }
      sequence_of[k] = target;
      if (room <= length) continue;
      const auto [place, is_new] = by_room.try_emplace(room - length, target);
      before[target] = is_new ? kNone : place->second;
      place->second = target;
    }
    const auto grouped =
        sorted_by_key(pieces.size(), before.size(), dataset_.scratch(), [&](uint32_t k) { return sequence_of[k]; });
    for (size_t k = 0; k < grouped.size(); ++k) {
      if (k > 0 && sequence_of[grouped[k]] != sequence_of[grouped[k - 1]]) close();
      open_.push_back(pieces[grouped[k]]);
    }
    close();
  }

  EpochPlan finish(bool shuffled, uint64_t epoch) {
    const auto count = static_cast<size_t>(plan_.size());
    LargeArray<uint32_t> order = numbers_below(count, dataset_.scratch());
    if (shuffled) shuffle(order, options_.seed, kSequencePurpose, epoch);
    const auto end = std::remove_if(order.begin(), order.end(), [&](uint32_t k) { return !predicts(k); });
    order.resize(static_cast<size_t>(end - order.begin()));
    plan_.set_order(std::move(order));
    return std::move(plan_);
  }

  int64_t sequences() const { return plan_.size(); }

 private:
  uint32_t limit() const { return static_cast<uint32_t>(options_.max_length); }
  // A group is one, as add_groups() takes it.
  Piece numbered(uint32_t i, uint32_t begin, uint32_t end) {
    const Piece piece{i, begin, end, next_number_};
    next_number_ += samples_in_group(dataset_, i);
    return piece;
  }
  void add(uint32_t i, uint32_t begin, uint32_t end) { open_.push_back(numbered(i, begin, end)); }
  void close() {
    if (!open_.empty()) plan_.add_groups(open_, dataset_);
    open_.clear();
  }
  // Pieces of text may have nothing to predict; samples were loaded because they do.
  bool predicts(uint32_t sequence) const {
    return std::ranges::any_of(plan_.sequence(sequence), [&](const Piece& piece) {
      return !lengths_.is_text(piece.sample) || dataset_.trained(piece.sample, piece.begin, piece.end) > 0;
    });
  }

  const Dataset& dataset_;
  const Lengths lengths_;
  const EpochOptions& options_;
  EpochPlan plan_;
  std::vector<Piece> open_;  // of the sequence that is being filled
  uint32_t next_number_ = 0;
};

}  // namespace

LargeArray<uint32_t> keyed_permutation(uint64_t count, uint64_t seed, uint32_t purpose, uint64_t index,
                                       const std::filesystem::path& scratch) {
  LargeArray<uint32_t> order = numbers_below(count, scratch);
  shuffle(order, seed, purpose, index);
  return order;
}

void EpochPlan::add_groups(std::span<const Piece> groups, const Dataset& dataset) {
  for (const Piece& group : groups) {
    const uint32_t count = samples_in_group(dataset, group.sample);
    if (count == 1) pieces_.push_back(group);
    for (uint32_t k = 0; count > 1 && k < count; ++k) {
      pieces_.push_back({group.sample + k, 0, dataset.info(group.sample + k).length, group.number + k});
    }
  }
  first_.push_back(pieces_.size());
}

void EpochPlan::set_order(LargeArray<uint32_t> order) {
  order_ = std::move(order);
  ordered_ = true;
}

void EpochPlan::release() const {
  pieces_.release();
  first_.release();
  order_.release();
}

EpochPlan plan_epoch(const Dataset& dataset, const EpochOptions& options, uint64_t epoch) {
  NIBBLE_CHECK(dataset.longest_whole() <= options.max_length,
               "samples were loaded with the max_length that batches use");
  const LargeArray<uint32_t> order = epoch_order(dataset, options, epoch);
  Packer packer(dataset, options);
  if (!options.pack) {
    packer.add_unpacked(order);
    // The parts of one text stand together; else the order is final.
    return packer.finish(options.shuffle && packer.sequences() > std::ssize(order), epoch);
  }
  if (options.shuffle) {
    packer.add_best_fit(order);
  } else {
    packer.add_in_order(order);
  }
  packer.add_cut(order);
  return packer.finish(options.shuffle, epoch);
}

}  // namespace nibble
