#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <hwy/aligned_allocator.h>
#include "nibble/core/base/parallel.h"
#include "nibble/core/base/piece_progress.h"
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
constexpr int64_t kPartSums = int64_t{1} << 20;  // floats a thread, at most, for columns that are split
// From so many threads on, half of kEnoughColumns are too few and are split. Where the sums for that have room, half
// are enough: wide columns cost less.
constexpr int64_t kSplittingThreads = kEnoughColumns / 4 + 1;

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

/// The columns of all documents, or their parts, in the order in which they are taken.
class Columns {
 public:
  Columns(const AttentionPlan& plan, std::span<const AttentionSpan> spans) : plan_(plan) {
    int64_t tiles = plan.padded > kWideHead ? kColumnTiles / 2 : kColumnTiles;
    for (;; tiles /= 2) {
      width_ = part_keys_ = tiles * kKeys;
      add_all(spans);
      const bool splits = part_sums() <= kSplittingThreads * kPartSums;
      if (tiles == 1 || count_ >= (splits ? kEnoughColumns / 2 : kEnoughColumns)) break;
    }
    // With few columns for the threads, two parts a thread or more.
    const int64_t wanted = 2 * int64_t{threads()};
    const int64_t parts = std::min(tiles, (wanted - 1) / std::max<int64_t>(1, count_) + 1);
    if (parts == 1 || part_sums() > threads() * kPartSums) return;
    part_keys_ = tiles / parts * kKeys;
    add_all(spans);
  }

  bool in_parts() const { return part_keys_ < width_; }
  int64_t count() const { return count_; }  // columns, and not their parts

  std::vector<Column> columns;

 private:
  void add_all(std::span<const AttentionSpan> spans) {
    columns.clear();
    blocks_ = count_ = 0;
    for (size_t i = 0; i < spans.size();) {
      size_t end = i + 1;
      while (end < spans.size() && spans[end].hole() > 0) ++end;
      add(spans.subspan(i, end - i));
      i = end;
    }
  }

  /// Floats that the columns need for sums if they are split.
  int64_t part_sums() const {
    int64_t blocks = 0;
    for (const Column& column : columns) blocks += column.blocks;
    return blocks * plan_.group * kBlockQueries * plan_.padded;
  }

  /// Documents that share a beginning, which they all see: the first one's columns end where it does.
  void add(std::span<const AttentionSpan> tree) {
    const int64_t shared_end = tree.size() > 1 ? tree[1].hole_begin : tree[0].k_begin;
    std::vector<Column::Queries> all;
    for (const AttentionSpan& span : tree) {
      const AttentionSpan in_beginning = {span.q_begin, span.q_end, span.k_begin, span.k_end - span.hole()};
      all.push_back({in_beginning, blocks_, 0, 0, -1});
      blocks_ += query_blocks(span);
    }
    add_keys(tree[0].k_begin, shared_end, all);
    for (size_t i = 0; i < tree.size(); ++i) {
      all[i].span = tree[i].numbered();
      add_keys(std::max(shared_end, tree[i].own_begin()), tree[i].k_end, {&all[i], 1});
    }
  }

  void add_keys(int64_t begin, int64_t end, std::span<Column::Queries> queries) {
    for (; begin < end; begin += width_) {
      Column column{0, begin, std::min(end, begin + width_), begin, begin, count_, 0, {}};
      const int64_t parts = (column.end - begin + part_keys_ - 1) / part_keys_;
      for (Column::Queries& of : queries) {
        const int64_t blocks = query_blocks(of.span);
        if (blocks == 0) continue;
        of.blocks_begin = 0;
        while (of.blocks_begin < blocks && BlockKeys(plan_, of.span, of.blocks_begin).high <= begin) ++of.blocks_begin;
        of.blocks_end = of.blocks_begin;
        while (of.blocks_end < blocks && BlockKeys(plan_, of.span, of.blocks_end).low < column.end) ++of.blocks_end;
        of.first_sums = column.blocks;
        column.blocks += of.blocks_end - of.blocks_begin;
        column.queries.push_back(of);
        of.before = std::ssize(columns) + (parts - 1) * plan_.kv_heads;
      }
      if (column.queries.empty()) continue;
      for (int64_t part = 0; part < parts; ++part) {
        column.part_begin = column.part_end;
        column.part_end = std::min(column.end, column.part_begin + part_keys_);
        for (column.kv_head = 0; column.kv_head < plan_.kv_heads; ++column.kv_head) {
          column.number = count_ + column.kv_head;
          columns.push_back(column);
        }
      }
      count_ += plan_.kv_heads;
    }
  }

  const AttentionPlan& plan_;
  int64_t width_, part_keys_;  // keys of a column, from sizes alone, and of a part
  int64_t blocks_ = 0, count_ = 0;
};

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
  const Columns cut(plan, spans);
  int64_t blocks = 0;
  for (const AttentionSpan& span : spans) blocks += query_blocks(span);
  QueryGradients sums{plan.heads, ColumnWork<Words, Element>::block_size(plan), {}};
  sums.sums = hwy::AllocateAligned<float>(static_cast<size_t>(blocks * plan.heads * sums.size));
  // What the parts of each column give to dq: [blocks that see it, heads of the group, sums.size].
  std::vector<hwy::AlignedFreeUniquePtr<float[]>> part_sums(static_cast<size_t>(cut.in_parts() ? cut.count() : 0));

  const int64_t count = std::ssize(cut.columns);
  const auto done = std::make_unique<PieceProgress[]>(static_cast<size_t>(count));  // blocks and heads, see stage
  if (cut.in_parts()) {
    for (const Column& column : cut.columns) {
      auto& of = part_sums[static_cast<size_t>(column.number)];
      if (!of) of = hwy::AllocateAligned<float>(static_cast<size_t>(column.blocks * plan.group * sums.size));
    }
  }
  parallel_for(count, 1, [&](int64_t index, int64_t) {
    const Column& column = cut.columns[static_cast<size_t>(index)];
    const cpu::KernelUse use(Words::release);
    ColumnWork<Words, Element> work(plan, column, in);
    float* const own_sums = cut.in_parts() ? part_sums[static_cast<size_t>(column.number)].get() : nullptr;
    const int64_t first_head = column.kv_head * plan.group, last_head = first_head + plan.group - 1;
    for (const Column::Queries& of : column.queries) {
      for (int64_t b = of.blocks_begin; b < of.blocks_end; ++b) {
        const BlockKeys sees(plan, of.span, b);
        const bool first = sees.low >= column.begin, last = sees.high <= column.end;
        const int64_t query = of.span.q_begin + b * kBlockQueries, block = of.first_block + b;
        const int64_t number = (of.first_sums + b - of.blocks_begin) * plan.group - first_head;
        for (int64_t h = first_head; h <= last_head; ++h) {
          if (h < last_head) {
            work.fetch_block(of, b, h + 1);
          } else if (b + 1 < of.blocks_end) {
            work.fetch_block(of, b + 1, first_head);
          }
          const int64_t stage = block * plan.group + h - first_head + 1;
          work.add_block(of, b, h, own_sums == nullptr ? nullptr : own_sums + (number + h) * sums.size, [&] {
            if (!column.is_first()) done[static_cast<size_t>(index - plan.kv_heads)].wait_for(stage);
          });
          if (column.is_last()) {
            if (!first) done[static_cast<size_t>(of.before + column.kv_head)].wait_for(stage);
            work.add_dq(sums.block(block, h), first, last, dq + (query * plan.heads + h) * plan.width);
          }
          done[static_cast<size_t>(index)].reach(stage);
        }
      }
    }
    done[static_cast<size_t>(index)].reach(std::numeric_limits<int64_t>::max());
    work.write(dk, dv);
  });
}

template <typename Words, typename Element>
void backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
              const Tensor& log_sum_exp, std::span<const AttentionSpan> spans, const AttentionParams& params,
              Tensor& dq, Tensor& dk, Tensor& dv) {
  const AttentionPlan plan(q, k, params, std::max<int64_t>(4, kPadding<Words>));
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
  if (multiplies_tiles()) {
    return backward<PairTiles, bf16>(dout, q, k, v, out, log_sum_exp, spans, params, dq, dk, dv);
  }
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

NIBBLE_SIMD_KERNEL(attention_backward);

}  // namespace nibble::ops::cpu
#endif
