#include "nibble/core/io/hub/run_result.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/hub_cache.h"

namespace nibble {

namespace {

struct Result {
  const char* directory;  // of a run
  const char* file;       // which every one has
  const char* option;     // of commands, and the recipe's key
};

constexpr Result kModel = {"model", "config.json", "--model, or model.path"};
constexpr Result kAdapter = {"adapter", "adapter_config.json", "--adapter, or adapter.path"};

std::string find_result(const std::string& named, const std::vector<Result>& wanted) {
  const std::filesystem::path found = find_in_hub(named, kHubModels);
  std::error_code failure;
  const auto is_there = [&](const std::filesystem::path& file) {
    return std::filesystem::exists(found / file, failure);
  };
  if (named.empty() || std::ranges::any_of(wanted, [&](const Result& result) { return is_there(result.file); })) {
    return found.string();
  }
  for (const Result& result : wanted) {
    const std::filesystem::path inside = result.directory;
    if (is_there(inside / result.file)) return (found / inside).string();
  }
  if (!is_there("metrics.jsonl")) return found.string();
  for (const Result& other : {kModel, kAdapter}) {
    if (!is_there(std::filesystem::path(other.directory) / other.file)) continue;
    throw InputError(found.string(), std::string("is the directory of a run that left no ") + wanted.front().directory,
                     std::string("name its ") + other.directory + " with " + other.option);
  }
  throw InputError(found.string(), "is the directory of a run that has not finished",
                   std::string("give its command again, which goes on and leaves its result in ") +
                       (found / wanted.front().directory).string());
}

}  // namespace

std::string find_model(const std::string& named) { return find_result(named, {kModel}); }
std::string find_adapter(const std::string& named) { return find_result(named, {kAdapter}); }
std::string find_scorer(const std::string& named) { return find_result(named, {kAdapter, kModel}); }

}  // namespace nibble
