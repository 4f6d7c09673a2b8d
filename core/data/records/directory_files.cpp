#include "nibble/core/data/records/directory_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/list_directory.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;

using Words = std::span<const std::string_view>;
constexpr std::array<std::string_view, 2> kTrain = {"train", "training"};
constexpr std::array<std::string_view, 6> kValidation = {"validation", "eval", "evaluation", "dev", "valid", "val"};
constexpr std::array<std::string_view, 2> kTest = {"test", "testing"};
constexpr std::array<Words, 3> kKinds = {kTest, kValidation, kTrain};  // a name with words of two is not trained on

// Files by the name of their split, "" for those of none.
using Splits = std::map<std::string, std::vector<std::string>>;

char lower(unsigned char c) { return static_cast<char>(std::tolower(c)); }

bool has(Words words, std::string_view word) { return std::ranges::find(words, word) != words.end(); }

// The word in `name` that says a split; empty: none.
std::string_view split_word(const std::string& name) {
  std::vector<std::string> words(1);
  for (const unsigned char c : name) {
    if (std::isalpha(c) != 0) {
      words.back() += lower(c);
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  for (const Words kind : kKinds) {
    for (const std::string_view word : kind) {
      if (std::ranges::find(words, word) != words.end()) return word;
    }
  }
  return {};
}

constexpr size_t kShardDigits = 5;

// "train_sft" of "train_sft-00000-of-00003.parquet".
std::string name_before_shard(const std::string& file) {
  const size_t of = file.find("-of-");
  if (of == std::string::npos || of < kShardDigits + 1 || file[of - kShardDigits - 1] != '-') return {};
  const auto digits = std::string_view(file).substr(of - kShardDigits, kShardDigits);
  return digits.find_first_not_of("0123456789") == digits.npos ? file.substr(0, of - kShardDigits - 1) : std::string();
}

std::string split_of(const fs::path& file) {
  const std::string name = file.filename().string(), sharded = name_before_shard(name);
  return split_word(sharded).empty() ? std::string(split_word(name)) : sharded;
}

// What `datasets` writes beside the data: descriptions, and what it computed from them.
bool is_beside_data(const fs::path& path) {
  const std::string name = path.filename().string();
  std::error_code failure;
  const bool of_dataset = name == "state.json" || (name.starts_with("cache-") && path.extension() == ".arrow");
  return name == "dataset_info.json" || name == "dataset_infos.json" || name == "dataset_dict.json" ||
         (of_dataset && fs::exists(path.parent_path() / "dataset_info.json", failure));
}

// A dangling link too: what cannot be read is refused, not left out.
bool is_data(const fs::directory_entry& entry) {
  std::error_code failure;
  return !entry.path().filename().string().starts_with('.') && !data_type(entry.path()).empty() &&
         !is_beside_data(entry.path()) && !entry.is_directory(failure);
}

Splits splits_in(const fs::path& directory) {
  Splits splits;
  std::error_code failure;
  const bool all_folders = fs::exists(directory / "dataset_dict.json", failure);
  for (const fs::directory_entry& entry : list_directory(directory)) {
    const std::string name = entry.path().filename().string();
    if (is_data(entry)) splits[split_of(name)].push_back(entry.path().string());
    if (name.starts_with('.') || !entry.is_directory(failure) || (!all_folders && split_word(name).empty())) continue;
    for (const fs::directory_entry& file : list_directory(entry.path())) {
      if (is_data(file)) splits[name].push_back(file.path().string());
    }
  }
  return splits;
}

bool has_names(const Splits& splits) { return !splits.empty() && !splits.rbegin()->first.empty(); }

std::string shown(const std::string& name) { return name.empty() ? "other files" : name; }

[[noreturn]] void refuse(const fs::path& directory, const Splits& splits, const std::vector<std::string>& likely,
                         DataSplit wanted) {
  constexpr size_t kShown = 12;
  std::vector<std::string> names;
  for (const auto& [name, files] : splits) names.push_back(names.size() < kShown ? shown(name) : "...");
  names.resize(std::min(names.size(), kShown + 1));
  const fs::path file = splits.at(likely.empty() ? splits.begin()->first : likely.front()).front();
  const bool in_folder = file.parent_path() != directory && file.parent_path() != directory / "data";
  throw InputError(directory.string(),
                   "holds the splits " + joined(names) + ", " + (likely.empty() ? "none" : "several") + " to " +
                       (wanted == DataSplit::train ? "train" : "evaluate") + " on",
                   "name the folder or the files, such as " + (in_folder ? file.parent_path() : file).string());
}

std::string choose(const fs::path& directory, const Splits& splits, DataSplit wanted) {
  if (splits.size() == 1) return splits.begin()->first;
  std::vector<std::string> likely;
  const Words first = wanted == DataSplit::train ? Words(kTrain) : Words(kValidation);
  for (const Words kind : {first, wanted == DataSplit::train ? Words() : Words(kTest)}) {
    for (const std::string_view word : kind) {
      if (splits.contains(std::string(word))) return std::string(word);
    }
    for (const auto& [name, files] : splits) {
      if (has(kind, split_word(name))) likely.push_back(name);
    }
    if (likely.size() == 1) return likely.front();
    if (!likely.empty()) break;
  }
  refuse(directory, splits, likely, wanted);
}

// Throws InputError where shard 1 of "train-00000-of-00002.parquet" is not among the files.
void require_all_shards(const std::vector<std::string>& files) {
  std::map<std::pair<std::string, std::string>, std::set<int64_t>> sets;  // by "DIR/train-" and "-of-00002"
  for (const fs::path file : files) {
    const std::string name = file.filename().string(), before = name_before_shard(name);
    if (before.empty()) continue;
    const size_t index = before.size() + 1, of = index + kShardDigits;
    const std::string count = name.substr(of, name.find_first_not_of("0123456789", of + 4) - of);
    sets[{(file.parent_path() / before).string() + "-", count}].insert(std::stoll(name.substr(index, kShardDigits)));
  }
  for (const auto& [set, indices] : sets) {
    const int64_t count = std::atoll(set.second.c_str() + 4), first = indices.contains(count) ? 1 : 0;
    if (std::ssize(indices) >= count) continue;
    int64_t missing = first;
    while (indices.contains(missing)) ++missing;
    throw InputError(set.first + formatted("%05lld", static_cast<long long>(missing)) + set.second,
                     "is missing beside other shards of the set", "get it, or name the files that are to be used");
  }
}

// "name the folder of the data, such as DIR/a", of the folders below.
std::string folders_below(const fs::path& directory) {
  std::error_code failure;
  std::vector<std::string> folders;
  for (fs::recursive_directory_iterator entry(directory, failure), end;
       !failure && entry != end && folders.size() < 1000; entry.increment(failure)) {
    if (is_data(*entry)) folders.push_back(entry->path().parent_path().string());
  }
  if (folders.empty()) return "name the data files";
  return "name the folder of the data, such as " + *std::ranges::min_element(folders);
}

}  // namespace

DirectoryFiles files_of_directory(const fs::path& directory, DataSplit wanted) {
  Splits splits = splits_in(directory);
  std::error_code failure;
  if (const fs::path inner = directory / "data"; !has_names(splits) && fs::is_directory(inner, failure)) {
    Splits below = splits_in(inner);
    if (splits.empty() || has_names(below)) splits.merge(below);
  }
  if (splits.empty()) {
    throw InputError(directory.string(), std::string("holds no ") + kDataTypes + " file", folders_below(directory));
  }
  DirectoryFiles taken;
  taken.split = choose(directory, splits, wanted);
  for (auto& [name, files] : splits) {
    if (name == taken.split) {
      taken.files = std::move(files);
    } else {
      taken.rest.push_back(shown(name));
    }
  }
  require_all_shards(taken.files);
  return taken;
}

}  // namespace nibble
