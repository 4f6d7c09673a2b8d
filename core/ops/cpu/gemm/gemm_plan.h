#pragma once
// How a product is cut into jobs, the same for every arithmetic.

#include <algorithm>
#include <limits>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cpu/gemm/gemm_kernel.h"

namespace nibble::ops::cpu {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// Fewer multiplications are not cut further: 2^22 take 20 us at 64 a cycle (bf16) and 3 GHz, and a job costs about 1 us
// besides (its turn in the team, its share of a panel's edges), a twentieth.
constexpr int64_t kMinJobMultiplications = int64_t{1} << 22;
// What a job costs besides, as multiplications, and a panel that it packs, as rows that are multiplied by it.
constexpr int64_t kJobMultiplications = kMinJobMultiplications / 20, kPackedRows = 16;
// Rows x columns of a job: its f32 sums are 1 MiB of the 2 MiB of a thread's buffers. They are read and written once
// in depth_block multiplications, so it does not count which cache they lie in; a packed panel serves all rows of a
// job.
constexpr int64_t kMaxJobSums = int64_t{1} << 18;

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// Chunk `i` of `chunks` of the columns, in whole strips of `width`: the first ones have one more than the last where
/// there are not as many for all.
inline Range chunk_of_columns(int64_t i, int64_t chunks, int64_t columns, int64_t width) {
  const int64_t strips = divide_up(columns, width), each = strips / chunks, more = strips % chunks;
  const int64_t begin = (i * each + std::min(i, more)) * width;
  return {begin, std::min(columns, begin + (each + (i < more ? 1 : 0)) * width)};
}

/// The sizes of one product and how it is cut into jobs: chunks of columns by chunks of rows, the last chunks of
/// columns by shorter ones, so that the threads end together without W being packed often.
struct GemmPlan {
  /// Columns that packing a panel costs besides those it has: W is read in short pieces.
  static constexpr int64_t kPanelColumns = 64;
  /// Turns of the threads that are tried, and the part of the best time that is not worth another search.
  static constexpr int64_t kMostTurns = 4, kEvenEnough = 64;
  /// A thread that something else holds up lets the others wait for this part of its last job.
  static constexpr int64_t kHeldUp = 6;

  TileShape shape;
  int64_t rows, columns, depth;            // M, N, K
  int64_t chunk_rows, chunk_columns;       // of one job
  int64_t depth_block, panel_columns;      // of one panel
  int64_t last_chunks = 0, last_rows = 1;  // chunks of columns that are cut into jobs of last_rows instead

  /// rows, columns, depth: M, N, K
  GemmPlan(const TileShape& tile, int64_t m, int64_t n, int64_t k)
      : shape(tile), rows(m), columns(n), depth(k), depth_block(tile.depth_block), panel_columns(tile.panel_columns) {
    chunk_columns = even_columns(panel_columns);
    const int64_t chunks = divide_up(rows, kMaxJobSums / chunk_columns + shape.rows);
    chunk_rows = round_up(divide_up(rows, chunks), shape.rows);
    if (threads() > 1) end_together(threads());
  }

  // As few chunks as `most` columns allow, of nearly the same size.
  int64_t even_columns(int64_t most) const {
    return round_up(divide_up(columns, divide_up(columns, most)), shape.width);
  }
  // The next smaller chunk of columns.
  int64_t narrower() const {
    return even_columns(std::max(shape.width, chunk_columns / 2 / shape.width * shape.width));
  }

  // Chooses the cuts that end soonest, narrower chunks only where those are not even enough.
  void end_together(int64_t threads) {
    GemmPlan best = *this;
    int64_t soonest = std::numeric_limits<int64_t>::max();
    const int64_t most_rows = chunk_rows, least_cuts = divide_up(rows, most_rows);
    const int64_t all = column_chunks() * multiplications(rows) / threads;
    const auto done = [&] { return soonest - all <= all / kEvenEnough || work() <= kMinJobMultiplications; };
    for (;; chunk_columns = narrower()) {
      for (int64_t cuts = least_cuts; cuts <= least_cuts * kMostTurns; ++cuts) {
        chunk_rows = round_up(divide_up(rows, cuts), shape.rows);
        if (divide_up(rows, chunk_rows) == cuts) try_turns(threads, soonest, best);
        if (done()) break;
      }
      chunk_rows = most_rows;
      if (done() || chunk_columns <= shape.width) break;
    }
    *this = best;
  }

  // Whole chunks in full turns of the threads, or one turn fewer, then shorter jobs in so many turns.
  void try_turns(int64_t threads, int64_t& soonest, GemmPlan& best) {
    const int64_t chunks = column_chunks(), cuts = divide_up(rows, chunk_rows), full = chunks * cuts / threads;
    const auto keep = [&](int64_t ends, int64_t last) {
      ends += last / kHeldUp;
      if (ends >= soonest) return;
      soonest = ends;
      best = *this;
    };
    const int64_t of_whole = multiplications(chunk_rows);
    for (int64_t first = full; first >= std::max(int64_t{0}, full - 1); --first) {
      const int64_t whole = first * threads / cuts * cuts, turns = whole / threads, late = whole % threads;
      last_chunks = chunks - whole / cuts;
      if (last_chunks == 0) {
        keep(turns * of_whole, of_whole);
        continue;
      }
      for (int64_t taken = 1; taken <= kMostTurns; ++taken) {
        last_rows = round_up(divide_up(rows, std::max(int64_t{1}, taken * threads / last_chunks)), shape.rows);
        last_rows = std::min(chunk_rows, last_rows);
        const int64_t last = last_chunks * divide_up(rows, last_rows), of_last = multiplications(last_rows);
        // Threads without one of the late jobs take last ones meanwhile.
        const int64_t meanwhile = late > 0 ? std::min(last, (threads - late) * (of_whole / of_last)) : 0;
        const int64_t then = (turns + (late > 0 ? 1 : 0)) * of_whole + divide_up(last - meanwhile, threads) * of_last;
        keep(then, of_last);
      }
    }
  }

  int64_t column_chunks() const { return divide_up(columns, chunk_columns); }
  int64_t whole_jobs() const { return (column_chunks() - last_chunks) * divide_up(rows, chunk_rows); }
  int64_t jobs() const { return whole_jobs() + last_chunks * divide_up(rows, last_rows); }

  struct Piece {
    Range m, n;
  };
  // Neighbouring jobs share the panel's columns of W, whose bytes are then still in the shared cache.
  Piece piece(int64_t job) const {
    const bool whole = job < whole_jobs();
    const int64_t size = whole ? chunk_rows : last_rows, cuts = divide_up(rows, size);
    const int64_t of_kind = whole ? job : job - whole_jobs();
    const int64_t m0 = of_kind % cuts * size;
    const int64_t chunk = of_kind / cuts + (whole ? 0 : column_chunks() - last_chunks);
    return {{m0, std::min(rows, m0 + size)}, chunk_of_columns(chunk, column_chunks(), columns, shape.width)};
  }

  // Columns of the job that the thread of this one may come to next, where there is one.
  Range columns_after(int64_t job) const {
    const int64_t next = job + threads();
    return next < jobs() ? piece(next).n : Range{0, 0};
  }

  // What a job of so many rows costs, and, of all columns, as many as the mean one.
  int64_t multiplications(int64_t of) const {
    const int64_t mean = columns / column_chunks();
    const int64_t packing = kPackedRows * (mean + kPanelColumns);
    return (std::min(of, rows) * (mean + shape.read_columns) + packing) * depth + kJobMultiplications;
  }
  // Multiplications of one job.
  int64_t work() const { return std::min(rows, chunk_rows) * std::min(columns, chunk_columns) * depth; }
};

}  // namespace nibble::ops::cpu
