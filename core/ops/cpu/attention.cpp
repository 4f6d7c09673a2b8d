#include "nibble/core/ops/attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include <hwy/aligned_allocator.h>
#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/attention.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kRows = 24;        // rows whose scores are in hand at a time
constexpr int64_t kFewQueries = 8;   // up to here keys, not queries, are split among threads
constexpr int64_t kChunkKeys = 512;  // and this many go to a piece

/// Some queries of one key head, and the part of their keys that one piece of work reads.
struct Block {
  AttentionSpan span;
  int64_t kv_head;
  int64_t query, count;        // queries [query, query + count), each in `group` heads
  int64_t key_begin, key_end;  // keys that are read
  int64_t chunk = 0, chunks = 1;
};

/// Running softmax of the rows of a Block. Row r is query r % count of head r / count of the group.
class Rows {
 public:
  Rows(const AttentionPlan& plan, const Block& block)
      : plan_(plan),
        block_(block),
        rows_(plan.group * block.count),
        capacity_((rows_ + kRows - 1) / kRows * kRows),
        buffer_(hwy::AllocateAligned<float>(static_cast<size_t>(2 * capacity_ * plan.padded + capacity_ * (kLanes + 1) +
                                                                kKeys * (3 * plan.padded + kRows) + kRows + 160))) {
    float* next = buffer_.get();
    const auto take = [&next](int64_t count) {
      float* taken = next;
      next += (count + 15) / 16 * 16;
      return taken;
    };
    q_ = take(capacity_ * plan.padded);
    out_ = take(capacity_ * plan.padded);
    sums_ = take(capacity_ * kLanes);
    top_ = take(capacity_);
    keys_ = take(kKeys * plan.padded);
    keys_transposed_ = take(kKeys * plan.padded);
    values_ = take(kKeys * plan.padded);
    scores_ = take(kKeys * kRows);
    keep_ = take(kRows);
  }

  /// All tiles of the block's keys.
  template <typename Element>
  void run(const Element* q, const Element* k, const Element* v) {
    const int64_t stride = plan_.heads * plan_.width, key_stride = plan_.kv_heads * plan_.width;
    for (int64_t h = 0; h < plan_.group; ++h) {
      const int64_t at = block_.query * stride + (block_.kv_head * plan_.group + h) * plan_.width;
      copy_rows(q + at, stride, block_.count, plan_, plan_.params.scale, q_ + h * block_.count * plan_.padded);
    }
    std::fill(q_ + rows_ * plan_.padded, q_ + capacity_ * plan_.padded, 0.0f);
    std::fill(out_, out_ + capacity_ * plan_.padded, 0.0f);
    std::fill(sums_, sums_ + capacity_ * kLanes, 0.0f);
    std::fill(top_, top_ + capacity_, kNothing);
    for (int64_t tile = block_.key_begin; tile < block_.key_end; tile += kKeys) {
      const int64_t count = std::min(kKeys, block_.key_end - tile),
                    at = tile * key_stride + block_.kv_head * plan_.width;
      copy_rows(k + at, key_stride, count, plan_, 1, keys_);
      transpose(keys_, count, plan_.padded, keys_transposed_);
      copy_rows(v + at, key_stride, count, plan_, 1, values_);
      for (int64_t row = 0; row < rows_; row += kRows) add_tile(row, tile, count);
    }
  }

  int64_t rows() const { return rows_; }
  float top(int64_t row) const { return top_[row]; }
  float sum(int64_t row) const { return hn::GetLane(hn::SumOfLanes(kF, hn::Load(kF, sums_ + row * kLanes))); }
  const float* out(int64_t row) const { return out_ + row * plan_.padded; }

 private:
  static constexpr float kNothing = -1e30f;  // below every score, and finite: a row may see nothing in its first tile

  /// Rows [row, row + kRows) meet the keys [tile, tile + count).
  void add_tile(int64_t row, int64_t tile, int64_t count) {
    const int64_t real = std::min(kRows, rows_ - row), padded_rows = std::max<int64_t>(4, (real + 1) / 2 * 2);
    bool seen = false;
    for (int64_t r = row; r < row + real && !seen; ++r) {
      const VisibleColumns visible(plan_, block_.span, position(r), tile);
      seen = visible.low < visible.high;
    }
    if (!seen) return;
    multiply({q_ + row * plan_.padded, plan_.padded, 1}, keys_transposed_, kKeys, padded_rows, kKeys, plan_.width,
             scores_, kKeys, Start::replace);
    for (int64_t r = 0; r < real; ++r) keep_[r] = soften(row + r, tile, scores_ + r * kKeys);
    for (int64_t r = real; r < padded_rows; ++r) keep_[r] = 0;
    multiply({scores_, kKeys, 1}, values_, plan_.padded, padded_rows, plan_.padded, count, out_ + row * plan_.padded,
             plan_.padded, Start::rescale_and_add, keep_);
  }

  int64_t position(int64_t row) const { return key_position(block_.span, block_.query + row % block_.count); }

  /// scores become e^(score - top); returns what sums so far are multiplied by.
  float soften(int64_t row, int64_t tile, float* scores) {
    const float softcap = plan_.params.softcap;
    if (softcap > 0) {
      for (int64_t i = 0; i < kKeys; i += kLanes) store(soft_cap(load(scores + i), softcap), scores + i);
    }
    const int64_t at = position(row);
    const float slope = plan_.slope(block_.kv_head * plan_.group + row / block_.count);
    if (slope != 0) {
      for (int64_t i = 0; i < kKeys; i += kLanes) {
        store(hn::MulAdd(splat(slope), column_numbers(tile - at + i), load(scores + i)), scores + i);
      }
    }
    const VisibleColumns visible(plan_, block_.span, at, tile);
    if (visible.low > 0) std::fill(scores, scores + visible.low, -std::numeric_limits<float>::infinity());
    if (visible.high < kKeys) std::fill(scores + visible.high, scores + kKeys, -std::numeric_limits<float>::infinity());
    V tops = load(scores);
    for (int64_t i = kLanes; i < kKeys; i += kLanes) tops = hn::Max(tops, load(scores + i));
    const float top = std::max(top_[row], hn::GetLane(hn::MaxOfLanes(kF, tops)));
    const float keep = std::exp(top_[row] - top);
    top_[row] = top;
    V sum = hn::Mul(splat(keep), load(sums_ + row * kLanes));
    for (int64_t i = 0; i < kKeys; i += kLanes) {
      const V weight = exp(hn::Sub(load(scores + i), splat(top)));
      sum = hn::Add(sum, weight);
      store(weight, scores + i);
    }
    store(sum, sums_ + row * kLanes);
    return keep;
  }

  const AttentionPlan& plan_;
  const Block& block_;
  int64_t rows_, capacity_;
  hwy::AlignedFreeUniquePtr<float[]> buffer_;
  float *q_, *out_, *sums_, *top_, *keys_, *keys_transposed_, *values_, *scores_, *keep_;
};

/// What one chunk of keys gives for one row: [width] unnormalized sums of values, then top and sum.
struct Partials {
  int64_t stride;
  hwy::AlignedFreeUniquePtr<float[]> values;
  float* row(int64_t piece, int64_t r) { return values.get() + (piece * rows + r) * stride; }
  int64_t rows;
};

template <typename Element>
void write_row(const float* sums, float top, float sum, int64_t width, Element* out, float* log_sum_exp) {
  const V factor = splat(1 / sum);
  for_lanes(width,
            [&](int64_t i, auto lanes) HWY_ATTR { store(hn::Mul(factor, load(sums + i, lanes)), out + i, lanes); });
  *log_sum_exp = top + std::log(sum);
}

/// The pieces of work, the ones with most keys first within a span, so that none of them is left for the end.
std::vector<Block> cut_in_blocks(const AttentionPlan& plan, std::span<const AttentionSpan> spans) {
  const int64_t most = plan.group >= 8 ? kRows : plan.group >= 4 ? 2 * kRows : 4 * kRows;
  std::vector<Block> blocks;
  for (const AttentionSpan& span : spans) {
    const int64_t count = span.q_end - span.q_begin;
    for (int64_t last = (count - 1) / most * most; last >= 0 && count > 0; last -= most) {
      Block block{span, 0, span.q_begin + last, std::min(most, count - last), 0, 0};
      const int64_t first = key_position(span, block.query);
      block.key_begin = (plan.first_key(span, first) - span.k_begin) / kKeys * kKeys + span.k_begin;
      block.key_end = first + block.count;
      for (block.kv_head = 0; block.kv_head < plan.kv_heads; ++block.kv_head) blocks.push_back(block);
    }
  }
  return blocks;
}

/// Queries of a few tokens (decoding): each block in chunks of keys.
std::vector<Block> cut_in_chunks(const std::vector<Block>& blocks) {
  std::vector<Block> pieces;
  for (const Block& block : blocks) {
    const int64_t chunks = (block.key_end - block.key_begin + kChunkKeys - 1) / kChunkKeys;
    for (int64_t c = 0; c < chunks; ++c) {
      Block piece = block;
      piece.key_begin = block.key_begin + c * kChunkKeys;
      piece.key_end = std::min(block.key_end, piece.key_begin + kChunkKeys);
      piece.chunk = c;
      piece.chunks = chunks;
      pieces.push_back(piece);
    }
  }
  return pieces;
}

/// Puts the chunks [piece, piece + chunks) of one row together, in their order, in the first of them.
void join_chunks(Partials& partials, int64_t piece, int64_t chunks, int64_t row, int64_t width) {
  float* total = partials.row(piece, row);
  for (int64_t c = 1; c < chunks; ++c) {
    const float* part = partials.row(piece + c, row);
    const float top = std::max(total[width], part[width]);
    const float keep = std::exp(total[width] - top), take = std::exp(part[width] - top);
    for (int64_t i = 0; i < width; ++i) total[i] = total[i] * keep + part[i] * take;
    total[width + 1] = total[width + 1] * keep + part[width + 1] * take;
    total[width] = top;
  }
}

template <typename Element>
void forward(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const AttentionSpan> spans,
             const AttentionParams& params, Tensor& out, Tensor& log_sum_exp) {
  const AttentionPlan plan(q, k, params, kLanes);
  const Element *queries = q.data<const Element>(), *keys = k.data<const Element>(), *values = v.data<const Element>();
  Element* to = out.data<Element>();
  float* logs = log_sum_exp.data<float>();
  if (leaves_queries_out(plan, spans)) {
    out.zero();
    log_sum_exp.zero();
  }
  const auto write = [&](const Block& block, int64_t r, const float* sums, float top, float sum) {
    const int64_t head = block.kv_head * plan.group + r / block.count, query = block.query + r % block.count;
    write_row(sums, top, sum, plan.width, to + (query * plan.heads + head) * plan.width,
              logs + head * plan.queries + query);
  };
  const std::vector<Block> blocks = cut_in_blocks(plan, spans);
  const bool few = std::all_of(blocks.begin(), blocks.end(), [](const Block& b) { return b.count <= kFewQueries; });
  if (!few) {
    parallel_for(static_cast<int64_t>(blocks.size()), 1, [&](int64_t piece, int64_t) {
      const Block& block = blocks[static_cast<size_t>(piece)];
      Rows rows(plan, block);
      rows.run(queries, keys, values);
      for (int64_t r = 0; r < rows.rows(); ++r) write(block, r, rows.out(r), rows.top(r), rows.sum(r));
    });
    return;
  }
  const std::vector<Block> pieces = cut_in_chunks(blocks);
  const int64_t count = static_cast<int64_t>(pieces.size()), most_rows = plan.group * kFewQueries;
  Partials partials{plan.width + 2, {}, most_rows};
  partials.values = hwy::AllocateAligned<float>(static_cast<size_t>(count * most_rows * partials.stride));
  parallel_for(count, 1, [&](int64_t piece, int64_t) {
    Rows rows(plan, pieces[static_cast<size_t>(piece)]);
    rows.run(queries, keys, values);
    for (int64_t r = 0; r < rows.rows(); ++r) {
      float* part = partials.row(piece, r);
      std::copy(rows.out(r), rows.out(r) + plan.width, part);
      part[plan.width] = rows.top(r);
      part[plan.width + 1] = rows.sum(r);
    }
  });
  for (int64_t piece = 0; piece < count; piece += pieces[static_cast<size_t>(piece)].chunks) {
    const Block& block = pieces[static_cast<size_t>(piece)];
    for (int64_t r = 0; r < plan.group * block.count; ++r) {
      join_chunks(partials, piece, block.chunks, r, plan.width);
      const float* total = partials.row(piece, r);
      write(block, r, total, total[plan.width], total[plan.width + 1]);
    }
  }
}

void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const AttentionSpan> spans,
                       const AttentionParams& params, Tensor& out, Tensor& log_sum_exp) {
  if (q.dtype() == DType::bf16) return forward<bf16>(q, k, v, spans, params, out, log_sum_exp);
  forward<float>(q, k, v, spans, params, out, log_sum_exp);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops {

HWY_EXPORT(attention_forward);

void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const AttentionSpan> spans,
                       const AttentionParams& params, Tensor& out, Tensor& log_sum_exp) {
  check_attention(q, k, v, spans, params);
  NIBBLE_CHECK(out.shape() == q.shape() && out.dtype() == q.dtype(), "attention: out");
  NIBBLE_CHECK(log_sum_exp.numel() == params.heads * q.dim(0), "attention: log_sum_exp");
  NIBBLE_SIMD(attention_forward)(q, k, v, spans, params, out, log_sum_exp);
}

}  // namespace nibble::ops
#endif
