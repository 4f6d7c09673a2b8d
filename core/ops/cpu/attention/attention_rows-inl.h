// The forward pass of attention for some queries of one key head: their running softmax over tiles of keys. Compiled
// once per instruction set; include after hwy/foreach_target.h.

#if defined(NIBBLE_CORE_OPS_CPU_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CORE_OPS_CPU_ATTENTION_ROWS_INL_H_
#undef NIBBLE_CORE_OPS_CPU_ATTENTION_ROWS_INL_H_
#else
#define NIBBLE_CORE_OPS_CPU_ATTENTION_ROWS_INL_H_
#endif

#include <algorithm>
#include <limits>

#include <hwy/aligned_allocator.h>
#include "nibble/core/ops/cpu/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kAlign = 16;  // floats between the beginnings of buffers

/// Some queries of one key head, and the part of their keys that one piece of work reads.
struct Block {
  AttentionSpan span;  // AttentionSpan::numbered, as all keys here are
  int64_t kv_head;
  int64_t query, count;        // queries [query, query + count), each in `group` heads
  int64_t key_begin, key_end;  // keys that are read
};

/// Aligned pieces of one block of memory.
class Buffers {
 public:
  Buffers(std::initializer_list<int64_t> sizes) {
    int64_t total = 0;
    for (const int64_t size : sizes) total += round_up(size);
    memory_ = hwy::AllocateAligned<float>(static_cast<size_t>(total));
    next_ = memory_.get();
  }
  float* take(int64_t size) {
    float* taken = next_;
    next_ += round_up(size);
    return taken;
  }

 private:
  static int64_t round_up(int64_t size) { return (size + kAlign - 1) / kAlign * kAlign; }
  hwy::AlignedFreeUniquePtr<float[]> memory_;
  float* next_;
};

/// What one tile of keys is turned into, and the scores of a few rows against it. One after another uses it.
struct Tile {
  Tile(const AttentionPlan& plan, int64_t most)
      : buffers({kKeys * plan.padded, kKeys * plan.padded, kKeys * plan.padded, kKeys * most, most}),
        rows(buffers.take(kKeys * plan.padded)),
        keys(buffers.take(kKeys * plan.padded)),
        values(buffers.take(kKeys * plan.padded)),
        scores(buffers.take(kKeys * most)),
        keep(buffers.take(most)) {}

  Buffers buffers;
  float* rows;           // for a moment
  float *keys, *values;  // right sides of products: [width, keys], [keys, width]
  float *scores, *keep;
};

/// Running softmax of the rows of a Block. Row r is query r % count of head r / count of the group.
template <typename Words, typename Element>
class Rows {
 public:
  Rows(const AttentionPlan& plan, const Block& block, const Element* q, Tile& tile)
      : plan_(plan),
        block_(block),
        tile_(tile),
        rows_(plan.group * block.count),
        capacity_(rows_ / kRows * kRows + multiplied_rows<Words>(rows_ % kRows)),
        row_words_(row_words<Words>(plan)),
        plain_(plan.params.softcap == 0 && plan.params.alibi_slopes.empty() && plan.params.scale > 0),
        unit_(plain_ ? plan.params.scale : 1.0f),
        buffers_({capacity_ * row_words_, capacity_ * plan.padded, capacity_ * kLanes, capacity_}),
        q_(buffers_.take(capacity_ * row_words_)),
        out_(buffers_.take(capacity_ * plan.padded)),
        sums_(buffers_.take(capacity_ * kLanes)),
        row_max_(buffers_.take(capacity_)) {
    start(q);
  }

  /// Meets the keys [tile, tile + count), at most kKeys.
  void add_keys(const Element* k, const Element* v, int64_t tile, int64_t count) {
    load_keys(k, tile, count);
    load_values(v, tile, count);
    const int64_t first = key_position(block_.span, block_.query), last = first + block_.count - 1;
    const bool whole = count == kKeys && first + 1 >= tile + kKeys && plan_.first_key(block_.span, last) <= tile;
    for (int64_t row = 0; row < rows_; row += kRows) add_tile(row, {tile, count, whole});
  }

  int64_t rows() const { return rows_; }
  float row_max(int64_t row) const { return unit_ * row_max_[row]; }
  float sum(int64_t row) const { return hn::GetLane(hn::SumOfLanes(kF, hn::Load(kF, sums_ + row * kLanes))); }
  const float* out(int64_t row) const { return out_ + row * plan_.padded; }

 private:
  static constexpr int64_t kRows = Words::kRows, kPanelRows = Words::kPanelRows;
  static constexpr float kNothing = -1e30f;  // below every score, and finite: a row may see nothing in its first tile

  struct Keys {
    int64_t tile, count;
    bool whole;  // kKeys of them, which every row sees
  };

  /// to(from, first, count): rows [first, first + count) of the keys or values [tile, tile + count) are at `from`.
  void for_rows(const Element* all, int64_t tile, int64_t count, const auto& to) const {
    const int64_t shared = std::clamp<int64_t>(block_.span.hole_end - tile, 0, count);  // before the hole
    const Element* head = all + block_.kv_head * plan_.width;
    to(head + block_.span.key_row(tile) * key_stride(), 0, shared);
    to(head + (tile + shared) * key_stride(), shared, count - shared);
  }

  int64_t key_stride() const { return plan_.kv_heads * plan_.width; }

  void load_keys(const Element* k, int64_t tile, int64_t count) {
    for_rows(k, tile, count, [&](const Element* from, int64_t first, int64_t rows) {
      copy_rows<Words>(from, key_stride(), rows, plan_, tile_.rows + first * row_words_);
    });
    const int64_t depth = words<Words>(plan_.width);
    for (int64_t key = 0; key < count; key += kStrip) {
      float* strip = tile_.keys + key * plan_.padded;
      const int64_t real = std::min(kStrip, count - key), read = rounded_up(real, kPadding<Words>);
      transpose(tile_.rows + key * row_words_, real, row_words_, depth, strip, kStrip);
      for (int64_t i = 0; i < depth && real < read; ++i) {
        std::fill(strip + i * kStrip + real, strip + i * kStrip + read, 0.0f);
      }
    }
  }

  void load_values(const Element* v, int64_t tile, int64_t count) {
    for_rows(v, tile, count, [&](const Element* from, int64_t first, int64_t rows) {
      if constexpr (Words::kPerWord == 1) {
        copy_to_strips(from, key_stride(), rows, plan_, tile_.values, kKeys, first);
      } else {
        copy_rows<Words>(from, key_stride(), rows, plan_, tile_.rows + first * row_words_);
      }
    });
    if constexpr (Words::kPerWord > 1) {
      sum_over_rows<Words>(tile_.rows, count, plan_, tile_.values, kKeys / Words::kPerWord, 0);
    }
  }

  void start(const Element* q) {
    const int64_t stride = plan_.heads * plan_.width;
    for (int64_t h = 0; h < plan_.group; ++h) {
      const int64_t at = block_.query * stride + (block_.kv_head * plan_.group + h) * plan_.width;
      copy_rows<Words>(q + at, stride, block_.count, plan_, q_ + h * block_.count * row_words_);
    }
    std::fill(q_ + rows_ * row_words_, q_ + capacity_ * row_words_, 0.0f);
    std::fill(out_, out_ + capacity_ * plan_.padded, 0.0f);
    std::fill(sums_, sums_ + capacity_ * kLanes, 0.0f);
    std::fill(row_max_, row_max_ + capacity_, kNothing);
  }

  /// Rows [row, row + kRows) meet the keys, panel by panel, so that one panel's softmax runs beside the next one's
  /// products.
  void add_tile(int64_t row, const Keys& keys) {
    const int64_t real = std::min(kRows, rows_ - row), padded_rows = multiplied_rows<Words>(real);
    const auto panel_rows = [=](int64_t r) {
      const int64_t left = padded_rows - r;
      return left == 4 || left == 8 ? 4 : std::min(left, kPanelRows);
    };
    int64_t seen[kRows];  // columns, up to the last that a row of the panel sees
    for (int64_t r = 0; r < padded_rows; r += panel_rows(r)) {
      const int64_t count = std::min(panel_rows(r), real - r);
      Keys own = keys;
      own.whole = keys.whole || all_seen(row + r, count, keys);
      seen[r] = own.whole ? kKeys : seen_columns(row + r, count, keys);
      if (seen[r] == 0) continue;
      const int64_t columns = rounded_up(seen[r], kPadding<Words>);
      multiply<Words, Start::replace>({q_ + (row + r) * row_words_, row_words_, 1}, {tile_.keys, plan_.padded, kKeys},
                                      panel_rows(r), columns, words<Words>(plan_.width), tile_.scores + r * kKeys,
                                      kKeys);
      online_softmax(row + r, count, own, columns, tile_.scores + r * kKeys, tile_.keep + r);
      std::fill(tile_.keep + r + count, tile_.keep + r + panel_rows(r), 0.0f);
    }
    for (int64_t r = 0; r < padded_rows; r += panel_rows(r)) {
      if (seen[r] == 0) continue;
      multiply<Words, Start::rescale_and_add>(
          {tile_.scores + r * kKeys, kKeys, 1}, {tile_.values, kKeys / Words::kPerWord, plan_.padded}, panel_rows(r),
          plan_.padded, words<Words>(seen[r]), out_ + (row + r) * plan_.padded, plan_.padded, tile_.keep + r);
    }
  }

  int64_t position(int64_t row) const { return key_position(block_.span, block_.query + row % block_.count); }

  VisibleColumns visible_columns(int64_t row, const Keys& keys) const {
    VisibleColumns visible(plan_, block_.span, position(row), keys.tile);
    visible.high = std::min(visible.high, keys.count);
    return visible;
  }

  /// Whether rows [row, row + count), of one head, see all of a whole tile.
  bool all_seen(int64_t row, int64_t count, const Keys& keys) const {
    if (keys.count < kKeys || row % block_.count + count > block_.count) return false;
    const int64_t first = position(row), last = first + count - 1;
    return first + 1 >= keys.tile + kKeys && plan_.first_key(block_.span, last) <= keys.tile;
  }

  int64_t seen_columns(int64_t row, int64_t count, const Keys& keys) const {
    int64_t seen = 0;
    for (int64_t r = row; r < row + count; ++r) {
      const VisibleColumns visible = visible_columns(r, keys);
      if (visible.low < visible.high) seen = std::max(seen, visible.high);
    }
    return seen;
  }

  /// Products of rows [row, row + count) become e^(score - row_max), `keep` what sums so far are multiplied by.
  void online_softmax(int64_t row, int64_t count, const Keys& keys, int64_t columns, float* scores, float* keep) {
    constexpr int64_t kFactors = (kPanelRows + kLanes - 1) / kLanes * kLanes;
    float row_max[kPanelRows], factors[kFactors] = {};
    for (int64_t r = 0; r < count; ++r) {
      float* row_scores = scores + r * kKeys;
      if (!plain_) finish_scores(row + r, keys.tile, columns, row_scores);
      if (!keys.whole) hide(visible_columns(row + r, keys), columns, row_scores);
      row_max[r] = std::max(row_max_[row + r], highest(row_scores, columns));
      factors[r] = row_max_[row + r] - row_max[r];
      row_max_[row + r] = row_max[r];
    }
    const V unit = splat(unit_ * kLog2E);
    for (int64_t i = 0; i < kFactors; i += kLanes) {
      V power[] = {hn::Mul(unit, load(factors + i))};
      Words::power(power);
      store(power[0], factors + i);
    }
    for (int64_t r = 0; r < count; ++r) {
      float *row_scores = scores + r * kKeys, *sums = sums_ + (row + r) * kLanes;
      keep[r] = factors[r];
      V sum = hn::Mul(splat(factors[r]), load(sums));
      int64_t i = 0;
      for (; i + 4 * kLanes <= columns; i += 4 * kLanes)
        softmax_columns<4>(row_scores, i, splat(row_max[r]), unit, sum);
      for (; i < columns; i += kLanes) softmax_columns<1>(row_scores, i, splat(row_max[r]), unit, sum);
      store(sum, sums);
    }
  }

  /// Some vectors of columns of a row from i on.
  template <int vectors>
  static HWY_INLINE void softmax_columns(float* scores, int64_t i, V row_max, V unit, V& sum) {
    V weights[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) weights[v] = hn::Mul(unit, hn::Sub(load(scores + i + v * kLanes), row_max));
    Words::power(weights);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      sum = hn::Add(sum, weights[v]);
      Words::store_row(weights[v], scores, i + v * kLanes);
    }
  }

  /// Products become scores where they are not merely scaled: capped, biased by position.
  void finish_scores(int64_t row, int64_t tile, int64_t columns, float* scores) {
    const float softcap = plan_.params.softcap;
    const float slope = plan_.slope(block_.kv_head * plan_.group + row / block_.count);
    for (int64_t i = 0; i < columns; i += kLanes) {
      V score = hn::Mul(splat(plan_.params.scale), load(scores + i));
      if (softcap > 0) score = soft_cap(score, softcap);
      if (slope != 0) {
        const int64_t begin = block_.span.k_begin;
        score = add_alibi(score, plan_.params, slope, numbers_from(tile + i - begin), number(position(row) - begin));
      }
      store(score, scores + i);
    }
  }

  static void hide(const VisibleColumns& visible, int64_t columns, float* scores) {
    constexpr float kHidden = -std::numeric_limits<float>::infinity();
    if (visible.low > 0) std::fill(scores, scores + std::min(visible.low, columns), kHidden);
    if (visible.high < columns) std::fill(scores + visible.high, scores + columns, kHidden);
  }

  static float highest(const float* scores, int64_t columns) {
    V row_max = load(scores);
    for (int64_t i = kLanes; i < columns; i += kLanes) row_max = hn::Max(row_max, load(scores + i));
    return hn::GetLane(hn::MaxOfLanes(kF, row_max));
  }

  const AttentionPlan& plan_;
  const Block& block_;
  Tile& tile_;
  int64_t rows_, capacity_, row_words_;
  bool plain_;  // scores are scaled products: row_max_ is in units of products,
  float unit_;  // and this scales it
  Buffers buffers_;
  float *q_, *out_, *sums_, *row_max_;
};

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
