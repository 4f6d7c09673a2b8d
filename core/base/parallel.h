#pragma once
// Threads: one team for each thread that hands out work, of a size set once (RankContext::threads). Work is split in
// pieces whose borders do not depend on the number of threads, so results are the same bits for any number.

#include <cstdint>

namespace nibble {

/// Sets the number of threads that parallel_for and the libraries underneath use; at least 1.
void set_threads(int threads);

/// Number of threads parallel_for uses now; before the first set_threads() what OMP_NUM_THREADS or the machine gives.
int threads();

/// Whether the caller is a piece of a parallel_for: what it hands out in turn, it does itself.
bool in_parallel();

namespace detail {
/// Calls piece(context, k) for k in [0, pieces), each once, on all threads.
void run_pieces(int64_t pieces, void (*piece)(const void* context, int64_t k), const void* context);
}  // namespace detail

/// Calls body(begin, end) for the pieces [k * grain, min((k + 1) * grain, count)) of [0, count), on all threads.
/// Pieces depend on grain only. The first exception a piece throws is rethrown after all have ended. A thread that the
/// machine has no core for takes no piece, and is not waited for.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, Body&& body) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  const int64_t pieces = (count + grain - 1) / grain;
  const auto piece = [&](int64_t k) { body(k * grain, k + 1 == pieces ? count : (k + 1) * grain); };
  if (pieces == 1 || in_parallel()) {
    for (int64_t k = 0; k < pieces; ++k) piece(k);
    return;
  }
  detail::run_pieces(
      pieces, [](const void* context, int64_t k) { (*static_cast<const decltype(piece)*>(context))(k); }, &piece);
}

}  // namespace nibble
