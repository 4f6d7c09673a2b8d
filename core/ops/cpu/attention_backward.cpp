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

/// The f32 sums of dq, in blocks [kBlockQueries, padded] for each block of queries and head: several tiles of keys add
/// to one block, and the result may be bf16.
struct QueryGradients {
  int64_t heads, size;
  hwy::AlignedFreeUniquePtr<float[]> sums;
  float* block(int64_t index, int64_t head) { return sums.get() + (index * heads + head) * size; }
};

/// One tile of keys of one key head, against all queries that see it. Columns of one head and span run side by side,
/// but each waits for the one before it before it adds to a block of dq: sums have one order whatever the threads do.
struct Column {
  AttentionSpan span;
  int64_t first_block;               // number of the span's first block of queries among all
  int64_t kv_head, tile;             // first key
  int64_t blocks_begin, blocks_end;  // blocks of the span that see it
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

std::vector<Column> cut_in_columns(const AttentionPlan& plan, std::span<const AttentionSpan> spans) {
  std::vector<Column> columns;
  int64_t first_block = 0;
  for (const AttentionSpan& span : spans) {
    const int64_t blocks = query_blocks(span);
    for (int64_t tile = span.k_begin; tile < span.k_end && blocks > 0; tile += kKeys) {
      Column column{span, first_block, 0, tile, 0, 0};
      while (column.blocks_begin < blocks && BlockKeys(plan, span, column.blocks_begin).high <= tile)
        ++column.blocks_begin;
      column.blocks_end = column.blocks_begin;
      while (column.blocks_end < blocks && BlockKeys(plan, span, column.blocks_end).low < tile + kKeys)
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

/// Buffers and steps of one Column.
template <typename Words, typename Element>
class ColumnWork {
 public:
  ColumnWork(const AttentionPlan& plan, const Column& column, const Inputs<Element>& in)
      : plan_(plan),
        column_(column),
        in_(in),
        keys_in_tile_(std::min(kKeys, column.span.k_end - column.tile)),
        buffer_(
            hwy::AllocateAligned<float>(static_cast<size_t>(7 * kKeys * plan.padded + 4 * kBlockQueries * plan.padded +
                                                            3 * kBlockQueries * kKeys + 2 * kBlockQueries))) {
    float* next = buffer_.get();
    const auto take = [&next](int64_t count) {
      float* taken = next;
      next += count;
      return taken;
    };
    const int64_t tile = kKeys * plan.padded, block = kBlockQueries * plan.padded;
    keys_ = take(tile);
    keys_woven_ = take(tile);
    keys_transposed_ = take(tile);
    values_ = take(tile);
    values_transposed_ = take(tile);
    dk_ = take(tile);
    dv_ = take(tile);
    q_ = take(block);
    q_woven_ = take(block);
    dout_ = take(block);
    dout_woven_ = take(block);
    weights_ = take(kBlockQueries * kKeys);
    slopes_ = take(kBlockQueries * kKeys);
    slopes_woven_ = take(kBlockQueries * kKeys);
    logs_ = take(kBlockQueries);
    delta_ = take(kBlockQueries);

    const int64_t stride = plan.kv_heads * plan.width, at = column.tile * stride + column.kv_head * plan.width;
    copy_rows<Words>(in.k + at, stride, keys_in_tile_, plan, keys_);
    std::fill(keys_ + keys_in_tile_ * plan.padded, keys_ + tile, 0.0f);
    transpose(keys_, keys_in_tile_, plan.padded, words<Words>(plan.width), keys_transposed_);
    keys_by_rows_ = sum_over_rows<Words>(keys_, kKeys, plan, keys_woven_);
    copy_rows<Words>(in.v + at, stride, keys_in_tile_, plan, values_);
    transpose(values_, keys_in_tile_, plan.padded, words<Words>(plan.width), values_transposed_);
    std::fill(dk_, dk_ + tile, 0.0f);
    std::fill(dv_, dv_ + tile, 0.0f);
  }

  /// Adds what the queries of block b in one head give to dk and dv, and leaves the slopes of the scores for add_dq.
  void add_block(int64_t b, int64_t head) {
    load_block(b, head);
    const int64_t depth = words<Words>(plan_.width);
    multiply<Words>({q_, plan_.padded, 1}, keys_transposed_, kKeys, kBlockQueries, kKeys, depth, weights_, kKeys,
                    Start::replace);
    multiply<Words>({dout_, plan_.padded, 1}, values_transposed_, kKeys, kBlockQueries, kKeys, depth, slopes_, kKeys,
                    Start::replace);
    for (int64_t r = 0; r < kBlockQueries; ++r) differentiate(r, column_.span.q_begin + b * kBlockQueries + r, head);
    const float *weights = weights_, *slopes = slopes_;
    if constexpr (Words::kPerWord == 2) {
      weave_rows(weights_, weights_);
      weave_rows(slopes_, slopes_woven_);
      slopes = slopes_woven_;
      for (int64_t r = 0; r < kBlockQueries; ++r) {
        float* row = slopes_ + r * kKeys;
        for (int64_t i = 0; i < kKeys; i += kLanes) Words::store_row(load(row + i), row, i);
      }
    }
    const int64_t rows = words<Words>(kBlockQueries);
    multiply<Words>({weights, 1, kKeys}, dout_by_rows_, plan_.padded, kKeys, plan_.padded, rows, dv_, plan_.padded,
                    Start::add);
    multiply<Words>({slopes, 1, kKeys}, q_by_rows_, plan_.padded, kKeys, plan_.padded, rows, dk_, plan_.padded,
                    Start::add);
  }

  void add_dq(float* dq, Start start) const {
    multiply<Words>({slopes_, kKeys, 1}, keys_by_rows_, plan_.padded, kBlockQueries, plan_.padded, words<Words>(kKeys),
                    dq, plan_.padded, start);
  }

  void write(Element* dk, Element* dv) const {
    for (int64_t j = 0; j < keys_in_tile_; ++j) {
      const int64_t at = ((column_.tile + j) * plan_.kv_heads + column_.kv_head) * plan_.width;
      for_lanes(plan_.width, [&](int64_t i, auto lanes) HWY_ATTR {
        store(hn::Mul(splat(plan_.params.scale), load(dk_ + j * plan_.padded + i, lanes)), dk + at + i, lanes);
        store(load(dv_ + j * plan_.padded + i, lanes), dv + at + i, lanes);
      });
    }
  }

 private:
  void load_block(int64_t b, int64_t head) {
    const int64_t query = column_.span.q_begin + b * kBlockQueries;
    const int64_t count = std::min(kBlockQueries, column_.span.q_end - query);
    const int64_t stride = plan_.heads * plan_.width, at = query * stride + head * plan_.width;
    copy_rows<Words>(in_.q + at, stride, count, plan_, q_);
    copy_rows<Words>(in_.dout + at, stride, count, plan_, dout_);
    std::copy_n(in_.log_sum_exp + head * plan_.queries + query, count, logs_);
    std::copy_n(in_.delta + head * plan_.queries + query, count, delta_);
    fill_behind(count);
    q_by_rows_ = sum_over_rows<Words>(q_, kBlockQueries, plan_, q_woven_);
    dout_by_rows_ = sum_over_rows<Words>(dout_, kBlockQueries, plan_, dout_woven_);
  }

  /// Rows from `count` on give nothing.
  void fill_behind(int64_t count) {
    std::fill(q_ + count * plan_.padded, q_ + kBlockQueries * plan_.padded, 0.0f);
    std::fill(dout_ + count * plan_.padded, dout_ + kBlockQueries * plan_.padded, 0.0f);
    std::fill(logs_ + count, logs_ + kBlockQueries, std::numeric_limits<float>::infinity());  // weights become 0
    std::fill(delta_ + count, delta_ + kBlockQueries, 0.0f);
  }

  /// woven [kBlockQueries / 2, kKeys] words of rows 2 r and 2 r + 1 as bf16; may be the rows' own place.
  static void weave_rows(const float* rows, float* woven) {
    const auto upper = hn::Set(kWords, 0xffff0000u);
    const auto rounded = [=](const float* at) HWY_ATTR {
      const auto bits = hn::BitCast(kWords, load(at));
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kWords, 1u));
      return hn::Add(bits,
                     hn::Add(odd, hn::Set(kWords, 0x7fffu)));  // nearest even; weights are no NaN unless all is lost
    };
    for (int64_t r = 0; r < kBlockQueries; r += 2) {
      for (int64_t i = 0; i < kKeys; i += kLanes) {
        const auto low = rounded(rows + r * kKeys + i), high = rounded(rows + (r + 1) * kKeys + i);
        store(hn::BitCast(kF, hn::Or(hn::ShiftRight<16>(low), hn::And(high, upper))), woven + r / 2 * kKeys + i);
      }
    }
  }

  /// Row r: products become weights, slopes of the weights become slopes of the scaled scores.
  void differentiate(int64_t r, int64_t query, int64_t head) {
    float *weights = weights_ + r * kKeys, *slopes = slopes_ + r * kKeys;
    const int64_t at = key_position(column_.span, query);
    const float softcap = plan_.params.softcap, tilt = plan_.slope(head);
    for (int64_t i = 0; i < kKeys; i += kLanes) {
      V score = hn::Mul(splat(plan_.params.scale), load(weights + i)),
        slope = hn::Sub(load(slopes + i), splat(delta_[r]));
      if (softcap > 0) {
        score = soft_cap(score, softcap);
        const V share = hn::Mul(score, splat(1 / softcap));
        slope = hn::Mul(slope, hn::NegMulAdd(share, share, splat(1)));
      }
      if (tilt != 0) score = tilted(score, plan_.params, tilt, column_.span.k_begin, column_.tile + i, at);
      const V weight = exp(hn::Sub(score, splat(logs_[r])));
      store(weight, weights + i);
      store(hn::Mul(weight, slope), slopes + i);
    }
    const VisibleColumns visible(plan_, column_.span, at, column_.tile);
    for (float* row : {weights, slopes}) {
      if (visible.low > 0) std::fill(row, row + visible.low, 0.0f);
      if (visible.high < kKeys) std::fill(row + visible.high, row + kKeys, 0.0f);
    }
  }

  const AttentionPlan& plan_;
  const Column& column_;
  const Inputs<Element>& in_;
  int64_t keys_in_tile_;
  hwy::AlignedFreeUniquePtr<float[]> buffer_;
  float *keys_, *keys_woven_, *keys_transposed_, *values_, *values_transposed_, *dk_, *dv_;
  float *q_, *q_woven_, *dout_, *dout_woven_, *weights_, *slopes_, *slopes_woven_, *logs_, *delta_;
  const float *keys_by_rows_, *q_by_rows_, *dout_by_rows_;  // see sum_over_rows
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

template <typename Element>
void write_dq(const AttentionPlan& plan, std::span<const AttentionSpan> spans, QueryGradients& sums, Element* dq) {
  int64_t first_block = 0;
  for (const AttentionSpan& span : spans) {
    parallel_for(query_blocks(span), 1, [&](int64_t b, int64_t) HWY_ATTR {
      const int64_t query = span.q_begin + b * kBlockQueries, count = std::min(kBlockQueries, span.q_end - query);
      for (int64_t h = 0; h < plan.heads; ++h) {
        for (int64_t r = 0; r < count; ++r) {
          const float* from = sums.block(first_block + b, h) + r * plan.padded;
          Element* to = dq + ((query + r) * plan.heads + h) * plan.width;
          for_lanes(plan.width, [&](int64_t i, auto lanes) HWY_ATTR {
            store(hn::Mul(splat(plan.params.scale), load(from + i, lanes)), to + i, lanes);
          });
        }
      }
    });
    first_block += query_blocks(span);
  }
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
      const bool alone = BlockKeys(plan, column.span, b).low >= column.tile;  // the first tile that block b sees
      for (int64_t h = column.kv_head * plan.group; h < (column.kv_head + 1) * plan.group; ++h) {
        work.add_block(b, h);
        if (!alone) {
          const auto& before = done[static_cast<size_t>(index - plan.kv_heads)];
          while (before.load(std::memory_order_acquire) <= b) std::this_thread::yield();
        }
        work.add_dq(sums.block(column.first_block + b, h), alone ? Start::replace : Start::add);
      }
      done[static_cast<size_t>(index)].store(b + 1, std::memory_order_release);
    }
    done[static_cast<size_t>(index)].store(std::numeric_limits<int64_t>::max(), std::memory_order_release);
    work.write(dk, dv);
  });
  write_dq(plan, spans, sums, dq);
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
