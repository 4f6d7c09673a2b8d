#include "nibble/core/data/data_options.h"

#include <array>
#include <span>
#include <utility>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

template <typename T>
using Names = std::span<const std::pair<std::string_view, T>>;

constexpr std::array<std::pair<std::string_view, DataFormat>, 11> kFormats = {{
    {"auto", DataFormat::automatic},
    {"alpaca", DataFormat::alpaca},
    {"chat", DataFormat::chat},
    {"completion", DataFormat::completion},
    {"text", DataFormat::text},
    {"tokens", DataFormat::tokens},
    {"preference", DataFormat::preference},
    {"unpaired", DataFormat::unpaired},
    {"labeled", DataFormat::labeled},
    {"prompts", DataFormat::prompts},
    {"rollouts", DataFormat::rollouts},
}};

constexpr std::array<std::pair<std::string_view, Truncate>, 3> kTruncates = {{
    {"error", Truncate::error},
    {"cut", Truncate::cut},
    {"drop", Truncate::drop},
}};

template <typename T>
std::string_view name_of(Names<T> names, T value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return "?";
}

template <typename T>
T parse(Names<T> names, std::string_view name, const std::string& key) {
  std::string all;
  for (const auto& [known, value] : names) {
    if (known == name) return value;
    all += (all.empty() ? "" : ", ") + std::string(known);
  }
  throw UsageError("\"" + std::string(name) + "\" is not known", "use one of " + all, key);
}

}  // namespace

std::vector<std::pair<std::string, DataFormat>> data_formats() { return {kFormats.begin(), kFormats.end()}; }
std::string_view data_format_name(DataFormat format) { return name_of<DataFormat>(kFormats, format); }
DataFormat parse_data_format(std::string_view name) { return parse<DataFormat>(kFormats, name, "data.format"); }
Truncate parse_truncate(std::string_view name) { return parse<Truncate>(kTruncates, name, "data.truncate"); }

void check_data_options(const DataOptions& options) {
  if (options.train.empty()) throw UsageError("no training data", "name a file, directory or glob", "data.train");
  for (const auto* sources : {&options.train, &options.eval}) {
    for (const DataSource& source : *sources) {
      if (!(source.weight > 0) || source.weight > kLargestWeight) {
        throw UsageError("the weight of " + source.path + " must be above 0 and at most 1000", "", "data.train");
      }
    }
  }
  if (!(options.eval_fraction >= 0 && options.eval_fraction < 1)) {
    throw UsageError("must be at least 0 and below 1", "", "data.eval_fraction");
  }
  if (options.eval_fraction > 0 && !options.eval.empty()) {
    throw UsageError("excludes data.eval", "give one of the two", "data.eval_fraction");
  }
  if (options.max_length < 2 || options.max_length > (int64_t{1} << 24)) {
    throw UsageError("must be from 2 to 16777216", "", "data.max_length");
  }
  if (!(options.max_dropped >= 0 && options.max_dropped <= 1)) {
    throw UsageError("must be from 0 to 1", "", "data.max_dropped");
  }
  if (options.skip_bad < 0) throw UsageError("must not be negative", "", "data.skip_bad");
}

}  // namespace nibble
