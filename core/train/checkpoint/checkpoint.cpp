#include "nibble/core/train/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/files/no_space_error.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/train/checkpoint/checkpoint_room.h"
#include "nibble/core/train/checkpoint/checkpoint_slices.h"

namespace nibble {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kManifest = "manifest.json";
constexpr const char* kState = "state.json";
constexpr const char* kRecipe = "recipe.json";
constexpr const char* kPrefix = "step-";

// "trainable-00002-of-00004.safetensors"
std::string file_name(const char* kind, int rank, int ranks) {
  return formatted("%s-%05d-of-%05d.safetensors", kind, rank, ranks);
}

json state_json(const TrainingState& state) {
  json settings = json::object();
  for (const auto& [name, value] : state.settings) settings[name] = value;
  json value = {{"step", state.step},
                {"optimizer_updates", state.optimizer_updates},
                {"settings", settings},
                {"best_loss", state.best_loss ? json(*state.best_loss) : json(nullptr)},
                {"best_step", state.best_step},
                {"evaluations_since_best", state.evaluations_since_best},
                {"num_tokens", state.num_tokens}};
  if (!state.rollouts.empty()) value["rollouts"] = state.rollouts;
  if (state.unfinished == Unfinished::evaluation) value["unfinished"] = "evaluation";
  if (state.unfinished == Unfinished::samples) value["unfinished"] = "samples";
  return value;
}

TrainingState read_state(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kState;
  const json value = read_json_file(path);
  try {
    TrainingState state;
    state.step = value.at("step").get<int64_t>();
    state.optimizer_updates = value.at("optimizer_updates").get<int64_t>();
    state.settings = value.at("settings").get<std::map<std::string, std::string>>();
    if (!value.at("best_loss").is_null()) state.best_loss = value.at("best_loss").get<double>();
    state.best_step = value.at("best_step").get<int64_t>();
    state.evaluations_since_best = value.at("evaluations_since_best").get<int64_t>();
    state.num_tokens = value.value("num_tokens", int64_t{0});
    state.rollouts = value.value("rollouts", "");
    const std::string unfinished = value.value("unfinished", "");
    if (unfinished == "evaluation") state.unfinished = Unfinished::evaluation;
    if (unfinished == "samples") state.unfinished = Unfinished::samples;
    state.recipe = read_text_file(checkpoint / kRecipe);
    return state;
  } catch (const json::exception& error) {
    throw InputError(path.string(), "is not the state of a checkpoint", "the checkpoint cannot be used");
  }
}

void write_manifest(const fs::path& directory) {
  json files = json::object();
  for (const fs::directory_entry& entry : list_directory(directory)) {
    std::error_code error;
    const uintmax_t bytes = entry.file_size(error);
    if (error) throw system_error(entry.path(), "has no size", error.value());
    files[entry.path().filename().string()] = {{"bytes", bytes}, {"xxh3_128", hash_file(entry.path())}};
  }
  write_json_file(directory / kManifest, {{"format", kCheckpointFormat}, {"files", files}});
}

json read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifest;
  if (!fs::exists(path)) throw InputError(checkpoint.string(), "is no finished checkpoint: it has no manifest.json");
  json manifest = read_json_file(path);
  if (!manifest.is_object() || !manifest.contains("format") || !manifest["format"].is_number_integer() ||
      !manifest.contains("files") || !manifest["files"].is_object()) {
    throw InputError(path.string(), "is not the manifest of a checkpoint");
  }
  return manifest;
}

bool from_the_future(const json& manifest) { return manifest["format"].get<int64_t>() > kCheckpointFormat; }

[[noreturn]] void refuse_format(const fs::path& checkpoint, const json& manifest) {
  throw InputError(checkpoint.string(),
                   "has checkpoint format " + manifest["format"].dump() + ", this program knows up to " +
                       std::to_string(kCheckpointFormat),
                   "continue with the newer program");
}

void verify_file(const fs::path& checkpoint, const std::string& name, const json& entry) {
  const fs::path path = checkpoint / name;
  if (name.empty() || name.find('/') != std::string::npos || name == "..") {
    throw InputError((checkpoint / kManifest).string(), "names a file outside the checkpoint");
  }
  if (!entry.is_object() || !entry.contains("bytes") || !entry.contains("xxh3_128")) {
    throw InputError((checkpoint / kManifest).string(), "has no size or hash of " + name);
  }
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) throw InputError(path.string(), "is missing");
  if (entry["bytes"] != bytes) {
    throw InputError(path.string(), "has " + std::to_string(bytes) + " bytes instead of " + entry["bytes"].dump());
  }
  if (entry["xxh3_128"] != hash_file(path)) throw InputError(path.string(), "is damaged: its hash differs");
}

std::vector<fs::path> files_of(const fs::path& checkpoint, const std::string& kind) {
  std::vector<fs::path> files;
  const json manifest = read_manifest(checkpoint);
  for (const auto& [name, entry] : manifest["files"].items()) {
    if (name.starts_with(kind + "-") && name.ends_with(".safetensors")) files.push_back(checkpoint / name);
  }
  return files;
}

}  // namespace

std::vector<CheckpointSlice> full_slices(const std::vector<NamedTensor>& tensors) {
  std::vector<CheckpointSlice> slices;
  for (const NamedTensor& tensor : tensors) {
    slices.push_back({tensor.name, tensor.value, tensor.value.shape(), Shape(tensor.value.rank(), 0)});
  }
  return slices;
}

namespace {

// Splits [begin, end) of the row-major elements of dimensions `d` and up into boxes, whose offsets begin with `offset`.
void split_into_boxes(const Shape& shape, size_t d, int64_t begin, int64_t end, Shape offset,
                      const std::function<void(const Shape& offset, const Shape& size)>& emit) {
  if (begin == end) return;
  int64_t row = 1;
  for (size_t i = d + 1; i < shape.size(); ++i) row *= shape[i];
  const int64_t first = begin / row, last = end / row;
  const auto inside = [&](int64_t index, int64_t from, int64_t to) {
    Shape deeper = offset;
    deeper.push_back(index);
    split_into_boxes(shape, d + 1, from, to, deeper, emit);
  };
  if (first == last) return inside(first, begin - first * row, end - first * row);
  const int64_t whole = begin % row == 0 ? first : first + 1;
  if (whole > first) inside(first, begin - first * row, row);
  if (last > whole) {
    Shape at = offset, size(offset.size(), 1);
    at.push_back(whole);
    size.push_back(last - whole);
    for (size_t i = d + 1; i < shape.size(); ++i) {
      at.push_back(0);
      size.push_back(shape[i]);
    }
    emit(at, size);
  }
  if (end % row != 0) inside(last, 0, end - last * row);
}

}  // namespace

std::vector<CheckpointSlice> flat_slices(const std::string& name, const Tensor& value, const Shape& global_shape,
                                         int64_t begin) {
  NIBBLE_CHECK(value.rank() == 1 && begin >= 0 && begin + value.numel() <= element_count(global_shape),
               name + ": part of a tensor");
  std::vector<CheckpointSlice> slices;
  int64_t done = 0;
  split_into_boxes(global_shape, 0, begin, begin + value.numel(), {}, [&](const Shape& offset, const Shape& size) {
    const int64_t count = element_count(size);
    slices.push_back({name, value.rows(done, done + count).reshape(size), global_shape, offset});
    done += count;
  });
  return slices;
}

std::string checkpoint_name(int64_t step) { return kPrefix + std::to_string(step); }

fs::path save_checkpoint(const fs::path& directory, const TrainingState& state,
                         const std::vector<CheckpointSlice>& trainable, const std::vector<CheckpointSlice>& optimizer) {
  SelfComm alone;
  return save_checkpoint(directory, state, trainable, optimizer, alone);
}

namespace {

// Weights that are no numbers must not take the place of good ones. Without parallel_for: training has the threads.
void require_finite(const std::vector<CheckpointSlice>& slices) {
  MemoryPool host;
  for (const CheckpointSlice& slice : slices) {
    if (slice.value.dtype() != DType::f32) continue;  // codes of 8-bit state; their scales are f32
    const Tensor value = slice.value.to(host);
    const auto elements = value.span<const float>();
    const auto bad = std::find_if_not(elements.begin(), elements.end(), [](float v) { return std::isfinite(v); });
    if (bad == elements.end()) continue;
    throw NumericError(slice.name, "element " + std::to_string(bad - elements.begin()) + " is " + std::to_string(*bad),
                       "nothing saved before is lost; lower optimizer.lr");
  }
}

}  // namespace

void write_together(Communicator& ranks, const std::function<void()>& write) {
  if (ranks.size() == 1) return write();
  constexpr char kIo = 'i', kNoSpace = 's', kNumeric = 'n';
  std::string failure;  // its kind and text
  try {
    write();
  } catch (const NoSpaceError& error) {
    failure = kNoSpace + std::string(error.what());
  } catch (const IoError& error) {
    failure = kIo + std::string(error.what());
  } catch (const NumericError& error) {
    failure = kNumeric + std::string(error.what());
  }
  for (int r = 0; r < ranks.size(); ++r) {
    const std::string other = ranks.broadcast_text("save checkpoint", failure, r);
    if (other.empty()) continue;
    if (other[0] == kNumeric) throw NumericError(ranks.describe(r), other.substr(1));
    const IoError thrown(ranks.describe(r), other.substr(1));
    if (other[0] == kNoSpace) throw NoSpaceError(thrown);
    throw thrown;
  }
}

fs::path save_in_room(const std::function<fs::path()>& save, const std::function<bool()>& make_room) {
  for (;;) {
    try {
      return save();
    } catch (const NoSpaceError&) {
      if (!make_room()) throw;
    }
  }
}

fs::path save_checkpoint(const fs::path& directory, const TrainingState& state,
                         const std::vector<CheckpointSlice>& trainable, const std::vector<CheckpointSlice>& optimizer,
                         Communicator& ranks) {
  fs::path target = directory / checkpoint_name(state.step);
  const bool leads = ranks.rank() == 0;
  std::optional<AtomicDirectory> result;
  write_together(ranks, [&] {
    if (leads) result.emplace(target, Replace::anything);
  });
  const fs::path path = ranks.broadcast_text("save checkpoint", result ? result->path().string() : "", 0);
  write_together(ranks, [&] {
    require_finite(trainable);
    require_finite(optimizer);
    const auto write = [&](const char* kind, const std::vector<CheckpointSlice>& slices) {
      if (slices.empty() && !leads) return;
      detail::write_slices(path / file_name(kind, ranks.rank(), ranks.size()), slices);
    };
    write("trainable", trainable);
    write("optimizer", optimizer);
  });
  write_together(ranks, [&] {
    if (!leads) return;
    write_file_atomically(path / kRecipe, state.recipe);
    write_json_file(path / kState, state_json(state));
    write_manifest(path);
    result->commit();
  });
  return target;
}

uint64_t checkpoint_bytes(const TrainingState& state, const std::vector<CheckpointSlice>& trainable,
                          const std::vector<CheckpointSlice>& optimizer, Communicator& ranks) {
  constexpr uint64_t kManifestEntry = 160;  // a file's name, size and hash
  constexpr uint64_t kStateGrowth = 64;     // digits of the step, the loss and the rest, which grow
  const auto on_disk = [](uint64_t bytes) { return (bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock; };
  const bool leads = ranks.rank() == 0;
  uint64_t mine = 0;
  for (const auto* slices : {&trainable, &optimizer}) {
    if (leads || !slices->empty()) mine += on_disk(detail::bytes_of_file(*slices));
  }
  if (leads) {
    mine += on_disk(state.recipe.size()) + on_disk(state_json(state).dump(2, ' ', true).size() + kStateGrowth) +
            on_disk(kManifestEntry * (2 * static_cast<uint64_t>(ranks.size()) + 2)) + kDiskBlock;
  }
  if (ranks.size() == 1) return mine;
  return static_cast<uint64_t>(ranks.all_reduce_sum("bytes of a checkpoint", static_cast<double>(mine)));
}

TrainingState read_checkpoint_state(const fs::path& checkpoint) {
  const json manifest = read_manifest(checkpoint);
  if (from_the_future(manifest)) refuse_format(checkpoint, manifest);
  for (const char* name : {kState, kRecipe}) {
    if (!manifest["files"].contains(name)) throw InputError(checkpoint.string(), std::string(name) + " is missing");
  }
  for (const auto& [name, entry] : manifest["files"].items()) verify_file(checkpoint, name, entry);
  return read_state(checkpoint);
}

void load_checkpoint_tensors(const fs::path& checkpoint, const std::vector<CheckpointSlice>& trainable,
                             const std::vector<CheckpointSlice>& optimizer) {
  detail::read_slices(files_of(checkpoint, "trainable"), "trainable tensor", trainable);
  detail::read_slices(files_of(checkpoint, "optimizer"), "optimizer state", optimizer);
}

std::vector<int64_t> checkpoint_steps(const fs::path& directory) {
  std::vector<int64_t> steps;
  if (!fs::is_directory(directory)) return steps;
  for (const fs::directory_entry& entry : list_directory(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int64_t step = 0;
    const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (error == std::errc() && end == name.data() + name.size() && name == checkpoint_name(step)) {
      steps.push_back(step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

bool is_checkpoint(const fs::path& path) {
  if (!fs::is_directory(path)) return false;
  const auto has = [&](const char* name, const char* key) {
    try {
      const json value = read_json_file(path / name);
      return value.is_object() && value.contains(key);
    } catch (const Error&) {
      return false;
    }
  };
  if (fs::is_empty(path) || has(kManifest, "files") || has(kState, "settings")) return true;
  return std::ranges::any_of(list_directory(path), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename();
    return (name.starts_with("trainable-") || name.starts_with("optimizer-")) && name.ends_with(".safetensors");
  });
}

std::optional<FoundCheckpoint> newest_checkpoint(const fs::path& directory, const Observer& observer) {
  std::vector<int64_t> steps = checkpoint_steps(directory);
  if (steps.empty()) return std::nullopt;
  std::string first_reason;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const fs::path path = directory / checkpoint_name(*step);
    try {
      const json manifest = read_manifest(path);
      if (!from_the_future(manifest)) {
        FoundCheckpoint found{path, read_checkpoint_state(path)};
        if (!first_reason.empty()) observer.message("falling back to checkpoint " + path.string());
        return found;
      }
    } catch (const Error& error) {
      observer.message(std::string("checkpoint cannot be used: ") + error.what());
      if (first_reason.empty()) first_reason = error.what();
      continue;
    }
    refuse_format(path, read_manifest(path));
  }
  throw InputError(directory.string(), "no checkpoint can be used (" + first_reason + ")",
                   "set output.resume=never and output.force=true to start over");
}

void remove_directory(const fs::path& path) {
  try {  // out of sight first, so that a reader never meets half of it
    const AtomicDirectory hidden(path, Replace::anything);
    std::error_code error;
    fs::rename(path, hidden.path(), error);
    if (error) throw IoError(path.string(), "cannot be removed: " + error.message());
    remove_tree(hidden.path());
  } catch (const NoSpaceError&) {
    // None to hide it. A checkpoint is none without its manifest, and is_checkpoint does not know a lone recipe.json.
    for (const char* name : {kManifest, kRecipe}) remove_tree(path / name);
    remove_tree(path);
  }
}

void prune_checkpoints(const fs::path& directory, int64_t newest, int keep_last, std::optional<int64_t> keep_step) {
  std::vector<int64_t> steps = checkpoint_steps(directory);
  std::erase_if(steps, [&](int64_t step) { return step > newest; });
  const size_t kept = std::min(steps.size(), static_cast<size_t>(std::max(keep_last, 1)));
  steps.resize(steps.size() - kept);
  for (const int64_t step : steps) {
    if (keep_step != step) remove_directory(directory / checkpoint_name(step));
  }
}

std::optional<int64_t> remove_oldest_checkpoint(const fs::path& directory, bool keep_best) {
  const auto newest = newest_checkpoint(directory, {});
  if (!newest) return std::nullopt;
  for (const int64_t step : checkpoint_steps(directory)) {
    if (step >= newest->state.step) break;
    if (keep_best && step == newest->state.best_step) continue;
    remove_directory(directory / checkpoint_name(step));
    return step;
  }
  return std::nullopt;
}

}  // namespace nibble
