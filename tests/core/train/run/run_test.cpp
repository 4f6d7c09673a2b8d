#include "nibble/core/train/run/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/tests/core/train/toy.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;
using test::values;

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  test::write_bytes(path, text);
}

/// A run of the toy model, from start or checkpoint to the end.
struct ToyRun {
  TemporaryDirectory directory;
  RunOptions options;
  std::vector<std::string> messages;
  std::vector<int64_t> steps, evaluations, saved;
  int64_t stop_after = -1, stop_in_save_of = -1;
  std::atomic<int64_t> policies = 0;                      // of stops, so many were set
  double evaluation_loss = 1;                             // what every evaluation gives
  std::function<double(int64_t)> evaluation_at;           // or by step
  std::function<void(int64_t, const fs::path&)> at_step;  // called after a step was logged
  std::function<void()> at_message;
  std::set<int64_t> poisoned;  // steps whose gradient is not finite

  ToyRun() {
    options.dir = directory.path() / "out";
    options.save_every = {3, 0};
    options.total_steps = 10;
    options.recipe = "{}\n";
    options.settings = {{"optimizer.lr", "0.01"}};
  }

  Observer observer() {
    Observer result;
    result.on_message = [this](const std::string& line) {
      messages.push_back(line);
      if (at_message) at_message();
    };
    result.on_step = [this](const StepReport& report) { steps.push_back(report.step); };
    result.on_evaluation = [this](const EvaluationReport& report) { evaluations.push_back(report.step); };
    result.on_checkpoint = [this](int64_t step, const std::string&) { saved.push_back(step); };
    result.on_stop_policy = [this](StopPolicy) { ++policies; };
    result.stop_requested = [this, before = std::optional<int64_t>()]() mutable {
      const int64_t step = steps.empty() ? 0 : steps.back();
      if (step == stop_in_save_of && !before) before = policies;
      return step == stop_after || (step == stop_in_save_of && policies > before);  // a save that begins sets one
    };
    return result;
  }

  /// Returns the bits of the parameters at the end.
  std::vector<float> go() {
    steps.clear();
    test::ToyRank rank;
    const Observer watching = observer();
    Run run = Run::open(options, rank.context, watching);
    test::ToyModel model(rank.pool);
    test::ToyExecutor executor(model, rank.context);
    Optimizer optimizer(model.parameters(), {}, rank.pool);
    run.restore(optimizer);
    while (run.next_step()) {
      const int32_t k = static_cast<int32_t>(run.step());
      const std::vector<Batch> batches = {test::toy_batch({k, 3 * k, 7}, 0, rank.pool),
                                          test::toy_batch({2, k % 4, k, k}, 0, rank.pool)};
      StepOptions step;
      step.step = run.step();
      step.lr = 0.01 / k;
      step.max_grad_norm = 1;
      executor.after = [&](double loss) {
        if (poisoned.contains(step.step)) model.b->gradient.data<float>()[1] = std::numeric_limits<float>::infinity();
        return loss;
      };
      run.log(train_step(executor, batches, NextToken(), optimizer, step), step.lr);
      if (at_step) at_step(run.step(), options.dir);
      if (run.evaluation_due()) {
        const double loss = evaluation_at ? evaluation_at(run.step()) : evaluation_loss;
        run.log(Evaluation{loss, std::exp(loss), 10, 12});
      }
      run.checkpoint_if_due(optimizer);
    }
    run.finish(optimizer);
    std::vector<float> all = values(model.w->value);
    for (const float value : values(model.b->value)) all.push_back(value);
    return all;
  }

  std::vector<int64_t> checkpoints() const { return checkpoint_steps(options.dir / "checkpoints"); }
  /// metrics.jsonl without what depends on the clock and the process.
  std::string metrics() const {
    const std::regex timed(R"re(,"(tokens_per_second|peak_memory_bytes|seconds)":[0-9.e+-]+)re");
    return std::regex_replace(test::read_bytes(options.dir / "metrics.jsonl"), timed, "");
  }
  std::string refusal() {
    try {
      go();
    } catch (const UsageError& error) {
      return error.what();
    } catch (const std::exception& error) {
      return std::string("no UsageError but: ") + error.what();
    }
    return "ran";
  }
};

TEST(Run, LeavesRecipeMetricsAndTheLastCheckpoints) {
  ToyRun run;
  run.go();
  EXPECT_EQ(run.steps.size(), 10u);
  EXPECT_EQ(run.saved, (std::vector<int64_t>{3, 6, 9, 10}));
  EXPECT_EQ(run.checkpoints(), (std::vector<int64_t>{9, 10}));
  EXPECT_EQ(test::read_bytes(run.options.dir / "recipe.json"), "{}\n");
  const std::string metrics = test::read_bytes(run.options.dir / "metrics.jsonl");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 10);
  const std::regex first(
      R"(^\{"step":1,"split":"train","loss":[0-9.e+-]+,"lr":[0-9.e+-]+,"grad_norm":[0-9.e+-]+,"label_tokens":5,"tokens":7,)"
      R"("num_tokens":7,"tokens_per_second":[0-9.e+-]+,"peak_memory_bytes":[0-9]+,"seconds":[0-9.e+-]+\}\n)");
  EXPECT_TRUE(std::regex_search(metrics, first)) << metrics.substr(0, 300);
}

TEST(Run, StoppedAtAnyStepAndResumedGivesTheSameBits) {
  ToyRun whole;
  whole.options.evaluates = true;
  whole.options.eval_every = {4, 0};
  const std::vector<float> want = whole.go();
  for (const int64_t stop : {1, 2, 3, 4, 7, 9}) {
    ToyRun parts;
    parts.options = whole.options;
    parts.options.dir = parts.directory.path() / "out";
    parts.stop_after = stop;
    EXPECT_THROW(parts.go(), Interrupted);
    EXPECT_EQ(parts.steps.back(), stop);
    parts.stop_after = -1;
    EXPECT_EQ(parts.go(), want) << "stopped after " << stop;
    EXPECT_EQ(parts.steps.front(), stop + 1);
    EXPECT_EQ(parts.metrics(), whole.metrics()) << "stopped after " << stop;
  }
}

TEST(Run, KilledAnywhereLosesOnlyTheStepsSinceTheLastCheckpoint) {
  ToyRun whole;
  const std::vector<float> want = whole.go();
  for (const int64_t kill : {2, 3, 5, 8}) {
    ToyRun parts;
    struct Killed {};
    parts.at_step = [&](int64_t step, const fs::path& dir) {
      if (step != kill) return;
      // What a kill leaves: a torn line, half a checkpoint, half a block of answers.
      std::ofstream(dir / "metrics.jsonl", std::ios::app) << "{\"step\":" << step + 1 << ",\"spl";
      put(dir / "checkpoints" / ".tmp-nibble-1-d0" / "state.json", "{");
      put(dir / "rollouts" / ".tmp-nibble-1-0-step-4.jsonl", "{");
      throw Killed();
    };
    EXPECT_THROW(parts.go(), Killed);
    parts.at_step = nullptr;
    EXPECT_EQ(parts.go(), want) << "killed in step " << kill;
    EXPECT_EQ(parts.steps.front(), (kill - 1) / 3 * 3 + 1);
    EXPECT_EQ(parts.metrics(), whole.metrics());
    EXPECT_FALSE(fs::exists(parts.options.dir / "checkpoints" / ".tmp-nibble-1-d0"));
    EXPECT_FALSE(fs::exists(parts.options.dir / "rollouts" / ".tmp-nibble-1-0-step-4.jsonl"));
  }
}

TEST(Run, FallsBackOverADamagedCheckpointToTheSameBits) {
  ToyRun run;
  const std::vector<float> want = run.go();
  const fs::path newest = run.options.dir / "checkpoints" / "step-10" / "state.json";
  fs::resize_file(newest, 7);
  EXPECT_EQ(run.go(), want);
  EXPECT_EQ(run.steps, std::vector<int64_t>{10});
  ASSERT_FALSE(run.messages.empty());
  EXPECT_NE(run.messages[0].find("step-10/state.json"), std::string::npos) << run.messages[0];
  EXPECT_EQ(read_checkpoint_state(newest.parent_path()).step, 10) << "replaced by a good one";
}

TEST(Run, AStopThatComesWhileASaveBeginsTakesNoOtherStep) {
  ToyRun run;
  run.stop_in_save_of = 3;
  EXPECT_THROW(run.go(), Interrupted);
  EXPECT_EQ(run.steps, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(run.saved, (std::vector<int64_t>{3}));
}

TEST(Run, FinishedRunHasNothingLeftToDo) {
  ToyRun run;
  const std::vector<float> want = run.go();
  EXPECT_EQ(run.go(), want);
  EXPECT_TRUE(run.steps.empty());
}

TEST(Run, OtherSettingsAreRefusedWithEveryDifference) {
  ToyRun run;
  run.stop_after = 4;
  EXPECT_THROW(run.go(), Interrupted);
  const std::string before = run.metrics();
  run.stop_after = -1;
  run.options.settings = {{"optimizer.lr", "0.02"}, {"train.seed", "1"}};
  run.options.recipe = "{\"new\": 1}\n";
  const std::string got = run.refusal();
  EXPECT_NE(got.find("optimizer.lr was 0.01 and is 0.02, train.seed was absent and is 1"), std::string::npos) << got;
  EXPECT_NE(got.find("output.force=true"), std::string::npos) << got;
  EXPECT_EQ(run.metrics(), before) << "nothing changed";
  EXPECT_EQ(test::read_bytes(run.options.dir / "recipe.json"), "{}\n");
  run.options.force = true;
  run.go();
  EXPECT_EQ(run.steps.front(), 5);
  EXPECT_NE(run.messages[0].find("continuing as output.force asks"), std::string::npos);
}

// Checkpoints from before the contents of files were recorded.
TEST(Run, OlderCheckpointsAreComparedByWhatTheyRecorded) {
  ToyRun run;
  run.options.settings = {{"optimizer.lr", "0.01"}, {"model.fingerprint", "\"ends\""}};
  run.stop_after = 4;
  EXPECT_THROW(run.go(), Interrupted);
  run.stop_after = -1;
  run.options.settings = {{"optimizer.lr", "0.01"},
                          {"model.fingerprint", "\"other ends\""},
                          {"model.fingerprint/a.safetensors", "\"content\""}};
  const std::string got = run.refusal();
  EXPECT_NE(got.find("model.path has other content"), std::string::npos) << got;
  EXPECT_EQ(got.find("a.safetensors"), std::string::npos) << got;
  run.options.settings["model.fingerprint"] = "\"ends\"";
  run.messages.clear();
  run.go();
  EXPECT_EQ(run.steps.front(), 5);
  EXPECT_TRUE(std::ranges::any_of(run.messages, [](const std::string& line) {
    return line.find("whether they changed since is not known") != std::string::npos;
  }));
  // What that run saved has the content, which is compared from then on.
  run.options.total_steps = 12;
  run.options.settings["model.fingerprint/a.safetensors"] = "\"changed\"";
  EXPECT_NE(run.refusal().find("a.safetensors of model.path has other content"), std::string::npos);
  run.options.settings["adapter.fingerprint/b"] = "\"new\"";
  EXPECT_NE(run.refusal().find("b of adapter.path is new"), std::string::npos);
}

TEST(Run, ExistingRunIsNotOverwrittenUnlessForced) {
  ToyRun run;
  const std::vector<float> want = run.go();
  run.options.resume = "never";
  EXPECT_NE(run.refusal().find("holds a run already"), std::string::npos);
  EXPECT_EQ(run.checkpoints(), (std::vector<int64_t>{9, 10}));
  run.options.force = true;
  for (const char* result : {"adapter", "value_adapter", "value_model"}) {
    put(run.options.dir / result / "x", "old");
    put(run.options.dir / result / ".nibble.files", "x\n");
  }
  EXPECT_EQ(run.go(), want);
  EXPECT_EQ(run.steps.size(), 10u);
  for (const char* result : {"adapter", "value_adapter", "value_model"}) {
    EXPECT_FALSE(fs::exists(run.options.dir / result)) << result;
  }
}

TEST(Run, FilesOfOthersAreNotOverwritten) {
  ToyRun run;
  put(run.options.dir / "recipe.json", "mine");
  EXPECT_NE(run.refusal().find("recipe.json that is not of a run"), std::string::npos);
  EXPECT_EQ(test::read_bytes(run.options.dir / "recipe.json"), "mine");
  ToyRun results;
  put(results.options.dir / "model" / "config.json", "{}");
  EXPECT_NE(results.refusal().find("no checkpoint to continue from"), std::string::npos);
  results.options.force = true;
  EXPECT_NE(results.refusal().find("model: is not a directory that nibble wrote"), std::string::npos);
  EXPECT_TRUE(fs::exists(results.options.dir / "model" / "config.json")) << "not a run's, so not replaced";
}

TEST(Run, NamedCheckpointIsContinuedFrom) {
  ToyRun run;
  run.options.keep_last = 10;
  const std::vector<float> want = run.go();
  run.options.resume = (run.options.dir / "checkpoints" / "step-6").string();
  EXPECT_NE(run.refusal().find("has checkpoints up to step 10"), std::string::npos) << run.refusal();
  run.options.force = true;
  EXPECT_EQ(run.go(), want);
  EXPECT_EQ(run.steps.front(), 7);

  ToyRun other;  // a branch into a directory of its own
  other.options.resume = (run.options.dir / "checkpoints" / "step-3").string();
  EXPECT_EQ(other.go(), want);
  EXPECT_EQ(other.steps.front(), 4);
  EXPECT_NE(other.refusal().find("holds another run already"), std::string::npos);
  other.options.resume = "nowhere";
  EXPECT_NE(other.refusal().find("is no checkpoint directory"), std::string::npos);
}

TEST(Run, DirectoryBelongsToOneRunAtATime) {
  ToyRun run;
  test::ToyRank rank;
  const Observer quiet;
  const nibble::Run first = nibble::Run::open(run.options, rank.context, quiet);
  EXPECT_THROW(nibble::Run::open(run.options, rank.context, quiet), IoError);
}

TEST(Run, UnwritableDirectoryIsFoundAtTheStart) {
  ToyRun run;
  put(run.directory.path() / "file", "");
  run.options.dir = run.directory.path() / "file" / "out";
  EXPECT_THROW(run.go(), IoError);
}

TEST(Run, EarlyStopCountsEvaluationsWithoutANewLowestLoss) {
  ToyRun run;
  run.options.evaluates = true;
  run.options.eval_every = {1, 0};
  run.options.early_stop = 3;
  run.evaluation_at = [](int64_t step) { return step == 2 ? 0.5 : 1.0; };
  run.go();
  EXPECT_EQ(run.steps.back(), 5);
  EXPECT_EQ(run.checkpoints().back(), 5) << "saved at the end";
  const char* reason = "ends at step 5 of 10: no evaluation since step 2 had a lower loss (train.early_stop=3)";
  EXPECT_EQ(std::ranges::count(run.messages, reason), 1);
  run.go();
  EXPECT_TRUE(run.steps.empty()) << "still over when run again";
}

TEST(Run, BestCheckpointIsKeptAndItsWeightsAreGivenBack) {
  ToyRun run;
  std::vector<float> third;
  {
    ToyRun shorter;
    shorter.options.total_steps = 3;
    third = shorter.go();
  }
  run.options.evaluates = true;
  run.options.eval_every = {1, 0};
  run.options.keep_best = true;
  run.options.keep_last = 1;
  run.options.save_every = {};
  run.evaluation_at = [](int64_t step) { return 1.0 + std::abs(static_cast<double>(step) - 3); };
  EXPECT_EQ(run.go(), third);
  EXPECT_EQ(run.checkpoints(), (std::vector<int64_t>{3, 10}));
  EXPECT_EQ(run.go(), third) << "and again when nothing is left to do";
}

TEST(Run, FailedCheckpointInTheMiddleCostsTheCheckpointOnly) {
  ToyRun run;
  run.at_step = [](int64_t step, const fs::path& dir) {
    if (step == 3) put(dir / "checkpoints", "in the way");
  };
  run.at_message = [&] { fs::remove(run.options.dir / "checkpoints"); };
  run.go();
  ASSERT_EQ(run.messages.size(), 1u);
  EXPECT_NE(run.messages[0].find("checkpoint failed, training goes on"), std::string::npos);
  EXPECT_EQ(run.saved, (std::vector<int64_t>{6, 9, 10}));
  ToyRun last;
  last.options.save_every = {};
  last.at_step = [](int64_t step, const fs::path& dir) {
    if (step == 10) put(dir / "checkpoints", "in the way");
  };
  EXPECT_THROW(last.go(), IoError);
}

TEST(Run, MetricsThatFillTheDiskAreReportedAtTheStart) {
  ToyRun run;
  run.options.total_steps = int64_t{1} << 45;
  run.stop_after = 1;
  EXPECT_THROW(run.go(), Interrupted);
  ASSERT_FALSE(run.messages.empty());
  EXPECT_TRUE(std::regex_search(run.messages.front(), std::regex("has room for 0 checkpoints of this run, each of "
                                                                 "[0-9.]+ KiB, beside 15.0 PiB of metrics; "
                                                                 "output.keep_last=2 needs 3, one of them while it is "
                                                                 "written: later saves fail as the metrics grow")))
      << run.messages.front();
}

TEST(Run, BadStepsAreSkippedAndNamed) {
  ToyRun run;
  run.poisoned = {2, 5, 6, 9};
  run.go();
  EXPECT_EQ(run.steps, (std::vector<int64_t>{1, 3, 4, 7, 8, 10}));
  EXPECT_EQ(run.messages.size(), 4u);
  EXPECT_EQ(run.messages[0], "warning: step 2 skipped: gradient of b, element 1 of 2, is inf");
  EXPECT_EQ(run.saved, (std::vector<int64_t>{3, 10})) << "nothing is saved right after a bad step";
  EXPECT_FALSE(fs::exists(run.options.dir / "diagnostic.json"));
}

TEST(Run, ThreeBadStepsInARowEndTheRunWithADiagnosticAndKeepTheCheckpoint) {
  ToyRun run;
  run.poisoned = {4, 5, 6};
  try {
    run.go();
    FAIL();
  } catch (const NumericError& error) {
    EXPECT_EQ(error.exit_code(), 5);
    const std::string line = error.what();
    EXPECT_EQ(line.find("gradient of b, element 1 of 2, is inf: steps 4 to 6 could not be used (see "), 0u) << line;
    EXPECT_NE(line.find("the last checkpoint stands"), std::string::npos) << line;
  }
  EXPECT_EQ(run.checkpoints(), (std::vector<int64_t>{3}));
  EXPECT_NE(test::read_bytes(run.options.dir / "diagnostic.json").find("\"step\": 6"), std::string::npos);
  run.poisoned = {};
  run.go();  // the cause is gone: it goes on from the checkpoint
  EXPECT_EQ(run.steps.front(), 4);
}

TEST(Run, BadStepsBeforeTheFirstCheckpointSayThatThereIsNone) {
  ToyRun run;
  run.options.save_every = {};
  run.poisoned = {2, 3, 4};
  EXPECT_NE(test::error_of<NumericError>([&] { run.go(); }).find("there is no checkpoint yet"), std::string::npos);
}

TEST(Run, WeightsThatAreNotFiniteAreNeverPublished) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    ToyRun run;
    run.options.total_steps = 6;
    run_on_threads(ranks, [&](Communicator& comm) {
      MemoryPool pool;
      RankContext rank{comm, pool, 1, 0};
      const bool last = comm.rank() == ranks - 1;
      const Observer watching = comm.rank() == 0 ? run.observer() : Observer();
      nibble::Run result = nibble::Run::open(run.options, rank, watching);
      test::ToyModel model(pool);
      Optimizer optimizer(model.parameters(), {}, pool);
      result.restore(optimizer);
      while (result.step() < 3 && result.next_step()) result.checkpoint_if_due(optimizer);
      if (last) model.w->value.data<float>()[1] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_THROW(
          {
            while (result.next_step()) result.checkpoint_if_due(optimizer);
          },
          NumericError);
    });
    EXPECT_EQ(run.checkpoints(), (std::vector<int64_t>{3}));
  }
}

TEST(Run, ARunThatEndsBeforeItBeginsLeavesNothing) {
  ToyRun run;
  test::ToyRank rank;
  run.options.dir = run.directory.path() / "deep/er/out";
  const Observer watching = run.observer();
  { const nibble::Run opened = nibble::Run::open(run.options, rank.context, watching); }
  EXPECT_TRUE(fs::is_empty(run.directory.path()));
}

TEST(Run, ForceRemovesTheOldRunOnlyWhenTheNewOneBegins) {
  ToyRun run;
  run.go();
  run.options.resume = "never";
  run.options.force = true;
  test::ToyRank rank;
  const Observer watching = run.observer();
  { const nibble::Run opened = nibble::Run::open(run.options, rank.context, watching); }
  EXPECT_EQ(run.checkpoints(), (std::vector<int64_t>{9, 10}));
}

}  // namespace
}  // namespace nibble
