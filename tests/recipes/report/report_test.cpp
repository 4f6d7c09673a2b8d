#include "nibble/recipes/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/train/telemetry/metrics.h"
#include "nibble/recipes/report/html.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::TemporaryDirectory;

StepReport step(int64_t number, double loss) {
  StepReport report;
  report.step = number;
  report.loss = loss;
  report.lr = 1e-4;
  report.grad_norm = 0.5;
  report.label_tokens = 10;
  report.tokens = 20;
  report.tokens_per_second = 100;
  report.peak_memory_bytes = 1 << 30;
  report.seconds = 0.2;
  return report;
}

EvaluationReport evaluation(int64_t number, double loss) {
  EvaluationReport report;
  report.step = number;
  report.loss = loss;
  report.perplexity = std::exp(loss);
  report.label_tokens = 10;
  report.tokens = 20;
  return report;
}

/// A run of 20 steps on disk.
void write_run(const std::filesystem::path& directory, double lr, double best) {
  std::filesystem::create_directories(directory);
  std::string metrics;
  for (int64_t k = 1; k <= 20; ++k) metrics += metrics_line(step(k, 4.0 / static_cast<double>(k))) + "\n";
  metrics += metrics_line(evaluation(10, best)) + "\n" + metrics_line(evaluation(20, best + 1)) + "\n";
  test::write_bytes(directory / "metrics.jsonl", metrics);
  test::write_bytes(directory / "samples.jsonl", sample_line({0, "Who <b>?", "me", "old & bad"}, 0.25) + "\n" +
                                                     sample_line({20, "Who <b>?", "me", "new"}, 0.5) + "\n");
  test::write_bytes(directory / "recipe.json",
                    "{\"optimizer\": {\"lr\": " + std::to_string(lr) + "}, \"output\": {\"dir\": \"x\"}}\n");
  test::write_bytes(
      directory / "run.json",
      R"({"nibble": "0.1.0", "machine": {"cpu": "Zen"}, "data": {"lengths_by_power_of_two": [0, 3, 5]}})");
}

TEST(RunLog, ReadsWhatARunWrote) {
  const TemporaryDirectory directory;
  write_run(directory / "a", 1e-4, 1.5);
  const RunLog log = read_run_log(directory / "a");
  ASSERT_EQ(log.steps.size(), 20u);
  EXPECT_EQ(log.steps[3].loss, 1.0);
  EXPECT_EQ(log.samples.back().text, "new");
  const RunSummary summary = summarize(log);
  EXPECT_EQ(summary.steps, 20);
  EXPECT_EQ(summary.tokens, 400);
  EXPECT_FALSE(summary.estimated);
  EXPECT_NEAR(summary.loss, (4.0 / 19 + 4.0 / 20) / 2, 1e-12);
  EXPECT_EQ(summary.best_step, 10);
  EXPECT_EQ(summary.best_evaluation_loss, 1.5);
  EXPECT_NEAR(summary.tokens_per_second, 100, 1e-9);
}

/// What a run drew for a step: a good answer, a bad one and one that nothing is said of.
void write_answers(const std::filesystem::path& run, int64_t step) {
  std::filesystem::create_directories(run / "rollouts");
  const std::string number = std::to_string(step);
  test::write_bytes(run / ("rollouts/step-" + number + ".jsonl"),
                    R"({"prompt": "1+1=", "completion": "worst of )" + number +
                        R"(", "reward": -2})"
                        "\n"
                        R"({"prompt": "1+1=", "completion": "<best> of )" +
                        number + R"(", "reward": )" + number +
                        "}\n"
                        R"({"prompt": "1+1=", "completion": "?", "reward": null})"
                        "\n");
}

TEST(Report, HasTheBestAndTheWorstAnswerOfEveryStep) {
  const TemporaryDirectory directory;
  write_run(directory / "a", 1e-4, 1.5);
  for (const int64_t step : {1, 2, 10, 11, 12}) write_answers(directory / "a", step);
  const DrawnAnswers drawn = read_answers(directory / "a");
  ASSERT_EQ(drawn.best_and_worst.size(), 5u);
  EXPECT_EQ(drawn.best_and_worst[2].first.step, 10) << "in order of their numbers";
  EXPECT_EQ(drawn.best_and_worst[4].first.reward, 12);
  EXPECT_EQ(drawn.best_and_worst[4].second.completion, "worst of 12");
  const std::string page = report_page(read_run_log(directory / "a"));
  for (const char* step : {"1", "2", "10", "11", "12"}) {
    EXPECT_NE(page.find("&lt;best&gt; of " + std::string(step) + "<"), std::string::npos) << step;
    EXPECT_NE(page.find("worst of " + std::string(step) + "<"), std::string::npos) << step;
  }
  EXPECT_NE(page.find("<summary>all 5 steps</summary>"), std::string::npos);
}

TEST(Report, SaysHowManyStepsItHasTheAnswersOf) {
  const TemporaryDirectory directory;
  write_run(directory / "a", 1e-4, 1.5);
  for (int64_t step = 1; step <= 401; step += 2) write_answers(directory / "a", step);
  const DrawnAnswers drawn = read_answers(directory / "a");
  EXPECT_EQ(drawn.steps, 201);
  ASSERT_EQ(drawn.best_and_worst.size(), 200u);
  EXPECT_EQ(drawn.best_and_worst.front().first.step, 1);
  EXPECT_EQ(drawn.best_and_worst.back().first.step, 401);
  EXPECT_NE(report_page(read_run_log(directory / "a")).find("<summary>200 of 201 steps</summary>"), std::string::npos);
}

TEST(RunLog, TakesTheStepsBetweenTwoLinesToBeLikeTheLogged) {
  const TemporaryDirectory directory;
  test::write_bytes(directory / "metrics.jsonl", metrics_line(step(10, 2)) + "\n" + metrics_line(step(15, 1)) + "\n");
  const RunLog log = read_run_log(directory / "");
  const RunSummary summary = summarize(log);
  EXPECT_TRUE(summary.estimated);
  EXPECT_EQ(summary.tokens, 15 * 20);
  EXPECT_NEAR(summary.seconds, 15 * 0.2, 1e-12);
  EXPECT_NE(report_page(log).find("about 300"), std::string::npos);
}

TEST(RunLog, TimeHasAnswersEvaluationsAndSamples) {
  const TemporaryDirectory directory;
  StepReport drawn = step(1, 2);
  drawn.metrics = {{"step_time", 4}};
  EvaluationReport evaluated = evaluation(1, 2);
  evaluated.seconds = 2.5;
  test::write_bytes(directory / "metrics.jsonl",
                    metrics_line(drawn) + "\n" + metrics_line(step(2, 1)) + "\n" + metrics_line(evaluated) + "\n");
  test::write_bytes(directory / "samples.jsonl",
                    sample_line({0, "a", "b", "c"}, 1.5) + "\n" + sample_line({2, "a", "b", "c"}, 0.25) +
                        "\n{\"step\": 2, \"prompt\": \"of earlier versions\", \"expected\": \"\", \"text\": \"\"}\n");
  const RunSummary summary = summarize(read_run_log(directory.path()));
  EXPECT_NEAR(summary.seconds, 4 + 0.2 + 2.5 + 1.5 + 0.25, 1e-12);
  EXPECT_NEAR(summary.tokens_per_second, 2 * 20 / 4.2, 1e-9);
}

TEST(RunLog, LeavesOutATornLastLineAndNamesABadOne) {
  const TemporaryDirectory directory;
  test::write_bytes(directory / "metrics.jsonl", metrics_line(step(1, 2)) + "\n{\"step\":2,\"spl");
  EXPECT_EQ(read_run_log(directory.path()).steps.size(), 1u);
  test::write_bytes(directory / "metrics.jsonl", metrics_line(step(1, 2)) + "\n{\"step\":2,\"split\":\"train\"}\n");
  EXPECT_NE(test::error_of<InputError>([&] { read_run_log(directory.path()); }).find("metrics.jsonl:2: lacks a field"),
            std::string::npos);
}

TEST(RunLog, DirectoryWithoutARunIsRefused) {
  const TemporaryDirectory directory;
  EXPECT_NE(test::error_of<InputError>([&] { read_run_log(directory.path()); }).find("holds no run"),
            std::string::npos);
}

TEST(Report, PageHoldsCurvesSamplesRecipeAndEnvironmentAndNeedsNothingElse) {
  const TemporaryDirectory directory;
  write_run(directory / "a", 1e-4, 1.5);
  write_report(directory / "a", directory / "a" / "report.html");
  const std::string page = test::read_bytes(directory / "a" / "report.html");
  for (const char* part : {"<svg", "Learning rate", "Perplexity", "Samples by length", "after step 0", "old &amp; bad",
                           "Who &lt;b&gt;?", "Zen", "&quot;lr&quot;"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("<b>?"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
}

TEST(Report, BeginsWithTheMethodAndTheBase) {
  const TemporaryDirectory directory;
  write_run(directory / "a", 1e-4, 1.5);
  test::write_bytes(directory / "a" / "recipe.json",
                    R"({"model": {"path": "models/llama", "quantize": "nf4"}, "adapter": {"r": 8, "lora_alpha": 16}})");
  test::write_bytes(directory / "a" / "run.json", R"({"model": {"architecture": "LlamaForCausalLM",
                    "parameters": 134515008, "trained_parameters": 1345150}})");
  const std::string page = report_page(read_run_log(directory / "a"));
  EXPECT_NE(page.find("<p>QLoRA (nf4, r 8, lora_alpha 16) on models/llama (LlamaForCausalLM, 134,515,008 parameters, "
                      "1% of them trained)</p>"),
            std::string::npos);
  test::write_bytes(directory / "a" / "recipe.json", R"({"model": {"path": "llama"}, "adapter": {"path": "runs/b"}})");
  EXPECT_NE(report_page(read_run_log(directory / "a")).find("<p>LoRA (continued from runs/b) on llama ("),
            std::string::npos);
  test::write_bytes(directory / "a" / "recipe.json", R"({"model": {"path": "llama", "quantize": "none"},
                    "adapter": null})");
  EXPECT_NE(report_page(read_run_log(directory / "a")).find("<p>Full fine-tuning of llama ("), std::string::npos);
  test::write_bytes(directory / "a" / "recipe.json", R"({"model": {"init": "config.json"}})");
  EXPECT_NE(report_page(read_run_log(directory / "a")).find("<p>Pretraining config.json ("), std::string::npos);
}

// A phone is 360 pixels wide: what needs more is scrolled alone, and the columns of samples are even.
TEST(Report, FitsAPhone) {
  const TemporaryDirectory directory;
  write_run(directory / "a", 1e-4, 1.5);
  const std::string page = report_page(read_run_log(directory / "a"));
  EXPECT_NE(page.find("minmax(min(420px, 100%), 1fr)"), std::string::npos);
  EXPECT_NE(page.find("<div class=\"wide even\"><table>\n<tr><th>prompt</th><th>expected</th>"), std::string::npos);
  EXPECT_NE(page.find(".even table { table-layout: fixed;"), std::string::npos);
}

TEST(Report, NumbersAreWrittenForPeople) {
  const TemporaryDirectory directory;
  StepReport fast = step(1, 2);
  fast.tokens = 3953;
  test::write_bytes(directory / "metrics.jsonl", metrics_line(fast) + "\n");
  test::write_bytes(directory / "run.json", R"({"machine": {"memory_bytes": 25276514304}, "data": {"tokens": 3953}})");
  const RunLog log = read_run_log(directory.path());
  const std::string page = report_page(log);
  for (const char* part : {"tokens a second<b>19,765</b>", "<td>23.5 GiB</td>", "<td>3,953</td>"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(comparison_rows({log})[1][3], "19,765");
}

TEST(Report, EmptyRunStillHasAPage) {
  const TemporaryDirectory directory;
  test::write_bytes(directory / "metrics.jsonl", "");
  EXPECT_NE(report_page(read_run_log(directory.path())).find("steps<b>0</b>"), std::string::npos);
}

TEST(Compare, ReportsWhereRecipesDifferAndWhoIsBest) {
  const TemporaryDirectory directory;
  write_run(directory / "a", 1e-4, 1.5);
  write_run(directory / "b", 2e-4, 1.25);
  const std::vector<RunLog> logs = {read_run_log(directory / "a"), read_run_log(directory / "b")};
  const auto differences = recipe_differences(logs);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0], (std::vector<std::string>{"optimizer.lr", "0.0001", "0.0002"}));
  EXPECT_EQ(difference_rows(logs), (std::vector<std::vector<std::string>>{{"recipe key", "a", "b"}, differences[0]}));
  const auto rows = comparison_rows(logs);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2][0], "b");
  EXPECT_EQ(rows[2][3], "1.2500");
  EXPECT_NE(comparison_page(logs).find("optimizer.lr"), std::string::npos);
}

TEST(Compare, LeavesOutWhatNoRunHas) {
  const TemporaryDirectory directory;
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directories(directory / name);
    test::write_bytes(directory / name / "metrics.jsonl", metrics_line(step(1, 2)) + "\n");
  }
  const std::vector<RunLog> logs = {read_run_log(directory / "a"), read_run_log(directory / "b")};
  EXPECT_EQ(comparison_rows(logs)[0], (std::vector<std::string>{"run", "steps", "loss", "tokens/s", "time", "memory"}));
  EXPECT_EQ(comparison_rows(logs)[1].size(), 6u);
  write_run(directory / "c", 1e-4, 1.5);
  EXPECT_EQ(comparison_rows({logs[0], read_run_log(directory / "c")})[1][3], "-");
}

// An evaluation loss above 709 has no perplexity that a double holds; metrics.jsonl says null.
TEST(Report, ShowsARunThatDiverged) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "a");
  StepReport diverged = step(1, 800);
  diverged.grad_norm = INFINITY;
  test::write_bytes(directory / "a" / "metrics.jsonl",
                    metrics_line(diverged) + "\n" + metrics_line(evaluation(1, 800)) + "\n");
  const RunLog log = read_run_log(directory / "a");
  ASSERT_EQ(log.evaluations.size(), 1u);
  EXPECT_EQ(log.evaluations[0].loss, 800);
  EXPECT_EQ(log.evaluations[0].perplexity, INFINITY);
  EXPECT_NE(report_page(log).find("its perplexity<b>inf</b>"), std::string::npos);
  EXPECT_EQ(comparison_rows({log})[1][4], "inf");
  EXPECT_NE(comparison_page({log, log}).find("800.0000"), std::string::npos);
}

// exp() of a preference loss is no perplexity.
TEST(Report, ShowsAccuracyAndMarginOfPreferencesInsteadOfPerplexity) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "dpo");
  EvaluationReport preferences = evaluation(1, -1e-9);
  preferences.perplexity = NAN;
  preferences.metrics = {{"rewards/accuracies", 0.625}, {"rewards/margins", 0.5}};
  test::write_bytes(directory / "dpo" / "metrics.jsonl",
                    metrics_line(step(1, 0.7)) + "\n" + metrics_line(preferences) + "\n");
  const RunLog log = read_run_log(directory / "dpo");
  const std::string page = report_page(log);
  EXPECT_EQ(page.find("erplexity"), std::string::npos);
  EXPECT_NE(page.find("best evaluation loss<b>0.0000</b>"), std::string::npos);
  EXPECT_NE(page.find("accuracy<b>62%</b>"), std::string::npos);
  EXPECT_EQ(comparison_rows({log})[0], (std::vector<std::string>{"run", "steps", "loss", "eval loss", "accuracy",
                                                                 "margin", "tokens/s", "time", "memory"}));
}

TEST(Report, HasCurvesOfWhatTheLastStepLacks) {
  const TemporaryDirectory directory;
  StepReport first = step(1, 0.7);
  first.metrics = {{"kl", 0.1}, {"rewards/chosen", 0.5}, {"rewards/rejected", -0.5}};
  StepReport last = step(2, 0.6);
  last.metrics = {{"kl", 0.2}, {"rewards/rejected", -0.6}};
  test::write_bytes(directory / "metrics.jsonl", metrics_line(first) + "\n" + metrics_line(last) + "\n");
  const auto plots = run_plots(read_run_log(directory.path()));
  const auto of_rewards = std::ranges::find(plots, "rewards", [](const NamedPlot& plot) { return plot.plot.title; });
  ASSERT_NE(of_rewards, plots.end());
  EXPECT_EQ(of_rewards->plot.curves.size(), 2u);
}

// Without an evaluation: over the last tenth of the steps.
TEST(Compare, ShowsTheMeanRewardOfTheLastSteps) {
  const TemporaryDirectory directory;
  std::string metrics;
  for (int64_t k = 1; k <= 20; ++k) {
    StepReport report = step(k, 0);
    report.metrics = {{"reward", static_cast<double>(k)}};
    metrics += metrics_line(report) + "\n";
  }
  test::write_bytes(directory / "metrics.jsonl", metrics);
  const auto rows = comparison_rows({read_run_log(directory.path())});
  EXPECT_EQ(rows[0][3], "reward");
  EXPECT_EQ(rows[1][3], "19.5");
}

TEST(Plot, TicksAreRoundAndInside) {
  EXPECT_EQ(ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  const std::vector<double> found = ticks(0.013, 0.087, 4);
  ASSERT_FALSE(found.empty());
  EXPECT_GE(found.front(), 0.013);
  EXPECT_LE(found.back(), 0.087 + 1e-12);
}

// Ranges in which no round number can be reached by adding, or none is finite.
const std::vector<std::pair<double, double>> kHardRanges = {{3.25, std::nextafter(3.25, 4)},
                                                            {3.25, 3.25 + 8e-16},
                                                            {-1e300, 1e300},
                                                            {1e300, std::nextafter(1e300, INFINITY)},
                                                            {0, 5e-324},
                                                            {1e-310, 2e-310},
                                                            {1e16, 1e16 + 2},
                                                            {-1.7e308, 1.7e308},
                                                            {2, 1},
                                                            {0, INFINITY},
                                                            {NAN, 1},
                                                            {7, 7}};

TEST(Plot, TicksAreFewInEveryRange) {
  for (const auto& [low, high] : kHardRanges) EXPECT_LE(ticks(low, high, 5).size(), 12u) << low << ' ' << high;
}

// A curve that cannot be drawn is left out, and no picture grows with its values.
TEST(Plot, EveryRangeIsDrawnOrLeftOut) {
  for (const auto& [low, high] : kHardRanges) {
    for (const bool from_zero : {false, true}) {
      Plot plot{.title = "hard", .x_label = "step", .y_label = ""};
      plot.from_zero = from_zero;
      plot.curves = {{"a", "#2f6fde", {{1, low}, {2, high}}}, {"b", "#2f6fde", {{low, -1e-9}, {high, -1e-9}}}};
      const std::string picture = svg(plot);
      EXPECT_LT(picture.size(), 8000u) << low << ' ' << high;
      EXPECT_EQ(picture.find("nan"), std::string::npos) << low << ' ' << high;
      EXPECT_EQ(picture.find("inf"), std::string::npos) << low << ' ' << high;
    }
  }
}

TEST(Plot, ThinningKeepsTheMean) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 1000; ++i) points.emplace_back(i, i);
  const auto few = thinned(points, 10);
  ASSERT_EQ(few.size(), 10u);
  EXPECT_NEAR(few[0].second, 49.5, 1e-9);
}

TEST(Plot, ValuesThatAreNotFiniteAreLeftOut) {
  Plot plot{.title = "t", .x_label = "x", .y_label = "y"};
  plot.curves = {{"c", "#123456", {{1, 2}, {2, NAN}, {3, INFINITY}, {4, 3}}}};
  const std::string text = svg(plot);
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
}

TEST(Html, EscapesWhatAPageWouldRead) {
  EXPECT_EQ(escape_html("<a href=\"x\">&\x01</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;\\x01&lt;/a&gt;");
  EXPECT_EQ(escape_html("a\u202Eb\n"), "a&lt;U+202E&gt;b\n");
}

}  // namespace
}  // namespace nibble
