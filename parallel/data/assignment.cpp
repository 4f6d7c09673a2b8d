#include "nibble/parallel/data/assignment.h"

#include <functional>

namespace nibble {

std::vector<int64_t> whole_subtrees(int64_t count, int ranks, int rank) {
  int64_t begin = 0, end = count;
  while (ranks > 1) {
    const int left = ranks / 2;
    const int64_t middle = begin + (end - begin) * left / ranks;
    if (rank < left) {
      end = middle;
      ranks = left;
    } else {
      begin = middle;
      rank -= left;
      ranks -= left;
    }
  }
  std::vector<int64_t> mine;
  for (int64_t i = begin; i < end; ++i) mine.push_back(i);
  return mine;
}

int64_t round_count(int64_t count, int ranks, GradientSum kind) {
  if (kind == GradientSum::running || count == 0) return (count + ranks - 1) / ranks;
  int64_t subtrees = 1;  // of count / subtrees microbatches, or one more
  while (count / subtrees > ranks) subtrees *= 2;
  const bool full = count / subtrees == ranks;  // those of one more are two rounds
  return full ? subtrees + count - ranks * subtrees : subtrees;
}

std::vector<int64_t> round_begins(int64_t count, int ranks, GradientSum kind) {
  std::vector<int64_t> begins;
  if (kind == GradientSum::running) {
    for (int64_t begin = 0; begin < count; begin += ranks) begins.push_back(begin);
  } else {
    const std::function<void(int64_t, int64_t)> split = [&](int64_t begin, int64_t end) {
      if (end - begin <= ranks) return begins.push_back(begin);
      const int64_t middle = begin + (end - begin) / 2;
      split(begin, middle);
      split(middle, end);
    };
    if (count > 0) split(0, count);
  }
  begins.push_back(count);
  return begins;
}

std::vector<int64_t> in_rounds(const std::vector<int64_t>& begins, int ranks, int rank) {
  std::vector<int64_t> mine;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    const std::vector<int64_t> own = whole_subtrees(begins[i + 1] - begins[i], ranks, rank);
    mine.push_back(own.empty() ? kIdle : begins[i] + own.front());
  }
  return mine;
}

}  // namespace nibble
