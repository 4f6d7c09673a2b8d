#pragma once
// The data files of a directory, where it has splits as `datasets` writes them and as repositories of the Hugging Face
// Hub hold them. For .cpp files of core/data.

#include <filesystem>
#include <string>
#include <vector>

#include "nibble/core/data/data_options.h"

namespace nibble {

struct DirectoryFiles {
  std::vector<std::string> files;
  std::string split;              ///< that they are of; empty: the directory has no splits
  std::vector<std::string> rest;  ///< the other splits
};

inline constexpr const char* kDataTypes = ".jsonl, .json, .txt, .csv, .parquet or .arrow";

/// The files of `directory` for `wanted`, in the order of their names. A split is a folder in it or in its folder
/// `data`, with all below it, or the files whose names have its name as a word (train-00000-of-00002.parquet,
/// my_test.jsonl); next to a dataset_dict.json every folder is one. Names are those of `datasets`: train, training;
/// validation, eval, evaluation, dev, valid, val; test, testing. Taken is the split of exactly such a name, in this
/// order, else the only one with the word in its name (train_sft); the only one there is whatever its name. Files of
/// other folders belong to a directory without splits, and are other files next to splits. Of a folder with the
/// state.json of Dataset.save_to_disk the files that it names are read; README.txt, LICENSE.txt and the like never, nor
/// what runs and `data.cache` wrote.
/// Throws InputError, with the splits that are there, where none or several remain; where there are no data files;
/// where what has the name of a wanted split cannot be read and another would be taken; where folders of other names
/// have splits in them next to plain files; and where a shard of those taken is missing.
DirectoryFiles files_of_directory(const std::filesystem::path& directory, DataSplit wanted);

}  // namespace nibble
