#pragma once
// Which rank computes which microbatch of a step.

#include <cstdint>
#include <vector>

namespace nibble {

/// Microbatches [0, count) halved as the ranks are: rank groups of equal size own whole subtrees of the binary tree in
/// which one rank adds gradients (GradientSum::tree), so 1, 2, 4 and 8 ranks get the same bits. For other numbers of
/// ranks the shares are as equal as possible.
std::vector<int64_t> whole_subtrees(int64_t count, int ranks, int rank);

/// Round i gives microbatch i * ranks + rank, so that after every round the ranks' sum is a whole subtree: gradients
/// can be added up over ranks round by round. The same bits as one rank when ranks and count / ranks are powers of two.
std::vector<int64_t> in_rounds(int64_t count, int ranks, int rank);

}  // namespace nibble
