#include "nibble/core/train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/temporary_name.h"
#include "nibble/core/train/checkpoint/checkpoint_room.h"
#include "nibble/core/train/checkpoint/checkpoint_slices.h"
#include "nibble/tests/core/train/toy.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;
using test::values;

struct Fixture {
  TemporaryDirectory directory;
  MemoryPool pool;
  std::vector<std::string> messages;
  Observer observer;

  Fixture() {
    observer.on_message = [this](const std::string& line) { messages.push_back(line); };
  }

  Tensor counting(const Shape& shape, float start = 0) {
    Tensor result = Tensor::empty(pool, shape, DType::f32);
    std::iota(result.data<float>(), result.data<float>() + result.numel(), start);
    return result;
  }
  std::vector<CheckpointSlice> slices(float start) {
    return full_slices({{"w", counting({4, 6}, start)}, {"scale", counting({}, start + 100)}});
  }
  TrainingState state(int64_t step) {
    TrainingState result;
    result.step = step;
    result.optimizer_updates = step - 1;
    result.settings = {{"optimizer.lr", "0.0002"}, {"data.fingerprint", "ab\"c"}};
    result.recipe = "{\"train\": {}}\n";
    result.best_loss = 0.1 + 0.2;  // not exact in decimal
    result.best_step = 3;
    result.evaluations_since_best = 2;
    return result;
  }
  fs::path save(int64_t step) {
    return save_checkpoint(directory.path(), state(step), slices(static_cast<float>(step)), slices(1000));
  }
};

void damage(const fs::path& file) {
  std::string bytes = test::read_bytes(file);
  bytes[bytes.size() - 3] ^= 1;
  test::write_bytes(file, bytes);
}

TEST(Checkpoint, GivesBackEightBitStatesAndRefusesThemForOthers) {
  Fixture f;
  const auto codes = [&](uint8_t start) {
    Tensor result = Tensor::empty(f.pool, {3, 5}, DType::u8);
    std::iota(result.data<uint8_t>(), result.data<uint8_t>() + 15, start);
    return full_slices({{"w.exp_avg", result}});
  };
  const fs::path path = save_checkpoint(f.directory.path(), f.state(2), f.slices(2), codes(7));
  std::vector<CheckpointSlice> back = codes(0);
  load_checkpoint_tensors(path, f.slices(0), back);
  const std::vector<CheckpointSlice> saved = codes(7);
  EXPECT_TRUE(std::equal(back[0].value.raw(), back[0].value.raw() + 15, saved[0].value.raw()));
  EXPECT_THROW(load_checkpoint_tensors(path, f.slices(0), full_slices({{"w.exp_avg", f.counting({3, 5})}})),
               InputError);
}

TEST(Checkpoint, GivesBackWhatWasSaved) {
  Fixture f;
  const fs::path path = f.save(12);
  EXPECT_EQ(path.filename(), "step-12");
  const TrainingState state = read_checkpoint_state(path), saved = f.state(12);
  EXPECT_EQ(state.step, 12);
  EXPECT_EQ(state.optimizer_updates, 11);
  EXPECT_EQ(state.settings, saved.settings);
  EXPECT_EQ(state.recipe, saved.recipe);
  EXPECT_EQ(state.best_loss, saved.best_loss) << "the same bits";
  EXPECT_EQ(state.best_step, 3);
  EXPECT_EQ(state.evaluations_since_best, 2);
  std::vector<CheckpointSlice> trainable = f.slices(0), optimizer = f.slices(0);
  load_checkpoint_tensors(path, trainable, optimizer);
  EXPECT_EQ(values(trainable[0].value), values(f.slices(12)[0].value));
  EXPECT_EQ(values(trainable[1].value), std::vector<float>{112});
  EXPECT_EQ(values(optimizer[0].value), values(f.slices(1000)[0].value));
}

TEST(Checkpoint, OptimizerWithoutStateIsSavedToo) {
  Fixture f;
  const fs::path path = save_checkpoint(f.directory.path(), f.state(1), f.slices(1), {});
  read_checkpoint_state(path);
  load_checkpoint_tensors(path, f.slices(0), {});
}

TEST(Checkpoint, NewestThatVerifiesIsTakenAndTheOthersAreNamed) {
  Fixture f;
  EXPECT_FALSE(newest_checkpoint(f.directory.path(), f.observer));
  EXPECT_FALSE(newest_checkpoint(f.directory.path() / "absent", f.observer));
  for (const int64_t step : {2, 10, 9}) f.save(step);
  EXPECT_EQ(newest_checkpoint(f.directory.path(), f.observer)->state.step, 10);
  EXPECT_TRUE(f.messages.empty());
  damage(f.directory.path() / "step-10" / "optimizer-00000-of-00001.safetensors");
  EXPECT_EQ(newest_checkpoint(f.directory.path(), f.observer)->state.step, 9);
  ASSERT_EQ(f.messages.size(), 2u);
  EXPECT_NE(f.messages[0].find("step-10/optimizer-00000-of-00001.safetensors: is damaged"), std::string::npos)
      << f.messages[0];
  EXPECT_NE(f.messages[1].find("falling back to checkpoint"), std::string::npos);
}

TEST(Checkpoint, EveryDamageIsFound) {
  const std::vector<std::string> files = {"state.json", "recipe.json", "trainable-00000-of-00001.safetensors",
                                          "optimizer-00000-of-00001.safetensors", "manifest.json"};
  for (const std::string& file : files) {
    for (const char* kind : {"flip", "cut", "remove"}) {
      Fixture f;
      const fs::path path = f.save(5) / file;
      const std::string what(kind);
      if (what == "flip") damage(path);
      if (what == "cut") fs::resize_file(path, fs::file_size(path) / 2);
      if (what == "remove") fs::remove(path);
      EXPECT_THROW(newest_checkpoint(f.directory.path(), f.observer), InputError) << file << " " << kind;
      EXPECT_EQ(f.messages.size(), 1u) << file << " " << kind;
    }
  }
}

TEST(Checkpoint, ManifestNamesNoFileOutside) {
  Fixture f;
  const fs::path path = f.save(5);
  std::string manifest = test::read_bytes(path / "manifest.json");
  manifest.replace(manifest.find("recipe.json"), 11, "../step-5/recipe.json");
  test::write_bytes(path / "manifest.json", manifest);
  EXPECT_THROW(read_checkpoint_state(path), InputError);
}

TEST(Checkpoint, NewerFormatIsRefusedNotSkipped) {
  Fixture f;
  f.save(4);
  const fs::path path = f.save(5);
  std::string manifest = test::read_bytes(path / "manifest.json");
  manifest.replace(manifest.find("\"format\": 1"), 11, "\"format\": 2");
  test::write_bytes(path / "manifest.json", manifest);
  try {
    newest_checkpoint(f.directory.path(), f.observer);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("has checkpoint format 2, this program knows up to 1"), std::string::npos)
        << error.what();
  }
}

TEST(Checkpoint, UnfinishedAndForeignDirectoriesAreNoCheckpoints) {
  Fixture f;
  f.save(3);
  for (const char* name :
       {".tmp-nibble-123-d0", "step-x", "step-", "step-007", "step-9999999999999999999999", "other"}) {
    fs::create_directories(f.directory.path() / name);
  }
  EXPECT_EQ(checkpoint_steps(f.directory.path()), std::vector<int64_t>{3});
  EXPECT_EQ(newest_checkpoint(f.directory.path(), f.observer)->state.step, 3);
  EXPECT_EQ(sweep_leftovers(f.directory.path()), 1);
  EXPECT_FALSE(fs::exists(f.directory.path() / ".tmp-nibble-123-d0"));
}

TEST(Checkpoint, SavingAgainReplaces) {
  Fixture f;
  damage(f.save(3) / "state.json");
  f.save(3);
  EXPECT_EQ(read_checkpoint_state(f.directory.path() / "step-3").step, 3);
  EXPECT_EQ(std::distance(fs::directory_iterator(f.directory.path()), {}), 1) << "nothing else is left";
}

TEST(Checkpoint, PruningKeepsTheNewestAndTheBest) {
  Fixture f;
  for (const int64_t step : {1, 2, 3, 4, 5}) f.save(step);
  prune_checkpoints(f.directory.path(), 5, 2, 1);
  EXPECT_EQ(checkpoint_steps(f.directory.path()), (std::vector<int64_t>{1, 4, 5}));
  prune_checkpoints(f.directory.path(), 4, 1, std::nullopt);
  EXPECT_EQ(checkpoint_steps(f.directory.path()), (std::vector<int64_t>{4, 5}))
      << "later, perhaps damaged ones do not count";
  EXPECT_EQ(std::distance(fs::directory_iterator(f.directory.path()), {}), 2);
}

TEST(Checkpoint, SizeOnADiskIsKnownBefore) {
  Fixture fixture;
  SelfComm alone;
  std::vector<CheckpointSlice> many;
  for (int i = 0; i < 200; ++i) {  // headers of small tensors take more than these
    for (const CheckpointSlice& slice : full_slices({{"w" + std::to_string(i), fixture.counting({3})}})) {
      many.push_back(slice);
    }
  }
  const TrainingState state = fixture.state(4);
  const fs::path saved = save_checkpoint(fixture.directory.path(), state, many, many);
  uint64_t blocks = 1;  // of the directory
  for (const auto& file : fs::directory_iterator(saved)) blocks += (file.file_size() + kDiskBlock - 1) / kDiskBlock;
  EXPECT_EQ(checkpoint_bytes(state, many, many, alone), blocks * kDiskBlock);
}

TEST(Checkpoint, RoomIsMadeFromTheOldestButNeverFromTheNewestThatVerifiesNorTheBest) {
  Fixture f;
  for (const int64_t step : {1, 2, 3, 4}) f.save(step);
  damage(f.save(5) / "state.json");
  ASSERT_EQ(f.state(4).best_step, 3);
  EXPECT_EQ(remove_oldest_checkpoint(f.directory.path(), true), 1);
  EXPECT_EQ(remove_oldest_checkpoint(f.directory.path(), true), 2);
  EXPECT_EQ(remove_oldest_checkpoint(f.directory.path(), true), std::nullopt);
  EXPECT_EQ(remove_oldest_checkpoint(f.directory.path(), false), 3);
  EXPECT_EQ(remove_oldest_checkpoint(f.directory.path(), false), std::nullopt);
  EXPECT_EQ(checkpoint_steps(f.directory.path()), (std::vector<int64_t>{4, 5}));
}

TEST(Checkpoint, FailedSaveLeavesTheDirectoryAsItWas) {
  Fixture f;
  f.save(1);
  std::vector<CheckpointSlice> twice = f.slices(0);
  twice.push_back(twice[0]);  // a name that comes twice cannot be written
  EXPECT_ANY_THROW(save_checkpoint(f.directory.path(), f.state(2), f.slices(0), twice));
  EXPECT_EQ(std::distance(fs::directory_iterator(f.directory.path()), {}), 1);
}

TEST(Checkpoint, ModelsThatDoNotFitAreRefusedByName) {
  Fixture f;
  const fs::path path = f.save(1);
  const auto error = [&](const std::vector<CheckpointSlice>& wanted) -> std::string {
    try {
      load_checkpoint_tensors(path, wanted, f.slices(0));
    } catch (const InputError& caught) {
      return caught.what();
    }
    return "loaded";
  };
  auto slices = f.slices(0);
  slices.pop_back();
  EXPECT_NE(error(slices).find("trainable tensor scale is not in the model"), std::string::npos) << error(slices);
  slices = full_slices({{"w", f.counting({4, 6})}, {"scale", f.counting({})}, {"new", f.counting({1})}});
  EXPECT_NE(error(slices).find("trainable tensor new is missing; it is of another model, adapter or objective: choose"),
            std::string::npos)
      << error(slices);
  slices = full_slices({{"w", f.counting({6, 4})}, {"scale", f.counting({})}});
  EXPECT_NE(error(slices).find("has shape [4, 6], the model's has [6, 4]"), std::string::npos) << error(slices);
}

// Splits `global` into boxes of at most the given size.
std::vector<CheckpointSlice> split(const CheckpointSlice& global, const Shape& box, MemoryPool& pool) {
  std::vector<CheckpointSlice> parts;
  for (int64_t r = 0; r < global.global_shape[0]; r += box[0]) {
    for (int64_t c = 0; c < global.global_shape[1]; c += box[1]) {
      const Shape size = {std::min(box[0], global.global_shape[0] - r), std::min(box[1], global.global_shape[1] - c)};
      parts.push_back({global.name, Tensor::zeros(pool, size, DType::f32), global.global_shape, {r, c}});
      detail::copy_overlap(global, parts.back());
    }
  }
  return parts;
}

TEST(CheckpointSlices, AnyShardingIsReadIntoAnyOther) {
  Fixture f;
  const CheckpointSlice global = full_slices({{"w", f.counting({7, 10})}})[0];
  const std::vector<Shape> boxes = {{7, 10}, {2, 10}, {7, 3}, {3, 4}, {1, 1}};
  for (const Shape& written : boxes) {
    std::vector<fs::path> files;
    for (const CheckpointSlice& part : split(global, written, f.pool)) {
      files.push_back(f.directory.path() / ("part-" + std::to_string(files.size()) + ".safetensors"));
      detail::write_slices(files.back(), {part});
    }
    for (const Shape& read : boxes) {
      std::vector<CheckpointSlice> wanted = split(global, read, f.pool);
      std::vector<std::vector<float>> want;
      for (CheckpointSlice& slice : wanted) {
        want.push_back(values(slice.value));
        slice.value.zero();
      }
      detail::read_slices(files, "tensor", wanted);
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(values(wanted[i].value), want[i]);
    }
    if (files.size() > 1) {
      files.pop_back();
      EXPECT_THROW(detail::read_slices(files, "tensor", {global}), InputError) << "a hole";
      files.push_back(files.front());
      EXPECT_THROW(detail::read_slices(files, "tensor", {global}), InputError) << "an overlap";
    }
  }
}

}  // namespace
}  // namespace nibble
