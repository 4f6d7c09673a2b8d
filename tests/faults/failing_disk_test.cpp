// Every call that a save makes fails once, in every way: what was published before stays whole.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/temporary_name.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/tensor/spill_file.h"
#include "nibble/core/train/checkpoint/checkpoint.h"
#include "nibble/core/train/run/run.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/tests/core/train/toy.h"
#include "nibble/tests/failing_io/failing_io.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;

int temporaries(const fs::path& directory) {
  return static_cast<int>(std::count_if(fs::directory_iterator(directory), {}, [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with(".tmp-");
  }));
}

/// Two tensors whose values say which step they are of.
std::vector<CheckpointSlice> slices_of(int64_t step, MemoryPool& pool) {
  std::vector<float> values(3000, static_cast<float>(step));
  return full_slices({{"w", Tensor::from<float>(pool, {30, 100}, values)},
                      {"b", Tensor::from<float>(pool, {10}, std::span(values).first(10))}});
}

void save(const fs::path& directory, int64_t step) {
  MemoryPool pool;
  TrainingState state;
  state.step = step;
  state.recipe = "{}\n";
  save_checkpoint(directory, state, slices_of(step, pool), slices_of(step, pool));
  prune_checkpoints(directory, step, 1, std::nullopt);
}

/// The newest checkpoint verifies and holds the values of its step, which is returned.
int64_t newest_whole(const fs::path& directory) {
  MemoryPool pool;
  const auto found = newest_checkpoint(directory, {});
  if (!found) return 0;
  const auto values = slices_of(-1, pool);
  load_checkpoint_tensors(found->path, values, values);
  for (const CheckpointSlice& slice : values) {
    EXPECT_EQ(slice.value.data<float>()[0], static_cast<float>(found->state.step));
    EXPECT_EQ(slice.value.data<float>()[slice.value.numel() - 1], static_cast<float>(found->state.step));
  }
  return found->state.step;
}

/// Calls action(), whose every counted call i = 0, 1, ... fails in turn, until one more than it makes was asked for.
/// Returns how many there were.
template <typename Action>
int64_t for_every_call(const fs::path& root, const std::string& how, Action action) {
  for (int64_t i = 0;; ++i) {
    failing_io::Plan plan{root.string(), "", i, how};
    if (!action(plan)) return i;
    if (i > 2000) ADD_FAILURE() << "endless";
    if (i > 2000 || testing::Test::HasFailure()) return i;
  }
}

class EveryCallOfASave : public testing::TestWithParam<std::string> {};

TEST_P(EveryCallOfASave, FailsOnceAndThePreviousCheckpointVerifies) {
  const bool harmless = GetParam() == "EINTR" || GetParam() == "SHORT";
  int64_t refused = 0;
  TemporaryDirectory directory;
  const int64_t calls = for_every_call(directory.path(), GetParam(), [&](const failing_io::Plan& plan) {
    fs::remove_all(directory / "c");
    fs::create_directory(directory / "c");
    save(directory / "c", 1);
    std::string error;
    failing_io::arm(plan);
    try {
      save(directory / "c", 2);
    } catch (const IoError& caught) {
      error = caught.what();
    }
    const int64_t counted = failing_io::disarm();
    refused += !error.empty();
    const int64_t step = newest_whole(directory / "c");
    EXPECT_TRUE(step == 2 || (step == 1 && !error.empty())) << "call " << plan.at << ", step " << step;
    EXPECT_TRUE(error.empty() || !harmless) << "call " << plan.at << ": " << error;
    EXPECT_TRUE(error.empty() || error.find(directory.path().string()) != std::string::npos) << error;
    sweep_leftovers(directory / "c");
    EXPECT_EQ(temporaries(directory / "c"), 0);
    save(directory / "c", 3);  // and the next save goes through
    EXPECT_EQ(newest_whole(directory / "c"), 3);
    return counted > plan.at;
  });
  EXPECT_GT(calls, 40);
  if (harmless) {
    EXPECT_EQ(refused, 0);
  } else {
    EXPECT_GT(refused, 30);
  }
  RecordProperty("calls", static_cast<int>(calls));
}

INSTANTIATE_TEST_SUITE_P(Disk, EveryCallOfASave, testing::Values("ENOSPC", "EIO", "FULL", "SHORT", "EINTR", "EDQUOT"),
                         [](const auto& how) { return how.param; });

class DeathAtEveryCall : public testing::TestWithParam<std::string> {};

// POWER takes back what was not synced: the order of syncs is what is tested.
TEST_P(DeathAtEveryCall, LeavesACheckpointThatVerifies) {
  TemporaryDirectory directory;
  int64_t published = 0;
  const int64_t calls = for_every_call(directory.path(), GetParam(), [&](const failing_io::Plan& plan) {
    fs::remove_all(directory / "c");
    fs::create_directory(directory / "c");
    save(directory / "c", 1);
    const pid_t child = fork();
    if (child == 0) {
      failing_io::arm(plan);
      save(directory / "c", 2);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const int64_t step = newest_whole(directory / "c");
    EXPECT_TRUE(step == 1 || step == 2) << "call " << plan.at;
    published += step == 2;
    sweep_leftovers(directory / "c");
    EXPECT_EQ(temporaries(directory / "c"), 0);
    save(directory / "c", 3);
    EXPECT_EQ(newest_whole(directory / "c"), 3);
    return WIFSIGNALED(status);
  });
  EXPECT_GT(calls, 40);
  EXPECT_GT(published, 0);
}

INSTANTIATE_TEST_SUITE_P(Process, DeathAtEveryCall, testing::Values("KILL", "POWER"),
                         [](const auto& how) { return how.param; });

class EveryCallOfAReplacement : public testing::TestWithParam<std::string> {};

TEST_P(EveryCallOfAReplacement, LeavesTheOldModelOrTheNewOneWhole) {
  TemporaryDirectory directory;
  MemoryPool pool;
  const auto write_model = [&](float value) {
    const Tensor tensor = Tensor::from<float>(pool, {4}, std::vector<float>(4, value));
    ModelDirectoryWriter writer(directory / "m" / "model", Replace::anything, {{"t", {4}, DType::f32}});
    writer.write_text("config.json", value == 1 ? "one" : "two");
    writer.write("t", tensor);
    writer.finish();
  };
  const int64_t calls = for_every_call(directory / "m", GetParam(), [&](const failing_io::Plan& plan) {
    fs::remove_all(directory / "m");
    fs::create_directory(directory / "m");
    write_model(1);
    bool threw = false;
    failing_io::arm(plan);
    try {
      write_model(2);
    } catch (const IoError&) {
      threw = true;
    }
    const int64_t counted = failing_io::disarm();
    const SafetensorsFile file((directory / "m" / "model/model.safetensors").string());
    const float value = file.at("t").data<const float>()[3];
    const std::string config = test::read_bytes(directory / "m" / "model/config.json");
    EXPECT_EQ(config, value == 1 ? "one" : "two") << "call " << plan.at;
    EXPECT_TRUE(threw || value == 2) << "call " << plan.at;
    return counted > plan.at;
  });
  EXPECT_GT(calls, 20);
}

INSTANTIATE_TEST_SUITE_P(Disk, EveryCallOfAReplacement, testing::Values("ENOSPC", "EIO", "SHORT", "EINTR"),
                         [](const auto& how) { return how.param; });

TEST(FailingDisk, AReadThatFailsIsAnIoErrorThatNamesTheFile) {
  TemporaryDirectory directory;
  save(directory.path(), 1);
  failing_io::arm({directory.path().string(), "read", 0, "EIO"});
  EXPECT_NE(test::error_of<IoError>([&] { read_checkpoint_state(directory / "step-1"); }).find("Input/output error"),
            std::string::npos);
  failing_io::disarm();
}

class EveryCallOfAFileOfActivations : public testing::TestWithParam<std::string> {};

// The errors come from the thread that writes and reads.
TEST_P(EveryCallOfAFileOfActivations, GivesTheBytesBackOrAnIoError) {
  const bool harmless = GetParam() == "EINTR" || GetParam() == "SHORT";
  TemporaryDirectory directory;
  int64_t refused = 0;
  const int64_t calls = for_every_call(directory.path(), GetParam(), [&](failing_io::Plan plan) {
    plan.calls = "open,write,read,reserve";
    MemoryPool pool;
    std::string error;
    failing_io::arm(plan);
    try {
      SpillFile file(directory.path().string(), 8192, pool);
      std::vector<std::unique_ptr<SpillFile::Spilled>> spilled;
      for (int i = 0; i < 4; ++i) {
        std::vector<Tensor> tensors = {
            Tensor::from<float>(pool, {3000}, std::vector<float>(3000, static_cast<float>(i)))};
        spilled.push_back(file.put(std::move(tensors), false));
      }
      for (int i = 4; i-- > 0;) {
        const Tensor back = spilled[static_cast<size_t>(i)]->take().front();
        EXPECT_EQ(back.data<const float>()[0], static_cast<float>(i)) << "call " << plan.at;
        EXPECT_EQ(back.data<const float>()[2999], static_cast<float>(i)) << "call " << plan.at;
      }
    } catch (const IoError& caught) {
      error = caught.what();
    }
    const int64_t counted = failing_io::disarm();
    refused += !error.empty();
    EXPECT_TRUE(error.empty() || error.find(directory.path().string()) != std::string::npos) << error;
    EXPECT_TRUE(fs::is_empty(directory.path()));
    return counted > plan.at;
  });
  EXPECT_GT(calls, 8);
  if (harmless) {
    EXPECT_EQ(refused, 0);
  } else {
    EXPECT_GT(refused, 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Disk, EveryCallOfAFileOfActivations,
                         testing::Values("ENOSPC", "EIO", "FULL", "SHORT", "EINTR"),
                         [](const auto& how) { return how.param; });

TEST(FailingDisk, AStaleHandleIsAskedForAgain) {
  TemporaryDirectory directory;
  test::write_bytes(directory / "a", "x");
  failing_io::arm({directory.path().string(), "open", 0, "ESTALE"});
  write_file_atomically(directory / "a", "y");
  failing_io::disarm();
  EXPECT_EQ(test::read_bytes(directory / "a"), "y");
}

/// Three steps on `ranks` ranks, a save after each, and a fourth, whose save fails at its first call in `place` as
/// `how` says. Returns the checkpoints that are left and puts what was told into `told`.
std::vector<int64_t> checkpoints_of_a_run(int ranks, const std::string& place, const std::string& how,
                                          std::vector<std::string>& told) {
  TemporaryDirectory directory;
  RunOptions options;
  options.dir = directory / "out";
  options.save_every = {1, 0};
  options.keep_last = 10;
  options.recipe = "{}\n";
  Observer observer, silent;
  observer.on_message = [&](const std::string& line) { told.push_back(line); };
  run_on_threads(ranks, [&](Communicator& comm) {
    const bool leads = comm.rank() == 0;
    MemoryPool pool;
    RankContext rank{comm, pool, 1, 0};
    test::ToyModel model(pool);
    Optimizer optimizer(model.parameters(), {}, pool);
    const auto train_to = [&](int64_t step) {
      RunOptions given = options;
      given.total_steps = step;
      Run run = Run::open(given, rank, leads ? observer : silent);
      run.set_slicers(
          full_slices, leads ? Slicer(full_slices) : [](const auto&) { return full_slices({}); });
      run.restore(optimizer);
      if (leads && step == 4) failing_io::arm({(given.dir / place).string(), "", 0, how});
      while (run.next_step()) run.checkpoint_if_due(optimizer);
    };
    train_to(3);
    try {
      train_to(4);
    } catch (const IoError& error) {
      if (leads) told.push_back(error.what());
    }
    if (leads) failing_io::disarm();
  });
  EXPECT_EQ(newest_checkpoint(options.dir / "checkpoints", {})->state.step, how == "EDQUOT" ? 4 : 3);
  return checkpoint_steps(options.dir / "checkpoints");
}

TEST(FailingDisk, ASaveThatFindsNoSpaceRemovesTheOldestCheckpointAndIsMadeAgain) {
  for (const int ranks : {1, 2}) {
    for (const char* place : {"checkpoints", "metrics.jsonl"}) {
      SCOPED_TRACE(place + std::to_string(ranks));
      std::vector<std::string> told;
      EXPECT_EQ(checkpoints_of_a_run(ranks, place, "EDQUOT", told), (std::vector<int64_t>{2, 3, 4}));
      ASSERT_EQ(told.size(), 1u);
      EXPECT_NE(told[0].find("no space for step-4: checkpoint step-1 was removed"), std::string::npos) << told[0];
    }
  }
}

// A disk that stays full has no room for a hidden directory either, in which a checkpoint is removed.
TEST(FailingDisk, ASaveThatNeverFindsSpaceLeavesTheNewestCheckpoint) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    std::vector<std::string> told;
    EXPECT_EQ(checkpoints_of_a_run(ranks, "checkpoints", "ENOSPC", told), (std::vector<int64_t>{3}));
    ASSERT_EQ(told.size(), 3u);
    EXPECT_NE(told[2].find("the last checkpoint failed"), std::string::npos) << told[2];
  }
}

TEST(FailingDisk, AReadOnlyFileSystemIsFoundByTheProbe) {
  TemporaryDirectory directory;
  failing_io::arm({directory.path().string(), "open", 0, "EROFS"});
  EXPECT_NE(test::error_of<IoError>([&] { write_probe(directory.path()); }).find("choose another place"),
            std::string::npos);
  failing_io::disarm();
}

}  // namespace
}  // namespace nibble
