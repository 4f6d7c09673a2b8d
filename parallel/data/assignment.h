#pragma once
// Which rank computes which microbatch of a step.

#include <cstdint>
#include <vector>

#include "nibble/core/train/step_executor.h"

namespace nibble {

/// Microbatches [0, count) halved as the ranks are: rank groups of equal size own whole subtrees of the binary tree in
/// which one rank adds gradients (GradientSum::tree), so 1, 2, 4 and 8 ranks get the same bits. For other numbers of
/// ranks the shares are as equal as possible.
std::vector<int64_t> whole_subtrees(int64_t count, int ranks, int rank);

/// Where the rounds of a step of `count` microbatches begin, and `count`. In a round every rank has one microbatch at
/// most, those of whole_subtrees, and the ranks' gradients are added before the next. tree: a round is a whole subtree,
/// and so is every half of the rounds; a tree over the rounds then gives 1, 2, 4 and 8 ranks the same bits for any
/// count, though some ranks may idle. running: every round but the last is full.
std::vector<int64_t> round_begins(int64_t count, int ranks, GradientSum kind);

/// How many rounds these are.
int64_t round_count(int64_t count, int ranks, GradientSum kind);

/// The rank's microbatch in every round, or kIdle.
std::vector<int64_t> in_rounds(const std::vector<int64_t>& begins, int ranks, int rank);

}  // namespace nibble
