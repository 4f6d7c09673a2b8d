#include "nibble/core/train/telemetry/profile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/train/telemetry/trace_hooks.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

void wait(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST(Trace, CountsEveryMomentOnceForTheInnermostSpan) {
  Trace trace;
  const auto start = std::chrono::steady_clock::now();
  {
    const TraceSpan step(&trace, Phase::other, "step");
    wait(5);
    const TraceSpan forward(&trace, Phase::forward, "layer 0");
    wait(20);
  }
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - start;
  EXPECT_GE(trace.seconds(Phase::forward), 0.020);
  EXPECT_GE(trace.seconds(Phase::other), 0.005);
  EXPECT_LE(trace.seconds(Phase::forward) + trace.seconds(Phase::other), all.count());
  EXPECT_EQ(trace.totals().at({Phase::forward, "layer 0"}).count, 1);
}

TEST(Trace, EverythingInsideAnEvaluationIsEvaluation) {
  Trace trace;
  {
    const TraceSpan evaluation(&trace, Phase::evaluation, "evaluation");
    const TraceSpan forward(&trace, Phase::forward, "layer 0");
    wait(2);
  }
  EXPECT_EQ(trace.seconds(Phase::forward), 0);
  EXPECT_GE(trace.seconds(Phase::evaluation), 0.002);
}

TEST(Trace, IsInTheTraceEventFormat) {
  Trace trace(3);
  {
    const TraceSpan step(&trace, Phase::other, "a \"quoted\" step");
    const TraceSpan inner(&trace, Phase::data, "inner");
  }
  trace.count("loss", 1.25);
  const nlohmann::json parsed = nlohmann::json::parse(trace.chrome_json());
  ASSERT_TRUE(parsed["traceEvents"].is_array());
  std::map<std::string, nlohmann::json> events;
  for (const nlohmann::json& event : parsed["traceEvents"]) {
    EXPECT_TRUE(event["name"].is_string() && event["ph"].is_string() && event["pid"] == 3 && event["tid"] == 0);
    events[event["name"]] = event;
  }
  const nlohmann::json outer = events.at("a \"quoted\" step"), inner = events.at("inner");
  EXPECT_EQ(outer["ph"], "X");
  EXPECT_EQ(inner["cat"], "data");
  EXPECT_LE(outer["ts"].get<double>(), inner["ts"].get<double>());
  EXPECT_GE(outer["ts"].get<double>() + outer["dur"].get<double>(),
            inner["ts"].get<double>() + inner["dur"].get<double>() - 0.002);
  EXPECT_EQ(events.at("loss")["ph"], "C");
  EXPECT_EQ(events.at("loss")["args"]["value"], 1.25);
}

TEST(Trace, KeepsTotalsWhenTheEventsAreTooMany) {
  Trace trace(0, 2);
  for (int i = 0; i < 5; ++i) const TraceSpan span(&trace, Phase::io, "checkpoint");
  EXPECT_EQ(trace.totals().at({Phase::io, "checkpoint"}).count, 5);
  EXPECT_EQ(nlohmann::json::parse(trace.chrome_json())["traceEvents"].size(), 3u);  // the process name and two
}

TEST(TraceHooks, NameEmbeddingsLayersAndHeadWhoseLossCountsAsForward) {
  Trace trace;
  TraceHooks hooks(&trace, 2);
  for (const int64_t layer : {-1, 0, 1}) hooks.before_forward(layer), hooks.after_forward(layer);
  hooks.before_backward(2);
  wait(3);
  hooks.after_backward(2);
  for (const int64_t layer : {1, 0, -1}) hooks.before_backward(layer), hooks.after_backward(layer);
  EXPECT_GE(trace.totals().at({Phase::forward, "head and loss"}).seconds, 0.003);
  EXPECT_EQ(trace.totals().at({Phase::forward, "embeddings"}).count, 1);
  EXPECT_EQ(trace.totals().at({Phase::forward, "layer 1"}).count, 1);
  EXPECT_EQ(trace.totals().at({Phase::backward, "layer 0"}).count, 1);
  EXPECT_EQ(trace.totals().at({Phase::backward, "embeddings"}).count, 1);
}

RankTimes times(double compute, double data, double communication, double io, double evaluation) {
  RankTimes result;
  result.compute = compute;
  result.data = data;
  result.communication = communication;
  result.io = io;
  result.evaluation = evaluation;
  return result;
}

TEST(Bottleneck, IsNamedInWords) {
  const auto begins = [](const std::string& text, const std::string& start) {
    return text.starts_with("bottleneck: " + start);
  };
  EXPECT_TRUE(begins(bottleneck({times(9, 1, 0, 0, 0)}, 0.6, 512), "arithmetic"));
  EXPECT_TRUE(begins(bottleneck({times(9, 1, 0, 0, 0)}, 0.1, 16), "memory"));
  EXPECT_TRUE(begins(bottleneck({times(9, 1, 0, 0, 0)}, 0.1, 512), "small pieces"));
  EXPECT_TRUE(begins(bottleneck({times(5, 5, 0, 0, 0)}, 0.6, 512), "data"));
  EXPECT_TRUE(begins(bottleneck({times(5, 0, 0, 3, 0)}, 0.6, 512), "checkpoints"));
  EXPECT_TRUE(begins(bottleneck({times(5, 0, 0, 0, 4)}, 0.6, 512), "evaluation"));
  EXPECT_TRUE(begins(bottleneck({times(5, 0, 5, 0, 0), times(5, 0, 5, 0, 0)}, 0.6, 512), "communication"));
  const std::string imbalance = bottleneck({times(4, 0, 5, 0, 0), times(8, 0, 1, 0, 0)}, 0.6, 512);
  EXPECT_TRUE(begins(imbalance, "imbalance between ranks: rank 1 computes 2.00 times as long as rank 0")) << imbalance;
}

TEST(Profile, GathersOneRankAndWritesItsTrace) {
  const test::TemporaryDirectory directory;
  LocalRank rank(1);
  Trace trace;
  {
    const TraceSpan span(&trace, Phase::forward, "layer 0");
    wait(2);
  }
  const std::vector<RankTimes> all = gather_times(rank_times(trace), rank.context());
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].compute, trace.seconds(Phase::forward));
  const auto path = write_trace(trace, directory / "profile");
  EXPECT_EQ(test::read_bytes(path), trace.chrome_json());
  EXPECT_EQ(path.filename(), "rank-0.json");
}

}  // namespace
}  // namespace nibble
