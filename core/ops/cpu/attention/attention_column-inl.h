// The backward pass of attention for some keys of one head: what a block of queries gives to their gradients, and they
// to those of the queries. Compiled once per instruction set; include after hwy/foreach_target.h.

#if defined(NIBBLE_CORE_OPS_CPU_ATTENTION_COLUMN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_CORE_OPS_CPU_ATTENTION_COLUMN_INL_H_
#undef NIBBLE_CORE_OPS_CPU_ATTENTION_COLUMN_INL_H_
#else
#define NIBBLE_CORE_OPS_CPU_ATTENTION_COLUMN_INL_H_
#endif

#include <limits>
#include <vector>

#include <hwy/aligned_allocator.h>
#include "nibble/core/ops/cpu/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kBlockQueries = 2 * kKeys;  // whose gradients are summed before they are added to what is in memory
constexpr int kPanelKeys = 6;                 // whose scores are computed at a time, for kStrip queries

/// Some tiles of keys of one key head, against all queries that see them. Columns of one head and span run side by
/// side, but each waits for the one before it before it adds to a block of dq: sums have one order whatever the threads
/// do. Where there are more threads than columns, a column is split into some of its tiles: what these give to dq is
/// summed from tile to tile, as by one thread.
struct Column {
  /// The queries of a document that see the keys. Several documents see a beginning that they share.
  struct Queries {
    AttentionSpan span;                // without a hole, in the keys' numbers
    int64_t first_block;               // number of the span's first block of queries among all
    int64_t blocks_begin, blocks_end;  // blocks of the span that see the keys
    int64_t before;                    // the column of their keys before these, its last part
    int64_t first_sums = 0;            // number of blocks_begin among the blocks of all queries that see the keys
  };
  int64_t kv_head;
  int64_t begin, end;            // keys of the column
  int64_t part_begin, part_end;  // and of the part
  int64_t number;                // of the column
  int64_t blocks;                // of queries that see its keys
  std::vector<Queries> queries;

  bool is_first() const { return part_begin == begin; }
  bool is_last() const { return part_end == end; }
};

template <typename Element>
struct Inputs {
  const Element *dout, *q, *k, *v;
  const float *log_sum_exp, *delta;  // [H, Tq]
};

/// One tile of a column: its keys and values, and the sums of their gradients.
struct KeyTile {
  int64_t first, count;  // keys
  float *keys, *values;  // rows, left sides of products
  float* keys_by_rows;   // left side of one that sums over them: the rows themselves, or a buffer; turned for PairTiles
  float *dk, *dv;
};

/// Asks for what a block of queries reads, a few rows at a time: between the rows of q and dout lies too much for the
/// hardware to fetch them ahead, and all at once they would wait for each other.
template <typename Element>
struct Fetch {
  const Element *q = nullptr, *dout = nullptr;
  int64_t stride = 0, width = 0, rows = 0;

  void some(int64_t most) {
    const int64_t count = std::min(rows, most);
    for (const Element** from : {&q, &dout}) {
      fetch_rows(*from, stride, count, width);
      *from += count * stride;
    }
    rows -= count;
  }
};

/// Buffers and steps of one Column. Scores stand with keys in rows and queries in lanes: what belongs to a query is a
/// lane, and what a product leaves in registers becomes weights or score gradients there.
template <typename Words, typename Element>
class ColumnWork {
 public:
  ColumnWork(const AttentionPlan& plan, const Column& column, const Inputs<Element>& in)
      : plan_(plan),
        column_(column),
        in_(in),
        row_words_(row_words<Words>(plan)),
        depth_(words<Words>(plan.width)),
        turned_((depth_ + 3) / 4 * 4 * kStrip),  // transpose() writes whole fours of rows
        plain_(plan.params.softcap == 0 && plan.params.alibi_slopes.empty()) {
    const int64_t count = (column.part_end - column.part_begin + kKeys - 1) / kKeys, tile = kKeys * plan.padded;
    buffer_ = hwy::AllocateAligned<float>(static_cast<size_t>((kKeyTiles * count + 1) * tile + 2 * kStrips * turned_ +
                                                              6 * tile + 3 * kKeys * kBlockQueries + 2 * kBlockQueries +
                                                              2 * kProducts));
    float* next = buffer_.get();
    const auto take = [&next](int64_t size) {
      float* taken = next;
      next += size;
      return taken;
    };
    for (int64_t t = 0; t < count; ++t) {
      const int64_t first = column.part_begin + t * kKeys;
      float* keys = take(tile);
      float* keys_by_rows = kRowsAsTheyAre ? keys : take(tile);
      tiles_.push_back(
          {first, std::min(kKeys, column.part_end - first), keys, take(tile), keys_by_rows, take(tile), take(tile)});
    }
    rows_ = take(tile);
    q_transposed_ = take(kStrips * turned_);
    dout_transposed_ = take(kStrips * turned_);
    q_by_rows_ = take(2 * tile);
    dout_by_rows_ = take(2 * tile);
    own_dq_ = take(2 * tile);
    weights_ = take(kKeys * kBlockQueries);
    dscores_ = take(kKeys * kBlockQueries);
    dscores_in_strips_ = take(kKeys * kBlockQueries);
    logs_ = take(kBlockQueries);
    delta_ = take(kBlockQueries);
    scores_ = take(kProducts);
    weight_gradients_ = take(kProducts);
    for (const KeyTile& result : tiles_) load_keys(result);
  }

  /// Floats of dq of a block: [kBlockQueries / kStrip, padded, kStrip], queries in lanes.
  static int64_t block_size(const AttentionPlan& plan) { return kBlockQueries * plan.padded; }

  /// Adds what the queries of block b in one head give to dk and dv, and to dq what the part gives to theirs. dq:
  /// the sums of the parts before, once wait() has returned; null: there is one part.
  void add_block(const Column::Queries& of, int64_t b, int64_t head, float* dq, const auto& wait) {
    span_ = &of.span;
    dq_ = dq != nullptr ? dq : own_dq_;
    query_ = span_->q_begin + b * kBlockQueries;
    count_ = std::min(kBlockQueries, span_->q_end - query_);
    end_ = rounded_up(count_, kPadding<Words>);
    if (column_.is_first()) std::fill(dq_, dq_ + block_size(plan_), 0.0f);
    bool loaded = false;
    for (const KeyTile& tile : tiles_) {
      const SeeingQueries seeing = seeing_queries(tile);
      if (seeing.begin >= seeing.end) continue;
      if (!loaded) load_block(head);
      add_to_keys(tile, seeing, head);
      if (!loaded) wait();
      loaded = true;
      add_to_queries(tile, seeing);
    }
    if (!loaded) wait();
  }

  /// Asks for what block b of one head reads, while add_block works on another.
  void fetch_block(const Column::Queries& of, int64_t b, int64_t head) {
    const int64_t query = of.span.q_begin + b * kBlockQueries, stride = plan_.heads * plan_.width;
    const int64_t count = std::min(kBlockQueries, of.span.q_end - query), at = query * stride + head * plan_.width;
    fetch_ = {in_.q + at, in_.dout + at, stride, plan_.width, count};
  }

  /// dq of the block: what columns before gave, unless this is the first, and this one. Scaled in `to` if it is the
  /// last one, else kept in `sums`.
  void add_dq(float* sums, bool first, bool last, Element* to) {
    const int64_t strip = kStrip * plan_.padded, stride = plan_.heads * plan_.width;
    for (int64_t query = 0; query < count_; query += kStrip, sums += strip) {
      float* own = dq_ + query * plan_.padded;
      for (int64_t i = 0; i < strip; i += kLanes) {
        V sum = hn::Load(kF, own + i);
        if (!first) sum = hn::Add(hn::Load(kF, sums + i), sum);
        if (last) sum = hn::Mul(splat(plan_.params.scale), sum);
        hn::Store(sum, kF, (last ? own : sums) + i);
      }
      if (!last) continue;
      transpose(own, plan_.padded, kStrip, kStrip, rows_, plan_.padded);
      for (int64_t r = 0; r < std::min(kStrip, count_ - query); ++r, to += stride) {
        for_lanes(plan_.width, [&](int64_t i, auto lanes)
                                   HWY_ATTR { store(load(rows_ + r * plan_.padded + i, lanes), to + i, lanes); });
      }
    }
  }

  void write(Element* dk, Element* dv) const {
    for (const KeyTile& tile : tiles_) {
      for (int64_t j = 0; j < tile.count; ++j) {
        const int64_t at = ((tile.first + j) * plan_.kv_heads + column_.kv_head) * plan_.width;
        for_lanes(plan_.width, [&](int64_t i, auto lanes) HWY_ATTR {
          store(hn::Mul(splat(plan_.params.scale), load(tile.dk + j * plan_.padded + i, lanes)), dk + at + i, lanes);
          store(load(tile.dv + j * plan_.padded + i, lanes), dv + at + i, lanes);
        });
      }
    }
  }

 private:
  static constexpr int64_t kBlockWords = kBlockQueries / Words::kPerWord, kKeyWords = kKeys / Words::kPerWord;
  // Keys that a panel of queries is multiplied with before panels are made of the products; 0: no more than a panel's.
  static constexpr int64_t kMultipliedKeys = Words::kTiles ? 16 : 0, kProducts = kMultipliedKeys * kStrip;
  static constexpr bool kRowsAsTheyAre = Words::kPerWord == 1;  // are left sides of products that sum over rows
  static constexpr int64_t kKeyTiles = kRowsAsTheyAre ? 4 : 5;  // of a KeyTile
  static constexpr int64_t kStrips = kBlockQueries / kStrip;
  // Rows of queries that are turned while the first cache level holds them.
  static constexpr int64_t kTurnedRows = kRowsAsTheyAre ? std::min<int64_t>(8, kStrip) : kKeys;
  static_assert(kStrip % kTurnedRows == 0);

  /// `rows` rows: the first `count` of them from `from`, the others zero.
  void load_rows(const Element* from, int64_t stride, int64_t count, int64_t rows, float* to) const {
    copy_rows<Words>(from, stride, count, plan_, to);
    std::fill(to + count * row_words_, to + rows * row_words_, 0.0f);
  }

  void load_keys(const KeyTile& tile) {
    const int64_t stride = plan_.kv_heads * plan_.width, at = tile.first * stride + column_.kv_head * plan_.width;
    load_rows(in_.v + at, stride, tile.count, kKeys, tile.values);
    load_rows(in_.k + at, stride, tile.count, kKeys, tile.keys);
    if constexpr (Words::kTiles) {
      interleave_rows<Words>(tile.keys, kKeys, plan_, 0, plan_.padded, rows_);
      transpose(rows_, words<Words>(kKeys), plan_.padded, plan_.padded, tile.keys_by_rows, words<Words>(kKeys));
    } else if constexpr (!kRowsAsTheyAre) {
      interleave_rows<Words>(tile.keys, kKeys, plan_, 0, plan_.padded, tile.keys_by_rows);
    }
    std::fill(tile.dk, tile.dk + kKeys * plan_.padded, 0.0f);
    std::fill(tile.dv, tile.dv + kKeys * plan_.padded, 0.0f);
  }

  void load_block(int64_t head) {
    const int64_t stride = plan_.heads * plan_.width, at = query_ * stride + head * plan_.width;
    load_queries(in_.q + at, stride, q_transposed_, q_by_rows_);
    load_queries(in_.dout + at, stride, dout_transposed_, dout_by_rows_);
    const float *logs = in_.log_sum_exp + head * plan_.queries + query_,
                *delta = in_.delta + head * plan_.queries + query_;
    for (int64_t r = 0; r < count_; ++r) logs_[r] = kLog2E * logs[r];
    std::fill(logs_ + count_, logs_ + end_, std::numeric_limits<float>::infinity());  // weights become 0
    std::copy_n(delta, count_, delta_);
    std::fill(delta_ + count_, delta_ + end_, 0.0f);
  }

  void load_queries(const Element* from, int64_t stride, float* transposed, float* by_rows) {
    for (int64_t query = 0; query < rounded_up(count_, kKeys); query += kTurnedRows, from += kTurnedRows * stride) {
      load_rows(from, stride, std::clamp<int64_t>(count_ - query, 0, kTurnedRows), kTurnedRows, rows_);
      transpose(rows_, kTurnedRows, row_words_, depth_, transposed + lanes_of(query), kStrip);
      sum_over_rows<Words>(rows_, kTurnedRows, plan_, by_rows, kBlockWords, query / Words::kPerWord);
    }
  }

  int64_t position(int64_t r) const { return key_position(*span_, query_ + r); }

  /// Keys of the tile that a query before `end` of the block sees, from the tile's first on.
  int64_t seen_keys(const KeyTile& tile, int64_t end) const {
    return std::min(tile.count, position(end - 1) + 1 - tile.first);
  }

  /// Of the block, in whole panels.
  struct SeeingQueries {
    int64_t begin, end;
  };
  SeeingQueries seeing_queries(const KeyTile& tile) const {
    const int64_t begin = std::max<int64_t>(0, tile.first - position(0)) / kStrip * kStrip;
    int64_t end = end_;
    if (plan_.params.window > 0) {
      const int64_t seeing = std::max<int64_t>(0, tile.first + kKeys - 1 + plan_.params.window - position(0));
      end = std::min(end, (seeing + kStrip - 1) / kStrip * kStrip);
    }
    return {begin, end};
  }

  /// The panels of the block that see the tile, then the products that sum over all of them.
  void add_to_keys(const KeyTile& tile, SeeingQueries seeing, int64_t head) {
    for (int64_t query = seeing.begin; query < seeing.end; query += kStrip) differentiate(tile, head, query);
    const int64_t rows = multiplied_rows<Words>(tile.count);
    // Queries before the first that sees one of a few keys have no weights.
    constexpr int64_t kMost = Words::kTiles ? 2 * kMultipliedKeys : 2 * kPanelKeys;
    for (int64_t key = 0, keys; key < rows; key += keys) {
      keys = rows - key <= kMost + 2 ? rows - key : kMost;
      const int64_t seen_from = std::max(seeing.begin, tile.first + key - position(0));
      const int64_t first = seen_from / Words::kPerWord / kTogether<Words> * kTogether<Words>;
      const int64_t depth = words<Words>(seeing.end) - first, left = key * kBlockWords + first;
      if (depth <= 0) break;
      multiply<Words, Start::add>({weights_ + left, kBlockWords, 1}, {dout_by_rows_, kBlockWords, plan_.padded, first},
                                  keys, plan_.padded, depth, tile.dv + key * plan_.padded, plan_.padded);
      multiply<Words, Start::add>({dscores_ + left, kBlockWords, 1}, {q_by_rows_, kBlockWords, plan_.padded, first},
                                  keys, plan_.padded, depth, tile.dk + key * plan_.padded, plan_.padded);
    }
  }

  /// The products that sum over the tile's keys.
  void add_to_queries(const KeyTile& tile, SeeingQueries seeing) {
    for (int64_t low = seeing.begin, high; low < seeing.end; low = high) {
      high = std::min(seeing.end, low + kStrip);
      const Left keys =
          Words::kTiles ? Left{tile.keys_by_rows, words<Words>(kKeys), 1} : Left{tile.keys_by_rows, 1, plan_.padded};
      multiply<Words, Start::add>(keys, {dscores_in_strips(low), kKeyWords, kStrip}, plan_.padded, high - low,
                                  words<Words>(seen_keys(tile, high)), dq_ + low * plan_.padded, kStrip);
    }
  }

  float* dscores_in_strips(int64_t query) const {
    return dscores_in_strips_ + query / kStrip * (kStrip * kKeyWords) + query % kStrip;
  }

  /// Weights and score gradients of the queries [query, query + kStrip) and all keys of the tile.
  void differentiate(const KeyTile& tile, int64_t head, int64_t query) {
    const int64_t vectors = std::min<int64_t>(kPanelVectors, (end_ - query) / kLanes);
    const int64_t seen = seen_keys(tile, query + vectors * kLanes);
    // A tile has more than 16 panels, or 8: the next block is there before the last of them.
    const int64_t rows_fetched = kBlockQueries / (Words::kTiles ? 8 : 16) / static_cast<int64_t>(tiles_.size()) + 1;
    for (int64_t key = 0, keys; key < kKeys; key += keys) {
      fetch_.some(rows_fetched);
      const int64_t left = seen - key;
      keys = Words::kTiles ? kMultipliedKeys : left <= 4 || left == 8 ? 4 : kPanelKeys;
      // Vectors of queries before the first that sees one of the keys.
      const int64_t before = left <= 0 ? vectors : std::max<int64_t>(0, tile.first + key - position(query)) / kLanes;
      const Panel panel{tile, head, query + before * kLanes, key};
      clear(query, std::min(before, vectors), key, std::min(keys, kKeys - key));
      if constexpr (Words::kTiles) {
        if (before < vectors) differentiate_tiles(panel, vectors - before);
      } else if (keys == 4) {
        differentiate_panel<4>(panel, vectors - before);
      } else {
        differentiate_panel<kPanelKeys>(panel, vectors - before);
      }
    }
  }

  /// Some keys of a tile, from `key` on, and queries of one head, from `query` on.
  struct Panel {
    const KeyTile& tile;
    int64_t head, query, key;
  };

  void clear(int64_t query, int64_t vectors, int64_t key, int64_t keys) {
    const V none = hn::Zero(kF);
    for (int64_t q = query; q < query + vectors * kLanes; q += kLanes) {
      for (int64_t k = key; k < key + keys; k += 2) {
        store_weights(none, none, k, q);
        store_dscores(none, none, k, q);
      }
    }
  }

  /// A panel of kMultipliedKeys keys, whose products come from tiles.
  void differentiate_tiles(Panel panel, int64_t vectors) {
    const auto multiply_keys = [&](const float* rows, const float* transposed, float* products) {
      multiply<Words, Start::replace>({rows + panel.key * row_words_, row_words_, 1},
                                      {transposed + lanes_of(panel.query), depth_, kStrip}, kMultipliedKeys,
                                      vectors * kLanes, depth_, products, kStrip);
    };
    multiply_keys(panel.tile.keys, q_transposed_, scores_);
    multiply_keys(panel.tile.values, dout_transposed_, weight_gradients_);
    for (const int64_t end = panel.key + kMultipliedKeys; panel.key < end; panel.key += 4) {
      differentiate_panel<4>(panel, vectors);
    }
  }

  /// Where a query is in what is transposed.
  int64_t lanes_of(int64_t query) const { return query / kStrip * turned_ + query % kStrip; }

  /// then(products) with products [keys, vectors] of the panel's rows and queries: made here, or in tiles before.
  template <int keys, int vectors>
  HWY_INLINE void with_products(const Panel& panel, const float* rows, const float* transposed, const float* products,
                                const auto& then) {
    if constexpr (Words::kTiles) {
      load_panel<keys, vectors>(products + panel.key % kMultipliedKeys * kStrip, kStrip, then);
    } else {
      multiply_panel<Words, keys, vectors>({rows + panel.key * row_words_, row_words_, 1},
                                           transposed + lanes_of(panel.query), kStrip, depth_, then);
    }
  }

  template <int keys>
  void differentiate_panel(const Panel& panel, int64_t vectors) {
    const int64_t last = position(panel.query + vectors * kLanes - 1),
                  last_key = panel.tile.first + panel.key + keys - 1;
    if (vectors == kPanelVectors && plain_ && position(panel.query) >= last_key &&
        plan_.first_key(*span_, last) <= panel.tile.first + panel.key) {
      return differentiate_panel<keys, kPanelVectors, true, true>(panel);
    }
    if (vectors == 1) {
      plain_ ? differentiate_panel<keys, 1, true, false>(panel) : differentiate_panel<keys, 1, false, false>(panel);
    } else if (vectors == 2) {
      plain_ ? differentiate_panel<keys, 2, true, false>(panel) : differentiate_panel<keys, 2, false, false>(panel);
    }
    if constexpr (kPanelVectors == 4) {
      if (vectors == 3) {
        plain_ ? differentiate_panel<keys, 3, true, false>(panel) : differentiate_panel<keys, 3, false, false>(panel);
      } else if (vectors == 4) {
        plain_ ? differentiate_panel<keys, 4, true, false>(panel) : differentiate_panel<keys, 4, false, false>(panel);
      }
    }
  }

  /// kPlain: scores are scaled products. kWhole: every query sees every key.
  template <int keys, int vectors, bool kPlain, bool kWhole>
  HWY_NOINLINE void differentiate_panel(const Panel& panel) {
    const V unit = splat(kPlain ? plan_.params.scale * kLog2E : kLog2E);
    V cap_derivatives[keys][kPlain ? 1 : vectors];
    alignas(64) float weights[keys][vectors * kLanes];
    const auto to_weights = [&](V(&scores)[keys][vectors]) HWY_ATTR {
#pragma GCC unroll 8
      for (int i = 0; i < keys; i += 2) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
          const int64_t query = panel.query + v * kLanes, key = panel.tile.first + panel.key + i;
          V both[] = {scores[i][v], scores[i + 1][v]};
          for (int n = 0; n < 2; ++n) {
            if constexpr (!kPlain) cap_derivatives[i + n][v] = finish_score(key + n, panel.head, query, both[n]);
            both[n] = hn::MulSub(both[n], unit, hn::Load(kF, logs_ + query));
          }
          Words::power(both);
          for (int n = 0; n < 2; ++n) {
            if constexpr (!kWhole) both[n] = hidden(both[n], key + n - position(query));
            hn::Store(both[n], kF, weights[i + n] + v * kLanes);
          }
          store_weights(both[0], both[1], panel.key + i, query);
        }
      }
    };
    const auto to_dscores = [&](V(&dscores)[keys][vectors]) HWY_ATTR {
#pragma GCC unroll 8
      for (int i = 0; i < keys; i += 2) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
          const int64_t query = panel.query + v * kLanes;
          V both[] = {dscores[i][v], dscores[i + 1][v]};
          for (int n = 0; n < 2; ++n) {
            both[n] = hn::Sub(both[n], hn::Load(kF, delta_ + query));
            if constexpr (!kPlain) both[n] = hn::Mul(both[n], cap_derivatives[i + n][v]);
            both[n] = hn::Mul(both[n], hn::Load(kF, weights[i + n] + v * kLanes));
          }
          store_dscores(both[0], both[1], panel.key + i, query);
        }
      }
    };
    with_products<keys, vectors>(panel, panel.tile.keys, q_transposed_, scores_, to_weights);
    with_products<keys, vectors>(panel, panel.tile.values, dout_transposed_, weight_gradients_, to_dscores);
  }

  /// Weights of a vector of queries for a key that is `ahead` of the first of them: 0 where it is not seen.
  HWY_INLINE V hidden(V weights, int64_t ahead) const {
    const auto first = [](int64_t count) HWY_ATTR {
      return hn::FirstN(kF, static_cast<size_t>(std::clamp<int64_t>(count, 0, kLanes)));
    };
    weights = hn::IfThenZeroElse(first(ahead), weights);
    return plan_.params.window > 0 ? hn::IfThenElseZero(first(ahead + plan_.params.window), weights) : weights;
  }

  /// Product of one key and a vector of queries becomes the scaled, capped and position-biased score; returns the
  /// derivative of the cap.
  HWY_INLINE V finish_score(int64_t key, int64_t head, int64_t query, V& score) const {
    const float softcap = plan_.params.softcap, slope = plan_.slope(head);
    V cap_derivative = splat(1);
    score = hn::Mul(splat(plan_.params.scale), score);
    if (softcap > 0) {
      score = soft_cap(score, softcap);
      const V share = hn::Mul(score, splat(1 / softcap));
      cap_derivative = hn::NegMulAdd(share, share, splat(1));
    }
    if (slope != 0) {
      const int64_t begin = span_->k_begin;
      score = add_alibi(score, plan_.params, slope, number(key - begin), numbers_from(position(query) - begin));
    }
    return cap_derivative;
  }

  /// Of the keys key, key + 1 for a vector of queries.
  HWY_INLINE void store_weights(V even, V odd, int64_t key, int64_t query) {
    Words::store_two_rows(even, odd, weights_ + key * kBlockWords + query / Words::kPerWord, kBlockWords, nullptr);
  }
  HWY_INLINE void store_dscores(V even, V odd, int64_t key, int64_t query) {
    Words::store_two_rows(even, odd, dscores_ + key * kBlockWords + query / Words::kPerWord, kBlockWords,
                          dscores_in_strips(query) + key / Words::kPerWord * kStrip);
  }

  const AttentionPlan& plan_;
  const Column& column_;
  const AttentionSpan* span_ = nullptr;  // of the block
  const Inputs<Element>& in_;
  int64_t row_words_, depth_, turned_;
  bool plain_;  // scores are scaled products
  hwy::AlignedFreeUniquePtr<float[]> buffer_;
  std::vector<KeyTile> tiles_;
  Fetch<Element> fetch_;
  float* rows_;                              // for a moment
  float *q_transposed_, *dout_transposed_;   // right sides [depth_, kBlockQueries], whose strips lie turned_ apart
  float *q_by_rows_, *dout_by_rows_;         // and [kBlockWords, padded]
  float *own_dq_, *dq_ = nullptr;            // see block_size
  float *weights_, *dscores_;                // [kKeys, kBlockWords]
  float* dscores_in_strips_;                 // right side [kKeyWords, kBlockQueries]
  float *logs_, *delta_;                     // of the block; logs to base 2
  float *scores_, *weight_gradients_;        // [kMultipliedKeys, kStrip], from tiles
  int64_t query_ = 0, count_ = 0, end_ = 0;  // of the block: first, how many, in whole vectors
};

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
