#include "nibble/core/train/run/own_contents.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/train/checkpoint/checkpoint_room.h"
#include "nibble/core/train/run/run.h"

namespace nibble::detail {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kRecipe = "recipe.json";
constexpr const char* kResults[] = {"adapter", "model", "value_adapter", "value_model"};

// {"step":1,"NEXT":... and more, or the part of it that a killed process wrote.
bool begins_with_step(const fs::path& file, std::string_view next) {
  std::string begin(256, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(stream.gcount()));
  const auto agrees = [](std::string_view text, std::string_view with) {
    return text.substr(0, with.size()) == with.substr(0, text.size());
  };
  constexpr std::string_view kHead = "{\"step\":";
  std::string_view text = begin;
  if (!agrees(text, kHead)) return false;
  text.remove_prefix(std::min(text.size(), kHead.size()));
  text.remove_prefix(std::min(text.size(), text.find_first_not_of("0123456789")));
  return agrees(text, ",\"" + std::string(next) + "\":");
}

struct FileOfRun {
  const char* name;
  bool (*is_own)(const fs::path& file);  // of regular files
};
// But for recipe.json, in which nothing says whose it is.
constexpr FileOfRun kFiles[] = {
    {kMetrics, [](const fs::path& file) { return begins_with_step(file, "split"); }},
    {"samples.jsonl", [](const fs::path& file) { return begins_with_step(file, "prompt"); }},
    {"run.json", [](const fs::path& file) { return holds_json_object(file, "nibble"); }},
    {"report.html", [](const fs::path& file) { return begins_with_mark(file, kPageMark); }},
    {"diagnostic.json", [](const fs::path& file) { return holds_json_object(file, "bad_steps"); }}};

// "step-12.jsonl" of prefix "step-" and suffix ".jsonl".
bool is_numbered(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix))
    return false;
  name = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  return name.find_first_not_of("0123456789") == std::string_view::npos;
}

// Of directories in which others may have files as well: whether a run gives such names.
bool is_name_of_run(const fs::path& path) {
  const std::string in = path.parent_path().filename(), name = path.filename();
  if (in == "checkpoints") return is_numbered(name, "step-", "") && is_checkpoint(path);
  if (in == "tensorboard") return name.starts_with("events.out.tfevents.");
  if (in == "rollouts") return is_numbered(name, "step-", ".jsonl");
  return in == "profile" && is_numbered(name, "rank-", ".json");
}

std::vector<fs::path> names_of_run(const fs::path& directory) {
  std::vector<fs::path> found;
  if (!fs::is_directory(directory)) return found;
  for (const fs::directory_entry& entry : list_directory(directory)) {
    if (is_name_of_run(entry.path())) found.push_back(entry.path());
  }
  return found;
}

bool is_own(const fs::path& path) {
  const std::string name = path.filename();
  if (std::ranges::find(kResults, name) != std::end(kResults)) return why_not_own(path).empty();
  const auto* const file = std::ranges::find(kFiles, name, &FileOfRun::name);
  return file != std::end(kFiles) && fs::is_regular_file(path) && file->is_own(path);
}

// Beside a checkpoint or a metrics.jsonl with lines. Beside an empty one, as a run that was killed before its first
// step leaves it, it is the user's unless there are events: a run writes them before its recipe.
bool is_own_recipe(const fs::path& file, const Contents& contents) {
  const fs::path directory = file.parent_path();
  return fs::is_regular_file(file) && holds_json_object(file) &&
         (!contents.checkpoints.empty() || (contents.metrics && (!fs::is_empty(directory / kMetrics) ||
                                                                 !names_of_run(directory / "tensorboard").empty())));
}

[[noreturn]] void refuse_name(const fs::path& directory, const fs::path& name) {
  throw UsageError("has a " + name.string() + " that is not of a run and would be overwritten",
                   "choose another output.dir, or overwrite it with output.force=true", directory.string());
}

}  // namespace

Contents look(const fs::path& directory) {
  Contents contents;
  contents.checkpoints = checkpoint_steps(directory / "checkpoints");
  std::erase_if(contents.checkpoints,
                [&](int64_t step) { return !is_checkpoint(directory / "checkpoints" / checkpoint_name(step)); });
  contents.metrics = is_own(directory / kMetrics);
  contents.results = std::ranges::any_of(kResults, [&](const char* name) { return fs::exists(directory / name); });
  return contents;
}

void require_own(const fs::path& directory, const Contents& contents, bool force) {
  const char* const move_away = "move it away, or choose another output.dir";
  for (const int64_t step : checkpoint_steps(directory / "checkpoints")) {
    const fs::path checkpoint = directory / "checkpoints" / checkpoint_name(step);
    if (!is_checkpoint(checkpoint)) throw UsageError("is no checkpoint of nibble", move_away, checkpoint.string());
  }
  if (contents.has_run() || force) {  // else any result is refused
    for (const char* name : kResults) {
      const std::string reason = why_not_own(directory / name);
      if (!reason.empty()) throw UsageError(reason, move_away, (directory / name).string());
    }
  }
  if (force) return;
  for (const FileOfRun& file : kFiles) {
    if (fs::exists(directory / file.name) && !is_own(directory / file.name)) refuse_name(directory, file.name);
  }
  const fs::path recipe = directory / kRecipe;
  if (fs::exists(recipe) && !is_own_recipe(recipe, contents)) refuse_name(directory, kRecipe);
  if (contents.has_run()) return;
  for (const char* name : {"rollouts", "profile"}) {
    for (const fs::path& path : names_of_run(directory / name)) refuse_name(directory, name / path.filename());
  }
}

void remove_own(const fs::path& directory) {
  const Contents contents = look(directory);
  // What is left of a directory would not be known for nibble's.
  const auto remove = [](const fs::path& path) {
    fs::is_directory(fs::symlink_status(path)) ? remove_directory(path) : remove_tree(path);
  };
  // Killed between two of these, what is left must still look like a run.
  std::vector<fs::path> paths = run_contents(directory);
  paths.insert(paths.begin(), {directory / "report.html", directory / "diagnostic.json"});
  for (const fs::path& path : paths) {
    if (is_own(path) || (path.filename() == kRecipe && is_own_recipe(path, contents))) remove(path);
    const std::vector<fs::path> names = names_of_run(path);
    std::ranges::for_each(names, remove);
    std::error_code not_empty;
    if (!names.empty()) fs::remove(path, not_empty);
  }
}

}  // namespace nibble::detail
