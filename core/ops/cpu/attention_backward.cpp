#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include <hwy/aligned_allocator.h>
#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/attention.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kBlockQueries = 48;
constexpr int64_t kPanelRows = 6;       // queries whose scores are in hand at a time: one panel of multiply()
constexpr int64_t kColumnTiles = 4;     // of keys in a column, at most: what is made of them stays in the L2 cache
constexpr int64_t kWideHead = 128;      // above it half as many
constexpr int64_t kEnoughColumns = 16;  // for a few threads; with fewer, columns are made narrower

/// The f32 sums of dq, in blocks [kBlockQueries, padded] for each block of queries and head: several columns of keys
/// add to one block, and the result may be bf16.
struct QueryGradients {
  int64_t heads, size;
  hwy::AlignedFreeUniquePtr<float[]> sums;
  float* block(int64_t index, int64_t head) { return sums.get() + (index * heads + head) * size; }
};

/// Some tiles of keys of one key head, against all queries that see them. Columns of one head and span run side by
/// side, but each waits for the one before it before it adds to a block of dq: sums have one order whatever the threads
/// do.
struct Column {
  AttentionSpan span;
  int64_t first_block;  // number of the span's first block of queries among all
  int64_t kv_head;
  int64_t begin, end;                // keys
  int64_t blocks_begin, blocks_end;  // blocks of the span that see them
};

int64_t query_blocks(const AttentionSpan& span) {
  return (span.q_end - span.q_begin + kBlockQueries - 1) / kBlockQueries;
}

/// Keys that block b of the span sees, at most: [low, high).
struct BlockKeys {
  BlockKeys(const AttentionPlan& plan, const AttentionSpan& span, int64_t b) {
    const int64_t query = span.q_begin + b * kBlockQueries;
    low = plan.first_key(span, key_position(span, query));
    high = key_position(span, std::min(span.q_end, query + kBlockQueries));
  }
  int64_t low, high;
};

/// Keys of a column, from sizes alone.
int64_t column_keys(const AttentionPlan& plan, std::span<const AttentionSpan> spans) {
  int64_t tiles = plan.padded > kWideHead ? kColumnTiles / 2 : kColumnTiles;
  const auto columns = [&] {
    int64_t count = 0;
    for (const AttentionSpan& span : spans) {
      count += (span.k_end - span.k_begin + tiles * kKeys - 1) / (tiles * kKeys) * plan.kv_heads;
    }
    return count;
  };
  while (tiles > 1 && columns() < kEnoughColumns) tiles /= 2;
  return tiles * kKeys;
}

std::vector<Column> cut_in_columns(const AttentionPlan& plan, std::span<const AttentionSpan> spans) {
  const int64_t width = column_keys(plan, spans);
  std::vector<Column> columns;
  int64_t first_block = 0;
  for (const AttentionSpan& span : spans) {
    const int64_t blocks = query_blocks(span);
    for (int64_t begin = span.k_begin; begin < span.k_end && blocks > 0; begin += width) {
      Column column{span, first_block, 0, begin, std::min(span.k_end, begin + width), 0, 0};
      while (column.blocks_begin < blocks && BlockKeys(plan, span, column.blocks_begin).high <= begin)
        ++column.blocks_begin;
      column.blocks_end = column.blocks_begin;
      while (column.blocks_end < blocks && BlockKeys(plan, span, column.blocks_end).low < column.end)
        ++column.blocks_end;
      for (column.kv_head = 0; column.kv_head < plan.kv_heads; ++column.kv_head) columns.push_back(column);
    }
    first_block += blocks;
  }
  return columns;
}

template <typename Element>
struct Inputs {
  const Element *dout, *q, *k, *v;
  const float *log_sum_exp, *delta;  // [H, Tq]
};

/// One tile of a column: its keys and values as right sides of products, and the sums of their gradients.
struct KeyTile {
  int64_t first, count;  // keys
  float *keys_transposed, *values_transposed;
  float* keys_by_rows;  // see sum_over_rows
  float *dk, *dv;
};

/// Buffers and steps of one Column.
template <typename Words, typename Element>
class ColumnWork {
 public:
  ColumnWork(const AttentionPlan& plan, const Column& column, const Inputs<Element>& in)
      : plan_(plan),
        column_(column),
        in_(in),
        row_words_(row_words<Words>(plan)),
        plain_(plan.params.softcap == 0 && plan.params.alibi_slopes.empty()) {
    const int64_t count = (column.end - column.begin + kKeys - 1) / kKeys;
    const int64_t tile = kKeys * plan.padded, block = kBlockQueries * plan.padded;
    const int64_t turned = (words<Words>(plan.width) + 3) / 4 * 4 * kKeys;  // transpose() writes whole fours of rows
    buffer_ = hwy::AllocateAligned<float>(static_cast<size_t>(count * (3 * tile + 2 * turned) + tile + 5 * block +
                                                              3 * kBlockQueries * kKeys + 3 * kPanelRows * kKeys +
                                                              2 * kBlockQueries));
    float* next = buffer_.get();
    const auto take = [&next](int64_t size) {
      float* taken = next;
      next += size;
      return taken;
    };
    for (int64_t t = 0; t < count; ++t) {
      const int64_t first = column.begin + t * kKeys;
      tiles_.push_back(
          {first, std::min(kKeys, column.end - first), take(turned), take(turned), take(tile), take(tile), take(tile)});
    }
    rows_ = take(tile);
    q_ = take(block);
    q_woven_ = take(block);
    dout_ = take(block);
    dout_woven_ = take(block);
    dq_ = take(block);
    weights_ = take(kBlockQueries * kKeys);
    slopes_ = take(kBlockQueries * kKeys);
    slopes_by_columns_ = take(kBlockQueries * kKeys);  // used by Pairs alone
    scores_ = take(kPanelRows * kKeys);
    weight_slopes_ = take(kPanelRows * kKeys);
    cap_slopes_ = take(kPanelRows * kKeys);
    logs_ = take(kBlockQueries);
    delta_ = take(kBlockQueries);
    for (const KeyTile& made : tiles_) load_keys(made);
  }

  /// Adds what the queries of block b in one head give to dk and dv, and leaves what the column gives to their dq.
  void add_block(int64_t b, int64_t head) {
    load_block(b, head);
    std::fill(dq_, dq_ + kBlockQueries * plan_.padded, 0.0f);
    for (const KeyTile& tile : tiles_) add_tile(tile, head);
  }

  /// Asks for what block b of one head reads.
  void fetch_block(int64_t b, int64_t head) const {
    const int64_t query = column_.span.q_begin + b * kBlockQueries, stride = plan_.heads * plan_.width;
    const int64_t count = std::min(kBlockQueries, column_.span.q_end - query), at = query * stride + head * plan_.width;
    for (const Element* rows : {in_.q, in_.dout}) fetch_rows(rows + at, stride, count, plan_.width);
  }

  /// dq of the block: what columns before gave, unless this is the first, and this one. Scaled in `to` if it is the
  /// last one, else kept in `sums`.
  void add_dq(float* sums, bool first, bool last, Element* to) const {
    const int64_t stride = plan_.heads * plan_.width;
    if (!last) {
      for (int64_t i = 0; i < count_ * plan_.padded; i += kLanes) {
        const V own = hn::Load(kF, dq_ + i);
        hn::Store(first ? own : hn::Add(hn::Load(kF, sums + i), own), kF, sums + i);
      }
      return;
    }
    for (int64_t r = 0; r < count_; ++r, sums += plan_.padded, to += stride) {
      for_lanes(plan_.width, [&](int64_t i, auto lanes) HWY_ATTR {
        V sum = hn::Load(kF, dq_ + r * plan_.padded + i);
        if (!first) sum = hn::Add(hn::Load(kF, sums + i), sum);
        store(hn::Mul(splat(plan_.params.scale), sum), to + i, lanes);
      });
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
  void load_keys(const KeyTile& tile) {
    const int64_t stride = plan_.kv_heads * plan_.width, at = tile.first * stride + column_.kv_head * plan_.width;
    copy_rows<Words>(in_.v + at, stride, tile.count, plan_, rows_);
    transpose(rows_, tile.count, row_words_, words<Words>(plan_.width), tile.values_transposed);
    float* keys = Words::kPerWord == 1 ? tile.keys_by_rows : rows_;
    copy_rows<Words>(in_.k + at, stride, tile.count, plan_, keys);
    std::fill(keys + tile.count * row_words_, keys + kKeys * row_words_, 0.0f);
    transpose(keys, tile.count, row_words_, words<Words>(plan_.width), tile.keys_transposed);
    sum_over_rows<Words>(keys, kKeys, plan_, tile.keys_by_rows);
    std::fill(tile.dk, tile.dk + kKeys * plan_.padded, 0.0f);
    std::fill(tile.dv, tile.dv + kKeys * plan_.padded, 0.0f);
  }

  void load_block(int64_t b, int64_t head) {
    query_ = column_.span.q_begin + b * kBlockQueries;
    count_ = std::min(kBlockQueries, column_.span.q_end - query_);
    rows_end_ = (count_ + kPanelRows - 1) / kPanelRows * kPanelRows;
    const int64_t stride = plan_.heads * plan_.width, at = query_ * stride + head * plan_.width;
    copy_rows<Words>(in_.q + at, stride, count_, plan_, q_);
    copy_rows<Words>(in_.dout + at, stride, count_, plan_, dout_);
    const float *logs = in_.log_sum_exp + head * plan_.queries + query_,
                *delta = in_.delta + head * plan_.queries + query_;
    for (int64_t r = 0; r < count_; ++r) logs_[r] = Words::kUnit * logs[r];
    std::copy_n(delta, count_, delta_);
    fill_behind();
    q_by_rows_ = sum_over_rows<Words>(q_, rows_end_, plan_, q_woven_);
    dout_by_rows_ = sum_over_rows<Words>(dout_, rows_end_, plan_, dout_woven_);
  }

  /// Rows from count_ on give nothing.
  void fill_behind() {
    std::fill(q_ + count_ * row_words_, q_ + rows_end_ * row_words_, 0.0f);
    std::fill(dout_ + count_ * row_words_, dout_ + rows_end_ * row_words_, 0.0f);
    std::fill(logs_ + count_, logs_ + rows_end_, std::numeric_limits<float>::infinity());  // weights become 0
    std::fill(delta_ + count_, delta_ + rows_end_, 0.0f);
  }

  int64_t position(int64_t r) const { return key_position(column_.span, query_ + r); }

  /// The panels of the block that see the tile, one after another, so that what makes slopes of one panel's scores runs
  /// beside the next one's products; then the products that sum over all of them.
  void add_tile(const KeyTile& tile, int64_t head) {
    const int64_t begin = std::max<int64_t>(0, tile.first - position(0)) / kPanelRows * kPanelRows;
    int64_t end = rows_end_;
    if (plan_.params.window > 0) {
      const int64_t seeing = std::max<int64_t>(0, tile.first + kKeys - 1 + plan_.params.window - position(0));
      end = std::min(end, (seeing + kPanelRows - 1) / kPanelRows * kPanelRows);
    }
    if (begin >= end) return;
    const int64_t depth = words<Words>(plan_.width);
    for (int64_t r = begin; r < end; r += kPanelRows) {
      const int64_t high = std::min(kKeys, position(r + kPanelRows - 1) + 1 - tile.first);
      const int64_t columns = (high + kLanes - 1) / kLanes * kLanes;
      multiply<Words, Start::replace>({q_ + r * row_words_, row_words_, 1}, tile.keys_transposed, kKeys, kPanelRows,
                                      columns, depth, scores_, kKeys);
      multiply<Words, Start::replace>({dout_ + r * row_words_, row_words_, 1}, tile.values_transposed, kKeys,
                                      kPanelRows, columns, depth, weight_slopes_, kKeys);
      differentiate(tile, head, r, columns);
    }
    const int64_t rows = words<Words>(end - begin), skipped = words<Words>(begin);
    multiply<Words, Start::add>({weights_ + skipped * kKeys, 1, kKeys}, dout_by_rows_ + skipped * plan_.padded,
                                plan_.padded, kKeys, plan_.padded, rows, tile.dv, plan_.padded);
    multiply<Words, Start::add>({slopes_ + skipped * kKeys, 1, kKeys}, q_by_rows_ + skipped * plan_.padded,
                                plan_.padded, kKeys, plan_.padded, rows, tile.dk, plan_.padded);
    constexpr int64_t kSlopeWords = kKeys / Words::kPerWord;
    const float* slopes = Words::kPerWord == 1 ? slopes_ : slopes_by_columns_;
    multiply<Words, Start::add>({slopes + begin * kSlopeWords, kSlopeWords, 1}, tile.keys_by_rows, plan_.padded,
                                end - begin, plan_.padded, words<Words>(kKeys), dq_ + begin * plan_.padded,
                                plan_.padded);
  }

  /// Rows [r, r + kPanelRows): products become weights, slopes of the weights become slopes of the scaled scores.
  void differentiate(const KeyTile& tile, int64_t head, int64_t r, int64_t columns) {
    const VisibleColumns first(plan_, column_.span, position(r), tile.first);
    const VisibleColumns last(plan_, column_.span, position(r + kPanelRows - 1), tile.first);
    if (!plain_) finish_scores(tile, head, r, columns);
    for (int64_t i = 0; i < kPanelRows; i += 2) {
      if (first.high == kKeys && last.low == 0) {
        differentiate_two<true>(tile, r, i, columns);
      } else {
        differentiate_two<false>(tile, r, i, columns);
      }
    }
  }

  /// The same for the rows r + i and r + i + 1. kWhole: all columns are seen.
  template <bool kWhole>
  void differentiate_two(const KeyTile& tile, int64_t r, int64_t i, int64_t columns) {
    int64_t k = 0;
    for (; k + 2 * kLanes <= columns; k += 2 * kLanes) differentiate_columns<kWhole, 2>(tile, r, i, k);
    for (; k < columns; k += kLanes) differentiate_columns<kWhole, 1>(tile, r, i, k);
    const V none = hn::Zero(kF);
    for (; k < kKeys; k += kLanes) {
      Words::store_two_rows(none, none, r + i, k, weights_, nullptr);
      Words::store_two_rows(none, none, r + i, k, slopes_, slopes_by_columns_);
    }
  }

  /// Some vectors of columns of those rows from k on.
  template <bool kWhole, int vectors>
  HWY_INLINE void differentiate_columns(const KeyTile& tile, int64_t r, int64_t i, int64_t k) {
    const V unit = splat(plain_ ? plan_.params.scale * Words::kUnit : Words::kUnit);
    V weights[2 * vectors], slopes[2 * vectors];  // even row, odd row, even row ...
#pragma GCC unroll 4
    for (int n = 0; n < 2 * vectors; ++n) {
      const int64_t row = i + n % 2, at = row * kKeys + k + n / 2 * kLanes;
      weights[n] = hn::MulSub(load(scores_ + at), unit, splat(logs_[r + row]));
      slopes[n] = hn::Sub(load(weight_slopes_ + at), splat(delta_[r + row]));
      if (!plain_) slopes[n] = hn::Mul(slopes[n], load(cap_slopes_ + at));
    }
    Words::power(weights);
#pragma GCC unroll 4
    for (int n = 0; n < 2 * vectors; ++n) {
      if constexpr (!kWhole) {
        const VisibleColumns seen(plan_, column_.span, position(r + i + n % 2), tile.first + k + n / 2 * kLanes);
        const auto lanes = [](int64_t count)
                               HWY_ATTR { return hn::FirstN(kF, static_cast<size_t>(std::min(count, kLanes))); };
        weights[n] = hn::IfThenZeroElse(lanes(seen.low), hn::IfThenElseZero(lanes(seen.high), weights[n]));
        slopes[n] = hn::IfThenZeroElse(lanes(seen.low), hn::IfThenElseZero(lanes(seen.high), slopes[n]));
      }
      slopes[n] = hn::Mul(weights[n], slopes[n]);
    }
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      const int64_t at = k + v * kLanes;
      Words::store_two_rows(weights[2 * v], weights[2 * v + 1], r + i, at, weights_, nullptr);
      Words::store_two_rows(slopes[2 * v], slopes[2 * v + 1], r + i, at, slopes_, slopes_by_columns_);
    }
  }

  /// Scaled, capped and tilted scores from their products, and the cap's own slopes.
  void finish_scores(const KeyTile& tile, int64_t head, int64_t r, int64_t columns) {
    const float softcap = plan_.params.softcap, tilt = plan_.slope(head);
    for (int64_t i = 0; i < kPanelRows; ++i) {
      for (int64_t k = 0; k < columns; k += kLanes) {
        V score = hn::Mul(splat(plan_.params.scale), load(scores_ + i * kKeys + k)), cap_slope = splat(1);
        if (softcap > 0) {
          score = soft_cap(score, softcap);
          const V share = hn::Mul(score, splat(1 / softcap));
          cap_slope = hn::NegMulAdd(share, share, splat(1));
        }
        if (tilt != 0) {
          score = tilted(score, plan_.params, tilt, column_.span.k_begin, tile.first + k, position(r + i));
        }
        store(score, scores_ + i * kKeys + k);
        store(cap_slope, cap_slopes_ + i * kKeys + k);
      }
    }
  }

  const AttentionPlan& plan_;
  const Column& column_;
  const Inputs<Element>& in_;
  int64_t row_words_;
  bool plain_;  // scores are scaled products
  hwy::AlignedFreeUniquePtr<float[]> buffer_;
  std::vector<KeyTile> tiles_;
  float *rows_, *q_, *q_woven_, *dout_, *dout_woven_, *dq_;
  float *weights_, *slopes_, *slopes_by_columns_;  // as left sides, see Words::store_two_rows
  float *scores_, *weight_slopes_, *cap_slopes_;   // of one panel
  float *logs_, *delta_;                           // of the block; logs in Words::kUnit
  const float *q_by_rows_, *dout_by_rows_;         // see sum_over_rows
  int64_t query_ = 0, count_ = 0, rows_end_ = 0;   // of the block: first, how many, rounded up to panels
};

/// delta [H, Tq]: sum over the head of dout * out, which is the mean of the weights' slopes.
template <typename Element>
std::unique_ptr<float[]> weight_slope_means(const AttentionPlan& plan, const Element* dout, const Element* out) {
  auto delta = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(plan.heads * plan.queries));
  parallel_for(plan.queries, 32, [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < plan.heads; ++h) {
        const int64_t at = (t * plan.heads + h) * plan.width;
        delta[static_cast<size_t>(h * plan.queries + t)] = sum_lanes(plan.width, [&](int64_t i, auto lanes) HWY_ATTR {
          return hn::Mul(load(dout + at + i, lanes), load(out + at + i, lanes));
        });
      }
    }
  });
  return delta;
}

template <typename Words, typename Element>
void backward(const AttentionPlan& plan, const Inputs<Element>& in, std::span<const AttentionSpan> spans, Element* dq,
              Element* dk, Element* dv) {
  const std::vector<Column> columns = cut_in_columns(plan, spans);
  const int64_t count = static_cast<int64_t>(columns.size());
  int64_t blocks = 0;
  for (const AttentionSpan& span : spans) blocks += query_blocks(span);
  QueryGradients sums{plan.heads, kBlockQueries * plan.padded, {}};
  sums.sums = hwy::AllocateAligned<float>(static_cast<size_t>(blocks * plan.heads * sums.size));

  // done[c]: blocks of queries that column c is through with. Columns are taken in order of a ticket, so the one that
  // another waits for has been taken before and its thread is at work.
  const auto done = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(count));
  std::atomic<int64_t> ticket = 0;
  parallel_for(count, 1, [&](int64_t, int64_t) {
    const int64_t index = ticket.fetch_add(1);
    const Column& column = columns[static_cast<size_t>(index)];
    ColumnWork<Words, Element> work(plan, column, in);
    for (int64_t b = column.blocks_begin; b < column.blocks_end; ++b) {
      const BlockKeys sees(plan, column.span, b);
      const bool first = sees.low >= column.begin, last = sees.high <= column.end;
      const int64_t query = column.span.q_begin + b * kBlockQueries;
      for (int64_t h = column.kv_head * plan.group; h < (column.kv_head + 1) * plan.group; ++h) {
        const bool last_head = h + 1 == (column.kv_head + 1) * plan.group;
        if (!last_head) work.fetch_block(b, h + 1);
        if (last_head && b + 1 < column.blocks_end) work.fetch_block(b + 1, column.kv_head * plan.group);
        work.add_block(b, h);
        if (!first) {
          const auto& before = done[static_cast<size_t>(index - plan.kv_heads)];
          while (before.load(std::memory_order_acquire) <= b) std::this_thread::yield();
        }
        work.add_dq(sums.block(column.first_block + b, h), first, last, dq + (query * plan.heads + h) * plan.width);
      }
      done[static_cast<size_t>(index)].store(b + 1, std::memory_order_release);
    }
    done[static_cast<size_t>(index)].store(std::numeric_limits<int64_t>::max(), std::memory_order_release);
    work.write(dk, dv);
  });
}

template <typename Words, typename Element>
void backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
              const Tensor& log_sum_exp, std::span<const AttentionSpan> spans, const AttentionParams& params,
              Tensor& dq, Tensor& dk, Tensor& dv) {
  const AttentionPlan plan(q, k, params, kLanes);
  if (leaves_queries_out(plan, spans)) dq.zero();
  if (leaves_keys_out(plan, spans)) {
    dk.zero();
    dv.zero();
  }
  const auto delta = weight_slope_means(plan, dout.data<const Element>(), out.data<const Element>());
  const Inputs<Element> in = {dout.data<const Element>(), q.data<const Element>(),         k.data<const Element>(),
                              v.data<const Element>(),    log_sum_exp.data<const float>(), delta.get()};
  backward<Words>(plan, in, spans, dq.data<Element>(), dk.data<Element>(), dv.data<Element>());
}

void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& log_sum_exp, std::span<const AttentionSpan> spans, const AttentionParams& params,
                        Tensor& dq, Tensor& dk, Tensor& dv) {
  if (q.dtype() == DType::f32) {
    return backward<Singles, float>(dout, q, k, v, out, log_sum_exp, spans, params, dq, dk, dv);
  }
#if HWY_TARGET == HWY_AVX3
  if (isa() == Isa::avx512_bf16) {
    return backward<Pairs, bf16>(dout, q, k, v, out, log_sum_exp, spans, params, dq, dk, dv);
  }
#endif
  backward<Singles, bf16>(dout, q, k, v, out, log_sum_exp, spans, params, dq, dk, dv);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops {

HWY_EXPORT(attention_backward);

void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& log_sum_exp, std::span<const AttentionSpan> spans, const AttentionParams& params,
                        Tensor& dq, Tensor& dk, Tensor& dv) {
  check_attention(q, k, v, spans, params);
  for (const Tensor* like_q : {&dout, &out, static_cast<const Tensor*>(&dq)}) {
    NIBBLE_CHECK(like_q->shape() == q.shape() && like_q->dtype() == q.dtype(), "attention backward: dout, out or dq");
  }
  for (const Tensor* like_k : {&dk, &dv}) {
    NIBBLE_CHECK(like_k->shape() == k.shape() && like_k->dtype() == q.dtype(), "attention backward: dk or dv");
  }
  NIBBLE_CHECK(log_sum_exp.numel() == params.heads * q.dim(0), "attention backward: log_sum_exp");
  NIBBLE_SIMD(attention_backward)(dout, q, k, v, out, log_sum_exp, spans, params, dq, dk, dv);
}

}  // namespace nibble::ops
#endif
