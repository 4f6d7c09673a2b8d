#pragma once
// Threads: one OpenMP team, whose size the caller sets once (RankContext::threads). Work is split in pieces whose
// borders do not depend on the number of threads, so results are the same bits for any number.

#include <cstdint>
#include <exception>

#include <omp.h>

namespace nibble {

/// Sets the number of threads that parallel_for and the libraries underneath use; at least 1.
void set_threads(int threads);

/// Number of threads parallel_for uses now.
int threads();

/// Calls body(begin, end) for the pieces [k * grain, min((k + 1) * grain, count)) of [0, count), on all threads.
/// Pieces depend on grain only. The first exception a piece throws is rethrown after all have ended.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, Body&& body) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  const int64_t pieces = (count + grain - 1) / grain;
  if (pieces == 1 || omp_in_parallel()) {
    for (int64_t k = 0; k < pieces; ++k) body(k * grain, k + 1 == pieces ? count : (k + 1) * grain);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t k = 0; k < pieces; ++k) {
    try {
      body(k * grain, k + 1 == pieces ? count : (k + 1) * grain);
    } catch (...) {
#pragma omp critical(nibble_parallel_for)
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace nibble
