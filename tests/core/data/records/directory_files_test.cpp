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
  have({"dataset_dict.json", "train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow", "train/state.json",
        "train/dataset_info.json", "train/cache-0123456789abcdef.arrow", "test/data-00000-of-00001.arrow",
        "test/state.json", "test/dataset_info.json"});
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

TEST_F(Directory, OfOneSplitOrNoneIsTakenWhole) {
  have({"a.jsonl", "b.jsonl"});
  EXPECT_THAT(taken(), ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_THAT(taken(kEval), ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_THAT(split_notes({{files_.path("d"), 1.0}}), ElementsAre());
  have({"data/c.jsonl"});
  EXPECT_THAT(taken(), ElementsAre("a.jsonl", "b.jsonl"));
  Files other;
  const std::string only = other.write("e/test-00000-of-00001.parquet", "x");
  EXPECT_EQ(find_data_files({{other.path("e"), 1.0}}).front().path, only);
  EXPECT_THAT(split_notes({{other.path("e"), 1.0}}).front(), EndsWith("its split test is taken (1 file)"));
}

TEST_F(Directory, WhoseDataLieDeeperSaysWhere) {
  have({"main/train-00000-of-00001.parquet", "socratic/train-00000-of-00001.parquet"});
  EXPECT_THAT(refused(), EndsWith("name the folder of the data, such as " + files_.path("d/main")));
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
