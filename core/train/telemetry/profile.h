#pragma once
// What a trace says: where the time went on every rank, and in words what holds the run back.

#include <filesystem>
#include <string>
#include <vector>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

/// Seconds of one rank.
struct RankTimes {
  double data = 0, compute = 0, communication = 0, io = 0, evaluation = 0, other = 0;
  double total() const { return data + compute + communication + io + evaluation + other; }
};

RankTimes rank_times(const Trace& trace);

/// The times of all ranks, in rank order; a collective call.
std::vector<RankTimes> gather_times(const RankTimes& mine, RankContext& rank);

/// The bottleneck in words: data, memory, arithmetic, small pieces, communication, imbalance between ranks, checkpoints
/// or evaluation, with the numbers that show it and what helps. share_of_peak: of the steps, 0 when not known.
/// tokens_in_pass: of a microbatch; few of them make a product wait for its weights.
std::string bottleneck(const std::vector<RankTimes>& ranks, double share_of_peak, double tokens_in_pass);

/// A table for people: phases with their share, then the spans that took most.
std::vector<std::string> profile_lines(const Trace& trace);

/// Writes `directory`/rank-R.json (see Trace::chrome_json).
std::filesystem::path write_trace(const Trace& trace, const std::filesystem::path& directory);

}  // namespace nibble
