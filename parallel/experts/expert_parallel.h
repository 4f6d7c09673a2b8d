#pragma once
// Expert parallelism (Lepikhin et al. 2020, GShard): every rank of a group has some of the experts of every layer, and
// tokens travel to those they chose.

#include <memory>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/nn/feed_forward/expert_exchange.h"
#include "nibble/core/train/gradient_sum.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

/// What a Decoder of this rank, one of `ranks`, is made with: rank r of n has experts [E r / n, E (r + 1) / n). Null
/// where there is a single rank, or the model has no experts. Rows travel in the dtype they have, results in f32.
/// trace: gets a span of communication for every exchange. ranks, pool and trace must outlive it.
std::unique_ptr<ExpertExchange> expert_parallel(const DecoderConfig& config, Communicator& ranks, GradientSum kind,
                                                MemoryPool& pool, Trace* trace = nullptr);

}  // namespace nibble
