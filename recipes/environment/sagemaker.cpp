#include "nibble/recipes/environment/sagemaker.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/json/yaml.h"
#include "nibble/recipes/config/shipped.h"
#include "nibble/recipes/config/sweep.h"
#include "nibble/recipes/train.h"

namespace nibble {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

json read_config(const fs::path& base, const char* name, bool required) {
  const fs::path path = base / "input" / "config" / name;
  if (!required && !fs::exists(path)) return json::object();
  json value = read_json_file(path);
  if (!value.is_object()) throw InputError(path.string(), "is no JSON object");
  return value;
}

// The service writes every value as a string; some clients put a JSON string into it ("\"qlora\"").
std::string setting_text(const json& value) {
  if (!value.is_string()) return value.dump();
  std::string text = value.get<std::string>();
  if (text.size() < 2 || text.front() != '"') return text;
  const json inner = json::parse(text, nullptr, false);
  return inner.is_string() ? inner.get<std::string>() : text;
}

void refuse_several_hosts(const fs::path& base) {
  const json resources = read_config(base, "resourceconfig.json", false);
  if (!resources.contains("hosts") || !resources["hosts"].is_array() || resources["hosts"].size() < 2) return;
  throw UsageError("the job has " + std::to_string(resources["hosts"].size()) + " instances, one is supported",
                   "set the instance count to 1, or use nibble launch on hosts of your own",
                   (base / "input/config/resourceconfig.json").string());
}

// A model may lie in the channel's folder or one below, where an archive was unpacked.
fs::path model_in(const fs::path& channel) {
  if (fs::exists(channel / "config.json")) return channel;
  std::vector<fs::path> below;
  for (const fs::directory_entry& entry : fs::directory_iterator(channel)) {
    if (entry.is_directory() && fs::exists(entry.path() / "config.json")) below.push_back(entry.path());
  }
  if (below.size() != 1) {
    throw InputError(channel.string(), "holds no model: no config.json", "give the channel a Hugging Face directory");
  }
  return below.front();
}

void add_channels(const fs::path& data, SagemakerJob& job) {
  const auto add = [&](std::initializer_list<const char*> names, const char* key, bool model) {
    for (const char* name : names) {
      const fs::path channel = data / name;
      if (!fs::is_directory(channel)) continue;
      job.overrides.push_back(std::string(key) + "=" + (model ? model_in(channel) : channel).string());
      return;
    }
  };
  add({"model"}, "model.path", true);
  add({"tokenizer"}, "model.tokenizer", false);
  add({"train", "training"}, "data.train", false);
  add({"eval", "validation", "test"}, "data.eval", false);
}

void choose_recipe(const std::string& name, const fs::path& data, SagemakerJob& job) {
  for (const fs::path& place : {fs::path(name), data / name}) {
    if (!(name.ends_with(".json") || is_yaml(name)) || !fs::is_regular_file(place)) continue;
    job.recipe_text = read_text_file(place);
    job.recipe_place = place.string();
    return;
  }
  job.recipe_text = shipped_recipe(name);
  job.recipe_place = "recipe " + name;
}

}  // namespace

SagemakerJob read_sagemaker_job(const fs::path& base) {
  SagemakerJob job;
  job.base = base;
  refuse_several_hosts(base);
  const json parameters = read_config(base, "hyperparameters.json", false);
  const fs::path data = base / "input" / "data";
  choose_recipe(parameters.contains("recipe") ? setting_text(parameters["recipe"]) : "qlora", data, job);
  add_channels(data, job);
  job.overrides.push_back("output.dir=" + (base / "checkpoints").string());
  for (const auto& [name, value] : parameters.items()) {
    if (name == "recipe" || name.starts_with("sagemaker_")) continue;
    if (name == "output.dir") {
      throw UsageError("is the service's: base/checkpoints", "take the hyperparameter away",
                       "hyperparameter output.dir");
    }
    job.overrides.push_back(parse_sweep_axis(name + "=0").key + "=" + setting_text(value));
  }
  // Evaluation data take the place of a share of the training data that the recipe may hold out.
  const bool evaluates = std::any_of(job.overrides.begin(), job.overrides.end(),
                                     [](const std::string& word) { return word.starts_with("data.eval="); });
  if (evaluates) job.overrides.insert(job.overrides.begin(), "data.eval_fraction=null");
  return job;
}

void run_sagemaker_job(const SagemakerJob& job, const Observer& observer) {
  const Recipe recipe = parse_recipe(job.recipe_text, job.recipe_place, job.overrides);
  LocalRank rank(static_cast<int>(recipe.train.threads), static_cast<uint64_t>(recipe.train.seed));
  train(recipe, rank.context(), observer);
  const fs::path from = recipe.output.dir, to = job.base / "model";
  std::error_code error;
  fs::create_directories(to, error);
  for (const char* name : {"adapter", "model", "report.html", "metrics.jsonl", "recipe.json"}) {
    if (!fs::exists(from / name)) continue;
    // A model goes to the top, where those who open the archive look for it.
    const fs::path target = std::string(name) == "adapter" || std::string(name) == "model" ? to : to / name;
    fs::copy(from / name, target, fs::copy_options::recursive | fs::copy_options::overwrite_existing, error);
    if (error) throw IoError(target.string(), "cannot be written: " + error.message(), "check the free space");
  }
}

void write_sagemaker_failure(const fs::path& base, const std::string& reason) {
  constexpr size_t kShown = 1024;
  std::error_code error;
  fs::create_directories(base / "output", error);
  write_file_atomically(base / "output" / "failure", reason.substr(0, kShown));
}

}  // namespace nibble
