#pragma once
// Sums over ranks in a fixed order: all-to-all, then each rank adds its share of the elements as a binary tree over the
// ranks, in f32. No engine's reduction is used; those differ in bits from 3 ranks on.

#include <span>
#include <string_view>
#include <vector>

#include "nibble/core/comm/communicator.h"

namespace nibble {

/// How sums travel.
struct Wire {
  DType dtype = DType::f32;  ///< or bf16: half the bytes, parts and sums rounded once each
};

/// Of every `group` ranks that follow each other: whether one of them has something to add.
std::vector<bool> any_of_groups(const std::vector<bool>& present, int64_t group);

/// The sum of the rows of `parts` [ranks, n] f32, ranks halved recursively, in one of them; rows that are not present
/// are left out (a rank that had nothing to add).
Tensor tree_sum(const Tensor& parts, const std::vector<bool>& present);

/// values [n] f32 = their sum over the ranks, on all of them. present[r]: whether rank r has something to add; the
/// same on all ranks, and at least one is.
void all_reduce_tree(Communicator& ranks, std::string_view operation, Tensor& values, const std::vector<bool>& present,
                     const Wire& wire, MemoryPool& pool);

/// mine += its shard of the sum over the ranks: elements [bounds[rank], bounds[rank + 1]) of `values` [n] f32.
void reduce_scatter_tree(Communicator& ranks, std::string_view operation, const Tensor& values,
                         std::span<const int64_t> bounds, Tensor& mine, const std::vector<bool>& present,
                         const Wire& wire, MemoryPool& pool);

/// The same of one number, in f64, on all ranks.
double all_reduce_tree(Communicator& ranks, std::string_view operation, double value, const std::vector<bool>& present);

}  // namespace nibble
