#include "nibble/core/train/run/run_directory.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/files/unfinished.h"
#include "nibble/core/train/checkpoint/checkpoint_room.h"
#include "nibble/core/train/run/own_contents.h"

namespace nibble::detail {

namespace fs = std::filesystem;

namespace {

constexpr const char* kForce = "output.force=true";
constexpr const char* kLock = ".nibble.lock";

[[noreturn]] void refuse(const fs::path& directory, const std::string& reason, const std::string& remedy) {
  throw UsageError(reason, remedy, directory.string());
}

bool within(const fs::path& checkpoint, const fs::path& checkpoints) {
  std::error_code error;
  return fs::equivalent(checkpoint.lexically_normal().parent_path(), checkpoints, error) && !error;
}

fs::path named_checkpoint(const RunOptions& options) {
  fs::path path = options.resume;
  return path.has_filename() ? path : path.parent_path();
}

std::optional<FoundCheckpoint> start_from(const RunOptions& options, const Contents& contents) {
  const fs::path path = named_checkpoint(options);
  if (!fs::is_directory(path)) {
    throw UsageError("is no checkpoint directory", "give auto, never, or a path such as RUN/checkpoints/step-100",
                     "output.resume: " + path.string());
  }
  FoundCheckpoint found{path, read_checkpoint_state(path)};
  if (!within(path, options.dir / "checkpoints")) {
    if ((contents.has_run() || contents.results) && !options.force) {
      refuse(options.dir, "holds another run already",
             std::string("choose another output.dir, or replace it with ") + kForce);
    }
  } else if (!options.force && !contents.checkpoints.empty() && contents.checkpoints.back() > found.state.step) {
    refuse(
        options.dir,
        "has checkpoints up to step " + std::to_string(contents.checkpoints.back()) + ", after the one to start from",
        std::string("continue with output.resume=auto, or give them up with ") + kForce);
  }
  return found;
}

}  // namespace

Claim::Claim(const fs::path& directory) : directory_(directory) {
  const fs::path whole = fs::absolute(directory).lexically_normal();
  std::error_code error;
  fs::path path;
  for (const fs::path& part : whole) {
    path /= part;
    if (!part.empty() && !fs::exists(path, error)) made_.push_back(path);
  }
  try {
    {
      const auto held = hold_unfinished();
      fs::create_directories(directory, error);
      for (const fs::path& result : made_) note_unfinished(result, Leftover::empty_directory);
    }
    if (error) throw system_error(directory, "cannot be made", error.value());
    write_probe(directory);
    const auto held = hold_unfinished();
    lock_ = std::make_unique<DirectoryLock>(directory);
    if (!made_.empty()) note_unfinished(directory_ / kLock);
  } catch (...) {
    take_back();
    throw;
  }
}

Claim::~Claim() { take_back(); }

// Directories are only removed when nothing is in them.
void Claim::take_back() {
  std::error_code ignored;
  if (!made_.empty() && lock_) fs::remove(directory_ / kLock, ignored);
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) fs::remove(*path, ignored);
  keep();
}

void Claim::keep() {
  if (!made_.empty()) forget_unfinished(directory_ / kLock);
  for (const fs::path& path : made_) forget_unfinished(path);
  made_.clear();
}

std::optional<FoundCheckpoint> choose_start(const RunOptions& options, const Observer& observer) {
  const Contents contents = look(options.dir);
  const bool has_run = contents.has_run();
  require_own(options.dir, contents, options.force);
  if (options.resume == "never") {
    if ((has_run || contents.results) && !options.force) {
      refuse(
          options.dir, "holds a run already",
          std::string("continue it with output.resume=auto, choose another output.dir, or replace it with ") + kForce);
    }
    return std::nullopt;
  }
  if (options.resume != "auto") return start_from(options, contents);
  if (auto found = newest_checkpoint(options.dir / "checkpoints", observer)) return found;
  if (contents.results && !options.force) {
    refuse(options.dir, "holds the result of a run, but no checkpoint to continue from",
           std::string("choose another output.dir, or replace it with ") + kForce);
  }
  if (contents.metrics)
    observer.message("no checkpoint yet in " + options.dir.string() + ": starting at the beginning");
  return std::nullopt;
}

namespace {

constexpr const char* kAbsent = "absent";

// "data.train \"d.jsonl\"", or the name alone where the recipe has no value.
std::string with_value(const std::string& section, const std::string& key, const std::string& recipe) {
  const nlohmann::json::json_pointer place("/" + section + "/" + key);
  const auto root = nlohmann::json::parse(recipe, nullptr, false);
  const bool given = root.contains(place) && !root[place].is_null();
  return section + "." + key + (given ? " " + root[place].dump() : "");
}

// "data.train \"d.jsonl\" has other content" for data.fingerprint, "model.safetensors of model.path has ..." for
// model.fingerprint/model.safetensors; "" for any other setting.
std::string other_content(const std::string& name, const std::string& before, const std::string& now,
                          const std::string& recipe) {
  if (name == "data.records") return with_value("data", "train", recipe) + " has other content beside the prompts";
  constexpr std::string_view kMark = ".fingerprint";
  const size_t mark = name.find(kMark);
  if (mark == std::string::npos) return "";
  std::string what = name.substr(0, mark), file = name.substr(mark + kMark.size());
  if (what == "data") {  // of the data to train on, "-" and of those to evaluate on
    const auto first = [](const std::string& both) { return both.substr(0, both.find_first_of("-\"", 1)); };
    const std::string key = first(before) == first(now) ? "eval" : "train";
    if (key == "eval") {
      if (before.find('-') == std::string::npos) return with_value("data", key, recipe) + " is new";
      if (now.find('-') == std::string::npos) return "data.eval is gone";
    }
    const std::string answers = with_value("rollout", "file", recipe);
    what = key == "train" && answers.ends_with('"') ? answers : with_value("data", key, recipe);
  } else if (what == "model" || what == "adapter") {
    what += ".path";
  }
  if (!file.empty()) what = file.substr(1) + " of " + what;
  return what + (before == kAbsent ? " is new" : now == kAbsent ? " is gone" : " has other content");
}

}  // namespace

void compare_settings(const RunOptions& options, const TrainingState& state, const Observer& observer) {
  std::map<std::string, std::string> settings = options.settings;
  const auto is_content = [](const auto& setting) { return setting.first.find(kFingerprint) != std::string::npos; };
  if (std::ranges::none_of(state.settings, is_content) && std::erase_if(settings, is_content) > 0) {
    observer.message(
        "note: an earlier nibble wrote the checkpoint, without what is inside the files of model, adapter "
        "and tokenizer: whether they changed since is not known");
  }
  std::set<std::string> names;
  for (const auto& [name, value] : settings) names.insert(name);
  for (const auto& [name, value] : state.settings) names.insert(name);
  const auto value_of = [](const std::map<std::string, std::string>& all, const std::string& name) {
    const auto found = all.find(name);
    return found == all.end() ? std::string(kAbsent) : found->second;
  };
  if (std::ranges::any_of(settings, is_content)) names.erase("model.fingerprint");  // the same, less exactly
  const auto changes_tokens = [&](const std::string& name) {                        // of the same files
    const bool is_setting = name.starts_with("data.") && name != "data.fingerprint" && name != "data.records";
    return (is_setting || name.starts_with("tokenizer.")) && value_of(state.settings, name) != value_of(settings, name);
  };
  if (std::ranges::any_of(names, changes_tokens)) names.erase("data.fingerprint");
  const auto differs = [&](const char* name) { return value_of(state.settings, name) != value_of(settings, name); };
  if (names.contains("data.fingerprint") && differs("data.fingerprint")) names.erase("data.records");
  // A schedule may say that the length does not matter; then it is no setting.
  std::erase_if(names, [&](const std::string& name) {
    const bool is_absent = value_of(state.settings, name) == kAbsent || value_of(settings, name) == kAbsent;
    return is_absent && (name == "train.steps" || name == "train.epochs");
  });
  const bool other_objective = differs("objective.type");  // which has other keys
  if (other_objective) {
    std::erase_if(names, [](const std::string& name) {
      const bool of_objective = name.starts_with("objective.") && name != "objective.type";
      return of_objective || name.starts_with("rollout.") || name == "rewards";
    });
  }
  std::string differences;
  for (const std::string& name : names) {
    const std::string before = value_of(state.settings, name), now = value_of(settings, name);
    if (before == now) continue;
    const std::string content = other_content(name, before, now, options.recipe);
    differences +=
        (differences.empty() ? "" : ", ") + (content.empty() ? name + " was " + before + " and is " + now : content);
  }
  if (differences.empty()) return;
  const std::string reason = "differs from the run that began here: " + differences;
  if (!options.force) {
    refuse(options.dir, reason,
           std::string("put them back, or choose another output.dir") +
               (other_objective ? " (adapter.path or model.path takes over what the run here trained)" : "") +
               "; to continue with the new ones: " + kForce +
               "; to start afresh, which deletes the run here: output.resume=never " + kForce);
  }
  observer.message(options.dir.string() + ": " + reason + "; continuing as output.force asks");
}

void clear_for(const RunOptions& options, const std::optional<FoundCheckpoint>& start) {
  const fs::path checkpoints = options.dir / "checkpoints";
  if (!start || !within(start->path, checkpoints)) {
    if (look(options.dir).has_run()) remove_own(options.dir);
    // One of others, whose lines would count as this run's. A directory of that name is nobody's log.
    const fs::path metrics = options.dir / "metrics.jsonl";
    if (options.force && !fs::is_directory(metrics)) remove_tree(metrics);
    return;
  }
  if (options.resume == "auto") return;  // later ones are damaged: they are replaced when the run comes there
  for (const int64_t step : checkpoint_steps(checkpoints)) {
    if (step > start->state.step) remove_directory(checkpoints / checkpoint_name(step));
  }
}

}  // namespace nibble::detail

namespace nibble {

std::vector<std::filesystem::path> run_contents(const std::filesystem::path& dir) {
  return {dir / "recipe.json", dir / "adapter",     dir / "model",         dir / "value_adapter",
          dir / "value_model", dir / "tensorboard", dir / "samples.jsonl", dir / "rollouts",
          dir / "run.json",    dir / "profile",     dir / "checkpoints",   dir / "metrics.jsonl"};
}

}  // namespace nibble
