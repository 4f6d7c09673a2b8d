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
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/attention/attention_backward.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/attention/attention_column-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kColumnTiles = 8;     // of keys in a column, at most: what is made of them stays in the L2 cache
constexpr int64_t kWideHead = 128;      // above it half as many
constexpr int64_t kEnoughColumns = 12;  // for a few threads; with fewer, columns are made narrower

/// The f32 sums of dq for each block of queries and head, as ColumnWork holds them: several columns of keys add to one
/// block, and the result may be bf16.
struct QueryGradients {
  int64_t heads, size;
  hwy::AlignedFreeUniquePtr<float[]> sums;
  float* block(int64_t index, int64_t head) { return sums.get() + (index * heads + head) * size; }
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

/// delta [H, Tq]: sum over the head of dout * out, which is the mean of the gradients of the weights.
template <typename Element>
std::unique_ptr<float[]> weight_gradient_means(const AttentionPlan& plan, const Element* dout, const Element* out) {
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
  QueryGradients sums{plan.heads, ColumnWork<Words, Element>::block_size(plan), {}};
  sums.sums = hwy::AllocateAligned<float>(static_cast<size_t>(blocks * plan.heads * sums.size));

  // done[c]: blocks of queries that column c is through with. Columns are taken in order of a ticket, so the one that
  // another waits for has been taken before and its thread is at work.
  const auto done = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(count));
  std::atomic<int64_t> ticket = 0;
  parallel_for(count, 1, [&](int64_t, int64_t) {
    const int64_t index = ticket.fetch_add(1);
    const Column& column = columns[static_cast<size_t>(index)];
    ColumnWork<Words, Element> work(plan, column, in);
    const int64_t first_head = column.kv_head * plan.group, last_head = first_head + plan.group - 1;
    for (int64_t b = column.blocks_begin; b < column.blocks_end; ++b) {
      const BlockKeys sees(plan, column.span, b);
      const bool first = sees.low >= column.begin, last = sees.high <= column.end;
      const int64_t query = column.span.q_begin + b * kBlockQueries;
      for (int64_t h = first_head; h <= last_head; ++h) {
        if (h < last_head) {
          work.fetch_block(b, h + 1);
        } else if (b + 1 < column.blocks_end) {
          work.fetch_block(b + 1, first_head);
        }
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
  const AttentionPlan plan(q, k, params, std::max<int64_t>(4, kLanes));
  if (leaves_queries_out(plan, spans)) dq.zero();
  if (leaves_keys_out(plan, spans)) {
    dk.zero();
    dv.zero();
  }
  const auto delta = weight_gradient_means(plan, dout.data<const Element>(), out.data<const Element>());
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
  if (multiplies_pairs()) {
    return backward<Pairs, bf16>(dout, q, k, v, out, log_sum_exp, spans, params, dq, dk, dv);
  }
#endif
  backward<Singles, bf16>(dout, q, k, v, out, log_sum_exp, spans, params, dq, dk, dv);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

HWY_EXPORT(attention_backward);

void attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& log_sum_exp, std::span<const AttentionSpan> spans, const AttentionParams& params,
                        Tensor& dq, Tensor& dk, Tensor& dv) {
  NIBBLE_SIMD(attention_backward)(dout, q, k, v, out, log_sum_exp, spans, params, dq, dk, dv);
}

}  // namespace nibble::ops::cpu
#endif
