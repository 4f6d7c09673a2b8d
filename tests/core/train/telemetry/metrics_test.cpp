#include "nibble/core/train/telemetry/metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "nibble/core/train/telemetry/progress.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;

TEST(Metrics, WhatIsNotFiniteIsNull) {
  EvaluationReport evaluation;
  evaluation.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(metrics_line(evaluation).find("\"loss\":null,"), std::string::npos);
}

TEST(Metrics, NumbersHave17Digits) {
  StepReport report;
  report.step = 2;
  report.loss = 0.1;
  report.lr = 1e-5;
  EXPECT_EQ(metrics_line(report).find("{\"step\":2,\"split\":\"train\",\"loss\":0.10000000000000001,\"lr\":"
                                      "1.0000000000000001e-05,"),
            0u)
      << metrics_line(report);
  EvaluationReport evaluation;
  evaluation.step = 2;
  evaluation.loss = 0.1;
  evaluation.perplexity = 1.25;
  EXPECT_EQ(
      metrics_line(evaluation)
          .find("{\"step\":2,\"split\":\"eval\",\"loss\":0.10000000000000001,\"perplexity\":1.25,\"label_tokens\":0,"),
      0u);
}

TEST(Metrics, ResumingTakesAwayLaterAndTornLines) {
  TemporaryDirectory directory;
  const fs::path path = directory.path() / "metrics.jsonl";
  const std::string kept = "{\"step\":1,\"x\":1}\n{\"step\":2}\n";
  test::write_bytes(path, kept + "{\"step\":3}\nnoise\n{\"step\":2");
  { MetricsFile(path, 2).append("{\"step\":3,\"new\":1}"); }
  EXPECT_EQ(test::read_bytes(path), kept + "{\"step\":3,\"new\":1}\n");
  { MetricsFile file(path, 0); }
  EXPECT_EQ(test::read_bytes(path), "");
}

TEST(Metrics, PeakMemoryIsThatOfTheProcess) {
  const int64_t before = peak_memory_bytes();
  EXPECT_GT(before, 1 << 20);
  const std::vector<char> large(size_t{64} << 20, 1);
  const volatile char* const touched = large.data();  // else a compiler may leave the whole vector out
  EXPECT_EQ(touched[large.size() / 2], 1);
  EXPECT_GE(peak_memory_bytes(), before);
  EXPECT_GT(peak_memory_bytes(), int64_t{64} << 20);
}

TEST(Metrics, NamesHaveAnyCharacter) {
  StepReport report;
  report.metrics = {{"rewards/a\"b\\c\nd/mean", 0.5}};
  EXPECT_EQ(nlohmann::json::parse(metrics_line(report))["rewards/a\"b\\c\nd/mean"], 0.5);
}

}  // namespace
}  // namespace nibble
