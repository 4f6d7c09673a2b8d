#include "nibble/parallel/data/assignment.h"

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

std::vector<int64_t> in_rounds(int64_t count, int ranks, int rank) {
  std::vector<int64_t> mine;
  for (int64_t i = rank; i < count; i += ranks) mine.push_back(i);
  return mine;
}

}  // namespace nibble
