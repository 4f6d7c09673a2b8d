#include "nibble/core/train/telemetry/profile.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/system_error.h"

namespace nibble {

namespace {

constexpr int kTimes = 6;
// A weight of 4 to 16 bits that is read for so many tokens is used longer than it takes to read: 2 operations a token
// and weight at 500 GFLOP/s, 0.5 to 4 bytes at 30 GB/s.
constexpr double kTokensThatHideMemory = 48;

std::string percent(double share) { return formatted("%.0f%%", 100 * share); }

double mean(const std::vector<RankTimes>& ranks, double RankTimes::*what) {
  double sum = 0;
  for (const RankTimes& rank : ranks) sum += rank.*what;
  return sum / static_cast<double>(ranks.size());
}

// Ranks that wait for a slower one show the wait as communication.
std::string communication_words(const std::vector<RankTimes>& ranks, double share) {
  const auto slower = [](const RankTimes& a, const RankTimes& b) { return a.compute < b.compute; };
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end(), slower);
  if (most->compute > 1.15 * least->compute) {
    const std::string times = formatted("%.2f", most->compute / std::max(least->compute, 1e-9));
    return "bottleneck: imbalance between ranks: rank " + std::to_string(most - ranks.begin()) + " computes " + times +
           " times as long as rank " + std::to_string(least - ranks.begin()) +
           ", the others wait for it; give it fewer layers (parallel.stages) or more cores";
  }
  return "bottleneck: communication: " + percent(share) +
         " of the time; raise train.accumulate or train.microbatch_size so that a rank computes more between "
         "exchanges, or use fewer ranks";
}

std::string compute_words(double share, double share_of_peak, double tokens_in_pass) {
  const std::string text = "bottleneck: ";
  if (share_of_peak <= 0) return text + "computing: " + percent(share) + " of the time";
  const std::string facts = percent(share) + " of the time is computing, at " + percent(share_of_peak) +
                            " of what the CPU can do in registers";
  if (share_of_peak >= 0.35) {
    return text + "arithmetic: " + facts + "; more cores, fewer tokens or a smaller model make it faster";
  }
  const std::string tokens = formatted("%.0f", tokens_in_pass);
  if (tokens_in_pass < kTokensThatHideMemory) {
    return text + "memory: " + facts + ": products of " + tokens +
           " tokens wait for weights; raise train.microbatch_size or data.max_length (with data.pack)";
  }
  return text + "small pieces: " + facts + ", though a pass has " + tokens +
         " tokens: the model's layers are narrow for this CPU, or other programs take its cores; raise "
         "train.microbatch_size, and look at the load (nibble doctor)";
}

}  // namespace

RankTimes rank_times(const Trace& trace) {
  RankTimes times;
  times.data = trace.seconds(Phase::data);
  times.compute = trace.seconds(Phase::forward) + trace.seconds(Phase::backward) + trace.seconds(Phase::optimizer);
  times.communication = trace.seconds(Phase::communication);
  times.io = trace.seconds(Phase::io);
  times.evaluation = trace.seconds(Phase::evaluation);
  times.other = trace.seconds(Phase::other);
  return times;
}

std::vector<RankTimes> gather_times(const RankTimes& mine, RankContext& rank) {
  const double values[kTimes] = {mine.data, mine.compute, mine.communication, mine.io, mine.evaluation, mine.other};
  const Tensor part = Tensor::from<double>(rank.pool, {kTimes}, values);
  const int64_t size = rank.comm.size();
  Tensor all = Tensor::zeros(rank.pool, {size, kTimes}, DType::f64);
  rank.comm.all_gather("times of the profile", part, all);
  std::vector<RankTimes> ranks;
  for (int64_t r = 0; r < size; ++r) {
    const double* row = all.data<double>() + r * kTimes;
    ranks.push_back({row[0], row[1], row[2], row[3], row[4], row[5]});
  }
  return ranks;
}

std::string bottleneck(const std::vector<RankTimes>& ranks, double share_of_peak, double tokens_in_pass) {
  NIBBLE_CHECK(!ranks.empty(), "a profile of no ranks");
  double total = 0;
  for (const RankTimes& rank : ranks) total += rank.total() / static_cast<double>(ranks.size());
  if (total <= 0) return "bottleneck: nothing was measured";
  const double communication = mean(ranks, &RankTimes::communication) / total,
               data = mean(ranks, &RankTimes::data) / total, io = mean(ranks, &RankTimes::io) / total,
               evaluation = mean(ranks, &RankTimes::evaluation) / total,
               compute = mean(ranks, &RankTimes::compute) / total;
  // What is not computing counts when it takes a good part of the time, the largest first.
  const double worst = std::max({communication, data, io, evaluation});
  if (worst < 0.2) return compute_words(compute, share_of_peak, tokens_in_pass);
  if (worst == communication) return communication_words(ranks, communication);
  if (worst == data) {
    return "bottleneck: data: " + percent(data) +
           " of the time goes into reading, encoding and laying out; data.cache keeps what is encoded for the next "
           "run, "
           "longer sequences or data.pack lay out faster";
  }
  if (worst == io) {
    return "bottleneck: checkpoints: " + percent(io) +
           " of the time is writing; raise train.save_every or use a faster disk";
  }
  return "bottleneck: evaluation: " + percent(evaluation) +
         " of the time; raise train.eval_every or evaluate on less data";
}

std::vector<std::string> profile_lines(const Trace& trace) {
  std::vector<std::string> lines;
  const double total = std::max(trace.seconds(), 1e-9);
  const auto line = [&](const std::string& name, double seconds, int64_t count) {
    const std::string text = formatted("%-32s %9.2f s %5.1f%%", name.c_str(), seconds, 100 * seconds / total);
    lines.push_back(count > 0 ? text + "  " + count_text(count, "time") : text);
  };
  lines.push_back("time of rank " + std::to_string(trace.rank()) + " by phase:");
  for (int phase = 0; phase < kPhases; ++phase) {
    const double seconds = trace.seconds(static_cast<Phase>(phase));
    if (seconds > 0) line("  " + std::string(phase_name(static_cast<Phase>(phase))), seconds, 0);
  }
  std::vector<std::pair<std::string, Trace::Total>> spans;
  for (const auto& [what, sum] : trace.totals()) {
    spans.emplace_back("  " + std::string(phase_name(what.first)) + ": " + what.second, sum);
  }
  std::sort(spans.begin(), spans.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  lines.push_back("what took most, without what it contains:");
  for (size_t i = 0; i < std::min<size_t>(spans.size(), 12); ++i) {
    line(spans[i].first, spans[i].second.seconds, spans[i].second.count);
  }
  return lines;
}

std::filesystem::path write_trace(const Trace& trace, const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw system_error(directory, "cannot be made", error.value());
  std::filesystem::path path = directory / ("rank-" + std::to_string(trace.rank()) + ".json");
  write_file_atomically(path, trace.chrome_json());
  return path;
}

}  // namespace nibble
