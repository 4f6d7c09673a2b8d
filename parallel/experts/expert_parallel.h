#pragma once
// Expert parallelism (Lepikhin et al. 2020, GShard): every rank of a group has some of the experts of every layer, and
// tokens travel to those they chose.

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/decoder.h"
#include "nibble/core/nn/feed_forward/expert_exchange.h"
#include "nibble/core/train/gradient_sum.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

/// Throws UsageError where several ranks share the experts and not each of them has one.
void check_experts(const DecoderConfig& config, int64_t ranks);

/// Throws UsageError where ranks that share the experts would split a block of the 8-bit state (adamw8bit) of a tensor
/// of all experts, one of the parameters that `trains` names.
void check_expert_blocks(const DecoderConfig& config, int64_t ranks,
                         const std::function<bool(const std::string& parameter)>& trains);

/// Rank r of n has experts [E r / n, E (r + 1) / n).
Range experts_of_rank(int64_t experts, int rank, int ranks);

/// What a Decoder of this rank, one of `ranks`, is made with. Null where there is a single rank, or the model has no
/// experts. Rows travel in the dtype they have, results in f32. trace: gets a span of communication for every exchange.
/// ranks, pool and trace must outlive it.
std::unique_ptr<ExpertExchange> expert_parallel(const DecoderConfig& config, Communicator& ranks, GradientSum kind,
                                                MemoryPool& pool, Trace* trace = nullptr);

/// Whether only ranks with the same experts have the weight of `linear`.
bool is_spread(const Decoder& model, const Linear& linear);
/// The weights of all these that are parameters: an expert's own, or some matrices of a tensor of all experts.
std::set<const Parameter*> spread_weights(Decoder& model);

}  // namespace nibble
