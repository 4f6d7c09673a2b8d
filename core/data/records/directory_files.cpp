#include "nibble/core/data/records/directory_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/json/json_file.h"

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

// The index in kKinds of the split that `name` says.
size_t kind_of(const std::string& name) {
  const std::string_view word = split_word(name);
  const auto found = std::ranges::find_if(kKinds, [&](Words kind) { return has(kind, word); });
  return static_cast<size_t>(found - kKinds.begin());
}
constexpr size_t kNoKind = kKinds.size();

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

// What `datasets` writes beside the data, descriptions and what it computed from them, and pages about the data.
bool is_beside_data(const fs::path& path) {
  constexpr std::array<std::string_view, 6> kPages = {"readme", "license", "licence", "copying", "notice", "changelog"};
  const std::string name = path.filename().string();
  std::string stem = path.stem().string();
  std::ranges::transform(stem, stem.begin(), lower);
  std::error_code failure;
  return name == "dataset_info.json" || name == "dataset_infos.json" || name == "dataset_dict.json" ||
         (name.starts_with("cache-") && path.extension() == ".arrow" &&
          fs::exists(path.parent_path() / "dataset_info.json", failure)) ||
         (path.extension() == ".txt" && has(kPages, stem));
}

// Programs, pages and what a run leaves may have the name of a split without being one.
bool is_no_data(const fs::path& path) {
  constexpr std::array<std::string_view, 20> kNoDataTypes = {
      ".py",  ".sh",   ".ipynb", ".md",   ".rst",  ".html", ".pdf",    ".png", ".jpg", ".svg",
      ".log", ".yaml", ".yml",   ".toml", ".lock", ".md5",  ".sha256", ".bin", ".pt",  ".safetensors"};
  return has(kNoDataTypes, path.extension().string()) || is_beside_data(path);
}

// A dangling link too: what cannot be read is refused, not left out.
bool is_data(const fs::path& path) { return !data_type(path).empty() && !is_beside_data(path); }

// The files that Dataset.save_to_disk says are its own: an earlier one with more shards leaves others beside them.
std::vector<fs::directory_entry> saved_files(const fs::path& directory, const fs::path& state) {
  constexpr const char* kRemedy = "save the data set again, or name the files";
  const nlohmann::json saved = read_json_file(state);
  std::vector<fs::directory_entry> files;
  const auto list = saved.is_object() ? saved.find("_data_files") : saved.end();
  if (list == saved.end() || !list->is_array())
    throw InputError(state.string(), "has no list \"_data_files\"", kRemedy);
  for (const nlohmann::json& file : *list) {
    const auto name = file.is_object() ? file.find("filename") : file.end();
    if (name == file.end() || !name->is_string())
      throw InputError(state.string(), "has no \"filename\" in \"_data_files\"", kRemedy);
    const fs::path own = name->get<std::string>(), path = directory / own;
    if (own != own.filename() || own.empty() || own == "." || own == "..") {
      throw InputError(state.string(), "names a file outside its directory", kRemedy);
    }
    std::error_code failure;
    if (!fs::exists(path, failure)) throw InputError(path.string(), "is not there, but state.json names it", kRemedy);
    files.emplace_back(path);
  }
  return files;
}

std::vector<fs::directory_entry> entries_of(const fs::path& directory) {
  std::error_code failure;
  const fs::path state = directory / "state.json";
  if (fs::exists(state, failure) &&
      (fs::exists(directory / "dataset_info.json", failure) || holds_json_object(state, "_data_files"))) {
    return saved_files(directory, state);
  }
  std::vector<fs::directory_entry> entries = list_directory(directory);
  std::erase_if(entries, [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return name.starts_with('.') || name == "lost+found";
  });
  return entries;
}

// A run's directory, or what data.cache keeps.
bool is_own_output(const fs::path& folder) {
  std::error_code failure;
  return holds_json_object(folder / "run.json", "nibble") ||
         (fs::exists(folder / "tokens.bin", failure) && fs::exists(folder / "samples.bin", failure));
}

// What lies in a folder and in the folders in it.
struct Below {
  std::vector<std::string> files;
  std::optional<fs::path> split_folder, split_file;  // with the name of another split than the folder's
  std::optional<fs::path> unread;                    // a file of a type that is not read
  bool no_data = false;                              // programs and the like
};

void look_below(const fs::path& folder, size_t kind, Below& below, int depth = 1) {
  constexpr int kDeepest = 16;
  std::error_code failure;
  if (depth > kDeepest) {
    throw InputError(folder.string(), "is more than " + std::to_string(kDeepest) + " folders below the data's",
                     "name the data files; is there a link to a folder above it?");
  }
  const fs::path dict = folder / "dataset_dict.json";
  if (!below.split_folder && fs::exists(dict, failure)) below.split_folder = dict;
  for (const fs::directory_entry& entry : entries_of(folder)) {
    const fs::path& path = entry.path();
    const size_t of_entry = kind_of(path.filename().string());
    const bool other = of_entry != kNoKind && of_entry != kind;
    if (entry.is_directory(failure)) {
      if (is_own_output(path)) continue;
      if (other && !below.split_folder) below.split_folder = path;
      look_below(path, kind, below, depth + 1);
    } else if (is_data(path)) {
      if (other && !below.split_file) below.split_file = path;
      below.files.push_back(path.string());
    } else if (is_no_data(path)) {
      below.no_data = below.no_data || !is_beside_data(path);
    } else if (!below.unread) {
      below.unread = path;
    }
  }
}

// Something with the name of a split that cannot be read.
struct Unread {
  fs::path path;
  std::string reason;
  bool may_be_none = false;  // a program, ...
};

struct Found {
  Splits splits;
  std::map<std::string, Unread> unread;  // by the name of the split
  std::vector<fs::path> folders;         // that have the name of none

  void add(const std::string& split, const std::vector<std::string>& files) {
    splits[split].insert(splits[split].end(), files.begin(), files.end());
  }
  void add_unread(const std::string& split, Unread what) {
    const auto there = unread.find(split);
    if (there == unread.end() || there->second.may_be_none) unread.insert_or_assign(split, std::move(what));
  }
};

void add_split_folder(const fs::path& folder, Found& found) {
  const std::string name = folder.filename().string();
  Below below;
  look_below(folder, kind_of(name), below);
  if (below.split_folder) {
    found.add_unread(name, Unread{folder, "holds " + below.split_folder->string() + ", of another split"});
  } else if (!below.files.empty()) {
    found.add(name, below.files);
  } else if (below.unread) {
    found.add_unread(name, Unread{folder, "holds " + below.unread->string() + ", of a type that is not read"});
  } else {
    found.add_unread(name, Unread{folder, "holds no data", below.no_data});
  }
}

Found splits_in(const fs::path& directory) {
  Found found;
  std::error_code failure;
  const bool all_folders = fs::exists(directory / "dataset_dict.json", failure);
  for (const fs::directory_entry& entry : entries_of(directory)) {
    const fs::path& path = entry.path();
    const bool is_split = kind_of(path.filename().string()) != kNoKind;
    if (entry.is_directory(failure)) {
      if (all_folders || is_split) {
        add_split_folder(path, found);
      } else if (!is_own_output(path)) {
        found.folders.push_back(path);
      }
    } else if (is_data(path)) {
      found.add(split_of(path), {path.string()});
    } else if (is_split) {
      found.add_unread(split_of(path), Unread{path, "is of a type that is not read", is_no_data(path)});
    }
  }
  return found;
}

bool has_names(const Splits& splits) { return !splits.empty() && !splits.rbegin()->first.empty(); }

std::string shown(const std::string& name) { return name.empty() ? "other files" : name; }

std::string purpose(DataSplit wanted) { return wanted == DataSplit::train ? "train" : "evaluate"; }

[[noreturn]] void refuse(const fs::path& directory, const Splits& splits, const std::vector<std::string>& likely,
                         DataSplit wanted) {
  constexpr size_t kShown = 12;
  std::vector<std::string> names;
  for (const auto& [name, files] : splits) names.push_back(names.size() < kShown ? shown(name) : "...");
  names.resize(std::min(names.size(), kShown + 1));
  const std::string& split = likely.empty() ? splits.begin()->first : likely.front();
  fs::path example = splits.at(split).front();
  std::error_code failure;
  for (const fs::path& folder : {directory / split, directory / "data" / split}) {
    if (!split.empty() && fs::is_directory(folder, failure)) example = folder;
  }
  throw InputError(directory.string(),
                   "holds the splits " + joined(names) + ", " + (likely.empty() ? "none" : "several") + " to " +
                       purpose(wanted) + " on",
                   "name the folder or the files, such as " + example.string());
}

[[noreturn]] void refuse(const Unread& unread, DataSplit wanted) {
  throw InputError(unread.path.string(), "has the name of a split to " + purpose(wanted) + " on, but " + unread.reason,
                   std::string("put ") + kDataTypes + " there, or name the files that are to be used");
}

// Where another split, or none, would be taken in the place of what has the name and cannot be read, it is refused.
std::string choose(const fs::path& directory, const Found& found, DataSplit wanted) {
  const Splits& splits = found.splits;
  const bool one = splits.size() == 1, without_splits = one && !has_names(splits);
  std::vector<std::string> likely;
  const std::array<Words, 2> kinds = {wanted == DataSplit::train ? Words(kTrain) : Words(kValidation),
                                      wanted == DataSplit::train ? Words() : Words(kTest)};
  for (const Words kind : kinds) {
    for (const std::string_view word : kind) {
      if (splits.contains(std::string(word))) return std::string(word);
      if (const auto unread = found.unread.find(std::string(word));
          unread != found.unread.end() && !unread->second.may_be_none) {
        refuse(unread->second, wanted);
      }
    }
    for (const auto& [name, files] : splits) {
      if (has(kind, split_word(name))) likely.push_back(name);
    }
    if (likely.size() == 1) return likely.front();
    if (!likely.empty()) break;
    if (without_splits) continue;
    for (const auto& [name, unread] : found.unread) {
      if (has(kind, split_word(name)) && !unread.may_be_none) refuse(unread, wanted);
    }
  }
  if (!one) refuse(directory, splits, likely, wanted);
  for (const auto& [name, unread] : found.unread) {
    const std::string_view word = split_word(name);  // none: next to a dataset_dict.json
    if (!without_splits && (word.empty() || has(kinds[0], word) || has(kinds[1], word))) refuse(unread, wanted);
  }
  return splits.begin()->first;
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

// Adds what is in folders that have the name of no split: next to splits as other files, else to a directory that is
// taken whole.
void add_folders(const fs::path& directory, Found& found) {
  Below below;
  for (const fs::path& folder : found.folders) look_below(folder, kNoKind, below);
  if (below.files.empty()) return;
  const std::optional<fs::path>& split = below.split_folder ? below.split_folder : below.split_file;
  if (split && !has_names(found.splits)) {
    const std::string remedy = "name the folder of the data, such as " + split->parent_path().string();
    if (found.splits.empty())
      throw InputError(directory.string(), std::string("holds no ") + kDataTypes + " file", remedy);
    throw InputError(directory.string(),
                     "holds data files, and a split in a folder of another name: " + split->string(),
                     remedy + ", or the files");
  }
  found.add("", below.files);
  std::ranges::sort(found.splits.at(""));
}

}  // namespace

DirectoryFiles files_of_directory(const fs::path& directory, DataSplit wanted) {
  Found found = splits_in(directory);
  const auto inner = std::ranges::find(found.folders, directory / "data");
  if (inner != found.folders.end()) {
    Found below = splits_in(*inner);
    for (const auto& [name, unread] : below.unread) found.add_unread(name, unread);
    if (!has_names(found.splits)) {
      found.folders.erase(inner);
      for (const auto& [name, files] : below.splits) found.add(name, files);
      std::ranges::move(below.folders, std::back_inserter(found.folders));
    }
  }
  add_folders(directory, found);
  if (found.splits.empty()) {
    for (const auto& [name, unread] : found.unread) {
      if (unread.may_be_none) continue;
      throw InputError(unread.path.string(), unread.reason, std::string("give a ") + kDataTypes + " file");
    }
    throw InputError(directory.string(), std::string("holds no ") + kDataTypes + " file", "name the data files");
  }
  DirectoryFiles taken;
  taken.split = choose(directory, found, wanted);
  for (auto& [name, files] : found.splits) {
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
