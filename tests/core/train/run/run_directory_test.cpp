#include "nibble/core/train/run/run_directory.h"

#include <gtest/gtest.h>

#include "nibble/core/base/error.h"
#include "nibble/core/train/run/own_contents.h"
#include "nibble/tests/core/train/toy.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr const char* kThesis = "the only copy";
// Of files, how those of nibble begin.
constexpr const char* kLine = "{\"step\":1,\"split\":\"train\",\"loss\":2.5,\"lr\":0.01}\n";

struct RunDirectory : testing::Test {
  test::TemporaryDirectory directory;
  RunOptions options;

  RunDirectory() {
    options.dir = directory.path() / "out";
    options.total_steps = 10;
    options.recipe = "{}\n";
  }

  fs::path at(const std::string& name) const { return options.dir / name; }

  void put(const std::string& name, const std::string& text = kThesis) const {
    fs::create_directories(at(name).parent_path());
    test::write_bytes(at(name), text);
  }

  std::string text_of(const std::string& name) const {
    return fs::exists(at(name)) ? test::read_bytes(at(name)) : "gone";
  }

  /// A run that is killed before its first step; the checkpoint of step `save` as well where it is not 0.
  void begin(int64_t save = 0) const {
    const Observer quiet;
    test::ToyRank rank;
    nibble::Run run = nibble::Run::open(options, rank.context, quiet);
    test::ToyModel model(rank.pool);
    Optimizer optimizer(model.parameters(), {}, rank.pool);
    run.restore(optimizer);
    while (run.step() < save && run.next_step()) run.checkpoint_if_due(optimizer);
    if (save > 0) run.save(optimizer, Unfinished::nothing);
  }

  std::string refusal() const {
    return test::error_of<UsageError>([&] { begin(); });
  }

  void start_afresh() {
    options.resume = "never";
    options.force = true;
  }
};

TEST_F(RunDirectory, FilesOfOthersMakeNoRunAndAreNotOverwritten) {
  const std::pair<const char*, const char*> files[] = {{"metrics.jsonl", "{\"epoch\":0,\"loss\":1}\n"},
                                                       {"metrics.jsonl", "{\"step\": 1, \"split\": \"train\"}\n"},
                                                       {"metrics.jsonl", "{\"step\":1,\"loss\":1}\n"},
                                                       {"recipe.json", "{\"model\": {}}"},
                                                       {"samples.jsonl", "{\"step\":1,\"text\":\"\"}\n"},
                                                       {"run.json", "{}"},
                                                       {"report.html", "<!doctype html>\n<title>thesis</title>"},
                                                       {"diagnostic.json", "{}"},
                                                       {"rollouts/step-3.jsonl", kThesis},
                                                       {"profile/rank-0.json", "{}"}};
  for (const auto& [name, text] : files) {
    put(name, text);
    for (const char* resume : {"auto", "never"}) {
      options.resume = resume;
      EXPECT_NE(refusal().find(std::string("out: has a ") + name + " that is not of a run"), std::string::npos)
          << name << ": " << refusal();
      EXPECT_EQ(text_of(name), text);
    }
    fs::remove_all(options.dir);
  }
}

TEST_F(RunDirectory, FilesOfOthersInARunAreNotOverwritten) {
  begin(2);
  for (const char* name : {"metrics.jsonl", "recipe.json", "samples.jsonl", "run.json", "report.html"}) {
    const std::string before = text_of(name);
    put(name);
    EXPECT_NE(refusal().find(name), std::string::npos) << refusal();
    EXPECT_EQ(text_of(name), kThesis);
    before == "gone" ? void(fs::remove(at(name))) : put(name, before);
  }
  begin();
}

TEST_F(RunDirectory, ForceOverwritesFilesOfOthersThatTheRunWritesAndNoMore) {
  for (const char* name : {"metrics.jsonl", "recipe.json", "checkpoints/mine", "checkpoints/.tmp-x/mine",
                           "rollouts/thesis", "profile/rank-0.json", "tensorboard/notes", "report.html"}) {
    put(name);
  }
  start_afresh();
  begin();
  EXPECT_EQ(text_of("metrics.jsonl"), "");
  EXPECT_EQ(text_of("recipe.json"), "{}\n");
  for (const char* name : {"checkpoints/mine", "checkpoints/.tmp-x/mine", "rollouts/thesis", "profile/rank-0.json",
                           "tensorboard/notes", "report.html"}) {
    EXPECT_EQ(text_of(name), kThesis) << name;
  }
}

TEST_F(RunDirectory, StartingAfreshRemovesWhatIsOfTheRunAndNothingElse) {
  begin(2);
  const char* const own[] = {"adapter/weights",       "value_model/weights", "samples.jsonl", "run.json",
                             "rollouts/step-1.jsonl", "profile/rank-0.json", "report.html",   "diagnostic.json"};
  for (const char* result : {"adapter", "value_model"}) put(std::string(result) + "/.nibble.files", "weights\n");
  for (const char* name : own) put(name, "{}");
  put("samples.jsonl", "{\"step\":1,\"prompt\":\"\"}\n");
  put("run.json", "{\"nibble\":\"0.1.0\"}");
  put("report.html", std::string(kPageMark));
  put("diagnostic.json", "{\"bad_steps\":[]}");
  const char* const others[] = {"checkpoints/epoch=3.ckpt", "checkpoints/.tmp-x/mine", "checkpoints/step-x/mine",
                                "tensorboard/notes",        "rollouts/thesis",         "rollouts/step-1.jsonl.bak",
                                "profile/me.txt",           "tokenizer/thesis",        "thesis.tex"};
  for (const char* name : others) put(name);
  start_afresh();
  begin();
  for (const char* name : own) EXPECT_FALSE(fs::exists(at(name))) << name;
  for (const char* name : others) EXPECT_EQ(text_of(name), kThesis) << name;
  EXPECT_TRUE(checkpoint_steps(at("checkpoints")).empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(at("tensorboard")), fs::directory_iterator()), 2) << "and notes";
}

TEST_F(RunDirectory, ForceTakesNoDirectoryForALog) {
  put("metrics.jsonl/thesis");
  options.force = true;
  EXPECT_THROW(begin(), IoError);
  EXPECT_EQ(text_of("metrics.jsonl/thesis"), kThesis);
}

TEST_F(RunDirectory, ResultsOfOthersAreKeptWithForceToo) {
  for (const bool has_run : {false, true}) {
    for (const char* name : {"adapter", "model", "value_adapter", "value_model"}) {
      for (const bool force : {false, true}) {
        if (has_run) begin();
        put(std::string(name) + "/thesis");
        options.force = force;
        EXPECT_NE(refusal().find(has_run || force ? name : "holds the result of a run"), std::string::npos)
            << refusal();
        EXPECT_EQ(text_of(std::string(name) + "/thesis"), kThesis);
        fs::remove_all(options.dir);
        options.force = false;
      }
    }
  }
}

TEST_F(RunDirectory, DirectoriesOfOthersWithTheNameOfACheckpointAreKept) {
  for (const bool force : {false, true}) {
    options.force = force;
    for (const char* file : {"thesis", "manifest.json", "state.json", "recipe.json"}) {
      put(std::string("checkpoints/step-5/") + file, "{}");
      EXPECT_NE(refusal().find("step-5: is no checkpoint of nibble"), std::string::npos) << refusal();
      EXPECT_EQ(text_of(std::string("checkpoints/step-5/") + file), "{}");
      fs::remove_all(options.dir);
    }
  }
}

TEST_F(RunDirectory, ARunThatWasKilledIsKnownByAnyPartOfIt) {
  const std::string line = kLine;
  for (size_t length = 0; length <= line.size(); ++length) {
    put("metrics.jsonl", line.substr(0, length));
    EXPECT_TRUE(detail::look(options.dir).has_run()) << length;
  }
  options.resume = "never";
  EXPECT_NE(refusal().find("holds a run already"), std::string::npos) << refusal();
  options.resume = "auto";
  begin();
  options.recipe = "{\"other\": 1}\n";
  begin();  // nothing logged yet, and a recipe.json
  EXPECT_EQ(text_of("recipe.json"), options.recipe);
  fs::remove_all(at("tensorboard"));
  EXPECT_NE(refusal().find("recipe.json"), std::string::npos) << "a log of nobody, and a recipe of the user";
}

// remove_tree() ends anywhere when it is killed.
TEST_F(RunDirectory, WhatIsLeftOfACheckpointIsKnown) {
  begin(2);
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(at("checkpoints/step-2"))) files.push_back(file.path());
  for (const fs::path& last : files) {
    if (last.filename() == "recipe.json") continue;
    SCOPED_TRACE(last);
    fs::remove_all(options.dir);
    begin(2);
    for (const fs::path& file : files) {
      if (file != last) fs::remove(file);
    }
    fs::remove(at("metrics.jsonl"));
    EXPECT_TRUE(detail::look(options.dir).has_run());
    fs::remove(last);
    EXPECT_TRUE(detail::look(options.dir).has_run()) << "an empty directory";
  }
  start_afresh();
  begin();
  EXPECT_FALSE(fs::exists(at("checkpoints")));
}

}  // namespace
}  // namespace nibble
