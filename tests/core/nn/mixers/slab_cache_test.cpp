#include "nibble/core/nn/mixers/slab_cache.h"

#include <gtest/gtest.h>

#include <map>

#include "nibble/core/base/philox.h"

namespace nibble {
namespace {

/// A cache with one row, a number, for each token, and what it should hold.
class Numbers {
 public:
  explicit Numbers(bool shares) : cache_(kSequences, {1}, DType::f32, pool_, shares) {}

  /// Sequences go on with so many tokens each; returns what their last queries see.
  std::vector<ops::AttentionSpan> feed(const std::map<int64_t, int64_t>& counts) {
    std::vector<ops::AttentionSpan> documents;
    std::vector<Continued> continued;
    std::vector<float> numbers;
    for (const auto& [sequence, count] : counts) {
      const auto begin = std::ssize(numbers);
      documents.push_back({begin, begin + count, begin, begin + count});
      continued.push_back({sequence, std::ssize(held_[sequence])});
      for (int64_t t = 0; t < count; ++t) {
        numbers.push_back(++last_);
        held_[sequence].push_back(last_);
      }
    }
    LayerContext context;
    context.spans = documents;
    context.continued = continued;
    const Tensor rows = Tensor::from<float>(pool_, {std::ssize(numbers), 1}, numbers);
    std::vector<ops::AttentionSpan> seen = cache_.spans(context);
    const std::vector<ops::AttentionSpan> again = cache_.spans(context);
    for (size_t i = 0; i < seen.size(); ++i) {
      SlabCache::append(rows, seen[i], cache_.rows[0]);
      EXPECT_EQ(again[i].k_end, seen[i].k_end);
    }
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(numbers_of(seen[i]), held_[continued[i].sequence]);
    return seen;
  }
  void copy(int64_t from, int64_t to) {
    cache_.copy(from, to, std::ssize(held_[from]));
    held_[to] = held_[from];
  }
  void forget(int64_t sequence) {
    cache_.forget(sequence);
    held_[sequence].clear();
  }
  bool holds(int64_t sequence) { return !held_[sequence].empty(); }

  static constexpr int64_t kSequences = 5;

 private:
  std::vector<float> numbers_of(const ops::AttentionSpan& of) const {
    const ops::AttentionSpan span = of.numbered();
    std::vector<float> found;
    for (int64_t key = span.k_begin; key < span.k_end; ++key) {
      found.push_back(cache_.rows[0].data<const float>()[span.key_row(key)]);
    }
    return found;
  }

  MemoryPool pool_;
  SlabCache cache_;
  std::map<int64_t, std::vector<float>> held_;
  float last_ = 0;
};

// Whether a copy reads two pieces or one must not depend on where its slab lies or how full the longest one is.
TEST(SlabCache, BetweenWhatIsSharedAndTheSlabBesideItIsAHole) {
  for (const int64_t length : {63, 64, 70, 128}) {
    Numbers numbers(true);
    numbers.feed({{0, length}});
    numbers.copy(0, 1);
    for (const ops::AttentionSpan& span : numbers.feed({{1, 1}})) EXPECT_GT(span.hole(), 0) << length;
  }
}

TEST(SlabCache, ACopyReadsTheBeginningWhereItStandsUntilThatBeginsAnew) {
  Numbers numbers(true);
  numbers.feed({{0, 70}});
  numbers.copy(0, 2);
  numbers.copy(0, 3);
  for (const ops::AttentionSpan& span : numbers.feed({{2, 1}, {3, 1}})) {
    EXPECT_EQ(span.hole_begin - span.k_begin, 70);
    EXPECT_EQ(span.k_end - span.hole_end, 1);
  }
  numbers.forget(0);
  numbers.feed({{0, 40}});
  for (const ops::AttentionSpan& span : numbers.feed({{2, 80}, {3, 1}})) EXPECT_EQ(span.hole(), 0);
}

TEST(SlabCache, ACopyBeforeItsOriginIsWhole) {
  Numbers numbers(true);
  numbers.feed({{3, 5}});
  numbers.copy(3, 1);
  EXPECT_EQ(numbers.feed({{1, 2}}).front().hole(), 0);
}

TEST(SlabCache, SequencesHoldTheirTokensWhateverIsCopiedAndBegunAnew) {
  for (const bool shares : {false, true}) {
    Numbers numbers(shares);
    PhiloxStream draw(3, 1, 4);
    for (int step = 0; step < 600; ++step) {
      const auto one = static_cast<int64_t>(draw.next_below(Numbers::kSequences));
      const auto other = static_cast<int64_t>(draw.next_below(Numbers::kSequences));
      const uint64_t what = draw.next_below(8);
      if (what == 0) {
        numbers.forget(one);
      } else if (what == 1 && one != other && numbers.holds(one)) {
        numbers.copy(one, other);
      } else {
        numbers.feed({{one, 1 + static_cast<int64_t>(draw.next_below(12))}, {other, 1}});
      }
    }
  }
}

}  // namespace
}  // namespace nibble
