#include "nibble/core/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nibble/core/ops/cpu/attention/attention.cpp"
#include <hwy/foreach_target.h>
#include "nibble/core/ops/cpu/attention/attention_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::ops::HWY_NAMESPACE {

constexpr int64_t kFewQueries = 8;   // up to here keys, not queries, are shared among threads
constexpr int64_t kChunkKeys = 512;  // and this many go to a piece,
constexpr int64_t kChunkHeads = 8;   // of this many key heads

template <typename Element>
void write_row(const float* sums, float row_max, float sum, int64_t width, Element* out, float* log_sum_exp) {
  const V factor = splat(1 / sum);
  for_lanes(width,
            [&](int64_t i, auto lanes) HWY_ATTR { store(hn::Mul(factor, load(sums + i, lanes)), out + i, lanes); });
  *log_sum_exp = row_max + std::log(sum);
}

/// The pieces of work, the ones with most keys first within a span, so that none of them is left for the end.
template <typename Words>
std::vector<Block> cut_in_blocks(const AttentionPlan& plan, std::span<const AttentionSpan> spans) {
  // Rows enough for what a tile of keys costs to turn.
  const int64_t most = std::clamp<int64_t>(384 / plan.group / Words::kRows, 1, 8) * Words::kRows;
  std::vector<Block> blocks;
  for (const AttentionSpan& document : spans) {
    const AttentionSpan span = document.numbered();
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

/// Adds what one chunk of keys gives for a row to what the chunks before it gave: [width] sums of values, row_max, sum.
inline void join(const float* part, int64_t width, float* total) {
  const float row_max = std::max(total[width], part[width]);
  const float keep = std::exp(total[width] - row_max), take = std::exp(part[width] - row_max);
  for (int64_t i = 0; i < width; ++i) total[i] = total[i] * keep + part[i] * take;
  total[width + 1] = total[width + 1] * keep + part[width + 1] * take;
  total[width] = row_max;
}

/// Where one forward pass reads and writes.
template <typename Element>
struct Operands {
  const Element *q, *k, *v;
  Element* out;
  float* log_sum_exp;
};

template <typename Element>
void write_block_row(const AttentionPlan& plan, const Block& block, int64_t r, const float* sums, float row_max,
                     float sum, const Operands<Element>& to) {
  const int64_t head = block.kv_head * plan.group + r / block.count, query = block.query + r % block.count;
  write_row(sums, row_max, sum, plan.width, to.out + (query * plan.heads + head) * plan.width,
            to.log_sum_exp + head * plan.queries + query);
}

/// Asks for keys and values [begin, end) of `heads` key heads from `head` on.
template <typename Element>
void fetch_keys(const AttentionPlan& plan, const Operands<Element>& of, int64_t begin, int64_t end, int64_t head,
                int64_t heads) {
  const int64_t stride = plan.kv_heads * plan.width, at = begin * stride + head * plan.width;
  for (const Element* rows : {of.k, of.v}) fetch_rows(rows + at, stride, end - begin, heads * plan.width);
}

template <typename Words, typename Element>
void forward_by_queries(const AttentionPlan& plan, const std::vector<Block>& blocks, const Operands<Element>& of) {
  parallel_for(static_cast<int64_t>(blocks.size()), 1, [&](int64_t piece, int64_t) {
    const Block& block = blocks[static_cast<size_t>(piece)];
    const cpu::KernelUse use(Words::release);
    Tile scratch(plan, Words::kRows);
    Rows<Words, Element> rows(plan, block, of.q, scratch);
    for (int64_t tile = block.key_begin; tile < block.key_end; tile += kKeys) {
      const int64_t next = std::min(block.key_end, tile + kKeys), after = std::min(block.key_end, next + kKeys);
      fetch_keys(plan, of, block.span.key_row(next), block.span.key_row(next) + after - next, block.kv_head, 1);
      rows.add_keys(of.k, of.v, tile, next - tile);
    }
    for (int64_t r = 0; r < rows.rows(); ++r) {
      write_block_row(plan, block, r, rows.out(r), rows.row_max(r), rows.sum(r), of);
    }
  });
}

/// Few queries (decoding) in all heads, and keys that they meet in chunks of kChunkKeys.
struct Stretch {
  Block block;                         // in the first key head
  const Stretch* beginning = nullptr;  // what its query, number `number` there, has met before; null: nothing
  int64_t number = 0;
  bool is_beginning = false;
  float* parts = nullptr;  // what the chunks give: [chunks, key heads, rows, width and 2]

  int64_t chunks() const { return (block.key_end - block.key_begin + kChunkKeys - 1) / kChunkKeys; }
};

/// The stretches of documents one after another. Tokens behind a beginning that several documents share meet it
/// together, as if they came right behind it.
class Stretches {
 public:
  explicit Stretches(const AttentionPlan& plan) : plan_(plan) {}

  /// A block of the first key head.
  void add(const Block& block) {
    if (block.span.hole() == 0) {
      all_.push_back({.block = block});
      return;
    }
    const int64_t begin = block.span.k_begin - block.span.hole(), end = block.span.hole_begin;
    if (!continues(block, begin, end)) {
      last_ =
          &all_.emplace_back(Stretch{.block = {{block.query, block.query, begin, end}, 0, block.query, 0, begin, end}});
      last_->is_beginning = true;
    }
    const int64_t number = last_->block.count++;
    ++last_->block.span.q_end;
    ++last_->block.span.k_end;
    const int64_t own = block.span.hole_end;
    all_.push_back(
        {.block = {{block.query, block.query + 1, own, block.key_end}, 0, block.query, 1, own, block.key_end},
         .beginning = last_,
         .number = number});
  }
  std::deque<Stretch>& all() { return all_; }

 private:
  static constexpr int64_t kMostRows = 2 * Singles::kRows;

  bool continues(const Block& block, int64_t begin, int64_t end) const {
    return last_ != nullptr && last_->block.key_begin == begin && last_->block.key_end == end &&
           last_->block.span.q_end == block.query && (last_->block.count + 1) * plan_.group <= kMostRows;
  }

  const AttentionPlan& plan_;
  std::deque<Stretch> all_;
  Stretch* last_ = nullptr;  // beginning
};

/// Pieces of kChunkKeys keys in kChunkHeads heads, joined in their order.
template <typename Words, typename Element>
void forward_by_keys(const AttentionPlan& plan, std::deque<Stretch>& stretches, const Operands<Element>& of) {
  struct Piece {
    const Stretch* stretch;
    int64_t chunk, head;
  };
  const int64_t stride = plan.padded + 2, heads_each = std::min(kChunkHeads, plan.kv_heads);
  const int64_t tile_bytes = kKeys * heads_each * plan.width * static_cast<int64_t>(sizeof(Element));
  const int64_t step = tile_bytes > (1 << 18) ? kKeys / 4 : kKeys;  // of K and V together at most half a megabyte
  const auto part = [&](const Stretch& stretch, int64_t chunk, int64_t kv_head, int64_t r) {
    return stretch.parts + ((chunk * plan.kv_heads + kv_head) * plan.group * stretch.block.count + r) * stride;
  };
  const auto size = [&](const Stretch& stretch) {
    return stretch.chunks() * plan.kv_heads * plan.group * stretch.block.count * stride;
  };
  int64_t total = 0;
  for (const Stretch& stretch : stretches) total += size(stretch);
  std::vector<float> memory(static_cast<size_t>(total));
  std::vector<Piece> pieces;
  float* parts = memory.data();
  for (Stretch& stretch : stretches) {
    stretch.parts = parts;
    parts += size(stretch);
    for (int64_t chunk = 0; chunk < stretch.chunks(); ++chunk) {
      for (int64_t head = 0; head < plan.kv_heads; head += kChunkHeads) pieces.push_back({&stretch, chunk, head});
    }
  }
  parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t index, int64_t) {
    const Piece& piece = pieces[static_cast<size_t>(index)];
    const Block& block = piece.stretch->block;
    const int64_t count_heads = std::min(kChunkHeads, plan.kv_heads - piece.head);
    const int64_t begin = block.key_begin + piece.chunk * kChunkKeys, end = std::min(block.key_end, begin + kChunkKeys);
    const cpu::KernelUse use(Words::release);
    Tile scratch(plan, Words::kRows);
    std::vector<Block> blocks(static_cast<size_t>(count_heads), block);
    std::vector<Rows<Words, Element>> heads;
    for (Block& of_head : blocks) {
      of_head.kv_head = piece.head + std::ssize(heads);
      heads.emplace_back(plan, of_head, of.q, scratch);
    }
    for (int64_t tile = begin; tile < end; tile += step) {
      const int64_t count = std::min(step, end - tile);
      fetch_keys(plan, of, tile, tile + count, piece.head, count_heads);
      for (auto& rows : heads) rows.add_keys(of.k, of.v, tile, count);
    }
    for (int64_t g = 0; g < count_heads; ++g) {
      const Rows<Words, Element>& rows = heads[static_cast<size_t>(g)];
      for (int64_t r = 0; r < rows.rows(); ++r) {
        float* to = part(*piece.stretch, piece.chunk, piece.head + g, r);
        std::copy(rows.out(r), rows.out(r) + plan.padded, to);
        to[plan.padded] = rows.row_max(r);
        to[plan.padded + 1] = rows.sum(r);
      }
    }
  });
  constexpr int64_t kJoined = 8;  // stretches that one thread joins, in some microseconds
  parallel_for(std::ssize(stretches), kJoined, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const Stretch& stretch = stretches[static_cast<size_t>(i)];
      if (stretch.is_beginning) continue;
      Block block = stretch.block;
      for (block.kv_head = 0; block.kv_head < plan.kv_heads; ++block.kv_head) {
        for (int64_t r = 0; r < plan.group * block.count; ++r) {
          float* sums = nullptr;
          const auto add_chunks = [&](const Stretch& chunks, int64_t row) {
            for (int64_t c = 0; c < chunks.chunks(); ++c) {
              float* more = part(chunks, c, block.kv_head, row);
              sums == nullptr ? void(sums = more) : join(more, plan.padded, sums);
            }
          };
          if (const Stretch* before = stretch.beginning) add_chunks(*before, r * before->block.count + stretch.number);
          add_chunks(stretch, r);
          write_block_row(plan, block, r, sums, sums[plan.padded], sums[plan.padded + 1], of);
        }
      }
    }
  });
}

template <typename Words, typename Element>
void forward(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const AttentionSpan> spans,
             const AttentionParams& params, Tensor& out, Tensor& log_sum_exp) {
  const AttentionPlan plan(q, k, params, kPadding<Words>);
  const Operands<Element> of = {q.data<const Element>(), k.data<const Element>(), v.data<const Element>(),
                                out.data<Element>(), log_sum_exp.data<float>()};
  if (leaves_queries_out(plan, spans)) {
    out.zero();
    log_sum_exp.zero();
  }
  // Whatever else is in the batch, a document's bits are the same: few queries of a longer one go by keys.
  const auto goes_by_keys = [&](const Block& block) {
    const int64_t count = block.span.q_end - block.span.q_begin;
    if (block.span.hole() > 0) {
      return count == 1 && block.span.k_end - block.span.hole_end > 1 && params.window == 0 &&
             params.alibi_slopes.empty();
    }
    return plan.queries <= kFewQueries || (count <= kFewQueries && count < block.span.k_end - block.span.k_begin);
  };
  std::vector<Block> by_queries;
  Stretches by_keys(plan);
  for (const Block& block : cut_in_blocks<Words>(plan, spans)) {
    if (!goes_by_keys(block)) {
      by_queries.push_back(block);
    } else if (block.kv_head == 0) {
      by_keys.add(block);
    }
  }
  forward_by_queries<Words>(plan, by_queries, of);
  forward_by_keys<Words>(plan, by_keys.all(), of);
}

void attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, std::span<const AttentionSpan> spans,
                       const AttentionParams& params, Tensor& out, Tensor& log_sum_exp) {
  if (q.dtype() == DType::f32) return forward<Singles, float>(q, k, v, spans, params, out, log_sum_exp);
#if HWY_TARGET == HWY_AVX3
  if (multiplies_tiles()) return forward<PairTiles, bf16>(q, k, v, spans, params, out, log_sum_exp);
  if (multiplies_pairs()) return forward<Pairs, bf16>(q, k, v, spans, params, out, log_sum_exp);
#endif
  forward<Singles, bf16>(q, k, v, spans, params, out, log_sum_exp);
}

}  // namespace nibble::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::ops::cpu {

NIBBLE_SIMD_KERNEL(attention_forward);

}  // namespace nibble::ops::cpu
#endif
