#include "nibble/core/data/records/directory_files.h"

#include <gmock/gmock.h>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using test::error_of;
using test::Files;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class Directory : public ::testing::Test {
 protected:
  void have(std::initializer_list<const char*> names) {
    for (const char* name : names) files_.write(std::string("d/") + name, "x");
  }
  /// What is taken, by its path in the directory.
  std::vector<std::string> taken(DataSplit wanted = DataSplit::train) {
    std::vector<std::string> found;
    for (const DataFile& file : find_data_files({{files_.path("d"), 1.0}}, wanted)) {
      found.push_back(file.path.substr(files_.path("d/").size()));
    }
    return found;
  }
  std::string refused(DataSplit wanted = DataSplit::train) {
    return error_of<InputError>([&] { taken(wanted); });
  }
  Files files_;
};

constexpr DataSplit kEval = DataSplit::eval;

TEST_F(Directory, OfADatasetDictHasItsSplitsAsFolders) {
  have({"dataset_dict.json", "train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow",
        "train/dataset_info.json", "train/cache-0123456789abcdef.arrow", "test/data-00000-of-00001.arrow",
        "test/dataset_info.json"});
  EXPECT_THAT(taken(), ElementsAre("train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow"));
  EXPECT_THAT(taken(kEval), ElementsAre("test/data-00000-of-00001.arrow"));
  have({"validation/data-00000-of-00001.arrow"});
  EXPECT_THAT(taken(kEval), ElementsAre("validation/data-00000-of-00001.arrow")) << "before test";
}

TEST_F(Directory, OfADatasetDictWithOtherSplitsIsRefusedNamingThem) {
  have({"dataset_dict.json", "english/data-00000-of-00001.arrow"});
  EXPECT_THAT(taken(), ElementsAre("english/data-00000-of-00001.arrow"));
  have({"german/data-00000-of-00001.arrow"});
  EXPECT_THAT(refused(), EndsWith("d: holds the splits english, german, none to train on; name the folder or the "
                                  "files, such as " +
                                  files_.path("d/english")));
  EXPECT_THAT(refused(kEval), HasSubstr("none to evaluate on"));
}

TEST_F(Directory, OfARepositoryHasItsSplitsAsFilesAlsoInItsFolderData) {
  have({"README.md", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
        "data/test-00000-of-00001-a09b74b3ef9c3b56.parquet", "data/dev-00000-of-00001.parquet"});
  EXPECT_THAT(taken(), ElementsAre("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"));
  EXPECT_THAT(taken(kEval), ElementsAre("data/dev-00000-of-00001.parquet"));
  EXPECT_THAT(split_notes({{files_.path("d"), 1.0}}),
              ElementsAre("note: " + files_.path("d") + ": its split train is taken (2 files), not dev, test"));
}

TEST_F(Directory, OfFilesTakesTheWordInTheirNames) {
  have({"my_train.jsonl", "Test.csv", "README.md"});
  EXPECT_THAT(taken(), ElementsAre("my_train.jsonl"));
  EXPECT_THAT(taken(kEval), ElementsAre("Test.csv"));
  have({"contest.jsonl"});
  EXPECT_THAT(taken(), ElementsAre("my_train.jsonl"));
  EXPECT_THAT(split_notes({{files_.path("d"), 1.0}}).front(), HasSubstr("(1 file), not other files, test"));
}

TEST_F(Directory, OfFilesThatNobodyNamedForTrainingBesideATestIsRefused) {
  have({"questions.jsonl", "test.jsonl"});
  EXPECT_THAT(refused(), AllOf(HasSubstr("holds the splits other files, test, none to train on"),
                               EndsWith("such as " + files_.path("d/questions.jsonl"))));
  EXPECT_THAT(taken(kEval), ElementsAre("test.jsonl"));
}

TEST_F(Directory, OfSeveralSplitsForTrainingIsRefusedUnlessOneIsTheirWholeName) {
  have({"train_gen-00000-of-00001.parquet", "train_sft-00000-of-00001.parquet", "test_sft-00000-of-00001.parquet"});
  EXPECT_THAT(refused(), AllOf(HasSubstr("splits test_sft, train_gen, train_sft, several to train on"),
                               EndsWith("such as " + files_.path("d/train_gen-00000-of-00001.parquet"))));
  EXPECT_THAT(taken(kEval), ElementsAre("test_sft-00000-of-00001.parquet"));
  have({"train/a.parquet"});
  EXPECT_THAT(taken(), ElementsAre("train/a.parquet"));
}

// What load_dataset of datasets 5.2 makes of this directory: {'train': both, 'test': ...}.
TEST_F(Directory, OfFilesWithoutShardsTakesAllWhoseNamesHaveTheWord) {
  have({"train_sft.jsonl", "train_gen.jsonl", "test_sft.jsonl"});
  EXPECT_THAT(taken(), ElementsAre("train_gen.jsonl", "train_sft.jsonl"));
  EXPECT_THAT(taken(kEval), ElementsAre("test_sft.jsonl"));
}

TEST_F(Directory, OfOneSplitOrNoneIsTakenWhole) {
  have({"a.jsonl", "b.jsonl"});
  EXPECT_THAT(taken(), ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_THAT(taken(kEval), ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_THAT(split_notes({{files_.path("d"), 1.0}}), ElementsAre());
  have({"data/c.jsonl", "x/y/d.jsonl", "lost+found/e.jsonl", "x/.git/f.json"});
  EXPECT_THAT(taken(), ElementsAre("a.jsonl", "b.jsonl", "data/c.jsonl", "x/y/d.jsonl"));
  Files other;
  const std::string only = other.write("e/test-00000-of-00001.parquet", "x");
  EXPECT_EQ(find_data_files({{other.path("e"), 1.0}}).front().path, only);
  EXPECT_THAT(split_notes({{other.path("e"), 1.0}}).front(), EndsWith("its split test is taken (1 file)"));
}

TEST_F(Directory, WhoseDataLieDeeperSaysWhere) {
  have({"main/train-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet"});
  EXPECT_THAT(refused(), EndsWith("name the folder of the data, such as " + files_.path("d/main")));
}

TEST_F(Directory, WithSplitsHasOtherFilesInItsOtherFolders) {
  have({"train.jsonl", "test.jsonl", "x/train.jsonl"});
  EXPECT_THAT(taken(), ElementsAre("train.jsonl"));
  EXPECT_THAT(split_notes({{files_.path("d"), 1.0}}).front(), HasSubstr("(1 file), not other files, test"));
}

TEST_F(Directory, OfPlainFilesBesideSplitsInAFolderIsRefused) {
  have({"a.jsonl", "x/train.jsonl", "x/test.jsonl"});
  EXPECT_THAT(refused(), AllOf(HasSubstr("holds data files, and a split in a folder of another name"),
                               EndsWith("such as " + files_.path("d/x") + ", or the files")));
}

TEST_F(Directory, PagesAboutTheDataAndOutputsAreNoData) {
  have({"LICENSE.txt", "README.txt", "x/a.jsonl", "x/Readme.txt", "out/metrics.jsonl", "cache/0a/tokens.bin",
        "cache/0a/samples.bin", "cache/0a/data.json"});
  files_.write("d/out/run.json", R"({"nibble": "0.1.0"})");
  EXPECT_THAT(taken(), ElementsAre("x/a.jsonl"));
}

TEST_F(Directory, OfASavedDatasetIsReadWhatItsStateNames) {
  const std::string state = R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": "train"})";
  have({"dataset_dict.json", "train/data-00000-of-00001.arrow", "train/data-00000-of-00002.arrow",
        "train/data-00001-of-00002.arrow", "train/dataset_info.json"});
  files_.write("d/train/state.json", state);
  EXPECT_THAT(taken(), ElementsAre("train/data-00000-of-00001.arrow"));
  files_.write("e/state.json", state);
  EXPECT_THAT(error_of<InputError>([&] {
                find_data_files({{files_.path("e"), 1.0}});
              }),
              HasSubstr("e/data-00000-of-00001.arrow: is not there, but state.json names it; save the data set again"));
  const std::string saved = files_.write("e/data-00000-of-00001.arrow", "x");
  files_.write("e/data-00000-of-00002.arrow", "x");
  ASSERT_EQ(find_data_files({{files_.path("e"), 1.0}}).size(), 1u);
  EXPECT_EQ(find_data_files({{files_.path("e"), 1.0}}).front().path, saved);
  for (const char* broken : {"[]", "{", R"({"_data_files": [1]})", R"({"_data_files": [{"filename": 1}]})",
                             R"({"_data_files": [{"filename": ".."}]})",
                             R"({"_data_files": [{"filename": "../train/data-00000-of-00001.arrow"}]})"}) {
    files_.write("d/train/state.json", broken);
    EXPECT_THAT(refused(), HasSubstr("d/train/state.json")) << broken;
  }
}

TEST_F(Directory, ASplitIsReadWithAllBelowIt) {
  have({"train/part1/a.jsonl", "train/b.jsonl", "test.jsonl"});
  EXPECT_THAT(taken(), ElementsAre("train/b.jsonl", "train/part1/a.jsonl"));
  have({"train/test/c.jsonl"});
  EXPECT_THAT(refused(), AllOf(HasSubstr("d/train: has the name of a split to train on, but holds "),
                               HasSubstr("d/train/test, of another split")));
  EXPECT_THAT(taken(kEval), ElementsAre("test.jsonl"));
}

TEST_F(Directory, ASplitThatCannotBeReadIsNotReplacedByAnother) {
  const auto refusal = [&](const char* split, const std::string& unread, DataSplit wanted) {
    Files files;
    files.write(std::string("d/") + split, "x");
    if (unread.ends_with('/')) {
      std::filesystem::create_directories(files.path("d/" + unread));
    } else {
      files.write("d/" + unread, "x");
    }
    return error_of<InputError>([&] { find_data_files({{files.path("d"), 1.0}}, wanted); });
  };
  for (const char* unread : {"train.tsv", "train.jsonl.bz2", "train/part-0000", "train/a/b.tsv", "training/", "train",
                             "train_sft/x.tsv", "data/train.tsv", "train.py", "train/LICENSE.txt"}) {
    EXPECT_THAT(refusal("test.jsonl", unread, DataSplit::train), HasSubstr("has the name of a split to train on, but "))
        << unread;
  }
  for (const char* unread : {"validation.tsv", "dev/", "test/a.xlsx"}) {
    EXPECT_THAT(refusal("train.jsonl", unread, kEval), HasSubstr("has the name of a split to evaluate on, but "))
        << unread;
  }
  EXPECT_THAT(refusal("test.jsonl", "val/", kEval), HasSubstr("d/val: has the name of a split to evaluate on, but "
                                                              "holds no data; put .jsonl, "));
  EXPECT_THAT(refusal("a.jsonl", "train.tsv", DataSplit::train), HasSubstr("of a type that is not read"));
  have({"a.jsonl", "train.py", "eval/run.sh", "training_state.bin"});
  EXPECT_THAT(taken(), ElementsAre("a.jsonl")) << "no splits";
  have({"train.jsonl", "train.tsv", "test.jsonl", "eval.py"});
  EXPECT_THAT(taken(), ElementsAre("train.jsonl"));
  EXPECT_THAT(taken(kEval), ElementsAre("test.jsonl"));
}

TEST_F(Directory, WithALinkToAFolderAboveIsRefused) {
  have({"a.jsonl", "x/b.jsonl"});
  std::filesystem::create_directory_symlink("..", files_.path("d/x/up"));
  EXPECT_THAT(refused(), HasSubstr("more than 16 folders below the data's"));
}

TEST_F(Directory, WhatCannotBeReadIsRefused) {
  have({"train-00000-of-00002.jsonl"});
  std::filesystem::create_symlink("nowhere", files_.path("d/train-00001-of-00002.jsonl"));
  EXPECT_THAT(refused(), HasSubstr("d/train-00001-of-00002.jsonl: is a link to a file that is not there"));
}

TEST_F(Directory, WithoutAllShardsOfASetIsRefused) {
  have({"train-00000-of-00003-0123456789abcdef.parquet", "train-00002-of-00003-fedcba9876543210.parquet",
        "test-00000-of-00001.parquet"});
  EXPECT_THAT(refused(), HasSubstr("d/train-00001-of-00003: is missing beside other shards of the set; get it, or name "
                                   "the files"));
  EXPECT_THAT(taken(kEval), ElementsAre("test-00000-of-00001.parquet"));
  have({"train-00001-of-00003.parquet"});
  EXPECT_EQ(taken().size(), 3u);
}

TEST_F(Directory, ShardsMayBeCountedFromOne) {
  have({"part-00001-of-00002.jsonl"});
  EXPECT_THAT(refused(), HasSubstr("d/part-00000-of-00002: is missing"));
  have({"part-00002-of-00002.jsonl"});
  EXPECT_EQ(taken().size(), 2u);
}

}  // namespace
}  // namespace nibble
