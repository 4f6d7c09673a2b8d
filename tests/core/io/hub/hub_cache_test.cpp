#include "nibble/core/io/hub/hub_cache.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "nibble/core/base/error.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::HasSubstr;

/// An environment in which only the variables given say where the cache is.
class HubCache : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value != nullptr ? std::optional<std::string>(value) : std::nullopt);
      ::unsetenv(name);
    }
    ::setenv("HF_HUB_CACHE", root_.path().c_str(), 1);
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
  }
  fs::path snapshot(const std::string& repository, const std::string& revision) {
    const fs::path result = root_ / repository / "snapshots" / revision;
    fs::create_directories(result);
    return result;
  }
  void point(const std::string& repository, const std::string& revision) {
    fs::create_directories(root_ / repository / "refs");
    test::write_bytes(root_ / repository / "refs/main", revision);
  }

  static constexpr const char* kNames[] = {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
  test::TemporaryDirectory root_;
};

TEST_F(HubCache, LiesWhereHuggingFacesToolsPutIt) {
  ::setenv("HOME", "/people/me", 1);
  EXPECT_EQ(hub_cache(), root_.path());
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_EQ(hub_cache(), "/people/me/.cache/huggingface/hub");
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(hub_cache(), "/cache/huggingface/hub");
  ::setenv("HF_HOME", "/hf", 1);
  EXPECT_EQ(hub_cache(), "/hf/hub");
}

TEST_F(HubCache, AnIdIsTheSnapshotThatMainNames) {
  snapshot("models--a--b", "1111");
  const fs::path main = snapshot("models--a--b", "2222");
  point("models--a--b", "2222\n");
  EXPECT_EQ(find_in_hub("a/b", kHubModels), main);
  EXPECT_EQ(find_in_hub("a/b/onnx", kHubModels), main / "onnx");
  EXPECT_EQ(find_in_hub(root_ / "models--a--b", kHubModels), main);
  EXPECT_EQ(find_in_hub(root_ / "models--a--b/", kHubModels), main);
  EXPECT_EQ(find_in_hub("a/b", kHubDatasets), "a/b");
  const fs::path old = snapshot("models--gpt2", "3333");
  EXPECT_EQ(find_in_hub("gpt2", kHubModels), old);
  EXPECT_EQ(find_in_hub("gpt2/onnx", kHubModels), old / "onnx");
  const fs::path data = snapshot("datasets--a--b", "4444");
  EXPECT_EQ(find_in_hub("a/b/main/train-*.parquet", kHubDatasets), data / "main/train-*.parquet");
}

TEST_F(HubCache, APathThatExistsIsThatPath) {
  snapshot("models--tests", "1111");
  EXPECT_EQ(find_in_hub(root_ / "models--tests/snapshots/1111", kHubModels), root_ / "models--tests/snapshots/1111");
  const fs::path before = fs::current_path();
  fs::current_path(root_.path());
  fs::create_directory("tests");
  EXPECT_EQ(find_in_hub("tests", kHubModels), "tests");
  fs::remove("tests");
  EXPECT_EQ(find_in_hub("tests", kHubModels), root_ / "models--tests/snapshots/1111");
  fs::current_path(before);
}

TEST_F(HubCache, WhatIsNotThereStaysAsItWasNamed) {
  for (const char* name : {"", "a/b", "~/a", "../b", "/a/b", "a//b", "*"}) {
    EXPECT_EQ(find_in_hub(name, kHubModels), name) << name;
  }
  fs::create_directories(root_ / "models--a--b/blobs");  // a download that was stopped
  EXPECT_EQ(find_in_hub("a/b", kHubModels), "a/b");
}

TEST_F(HubCache, SnapshotsThatMainDoesNotChooseAreNamed) {
  snapshot("models--a--b", "1111");
  snapshot("models--a--b", "2222");
  EXPECT_THAT(error_of<InputError>([] { find_in_hub("a/b", kHubModels); }), HasSubstr("snapshots/1111"));
  for (const char* revision : {"3333", "../..", "", "."}) {
    point("models--a--b", revision);
    EXPECT_THAT(error_of<InputError>([] { find_in_hub("a/b", kHubModels); }), HasSubstr("refs/main: names"))
        << revision;
  }
}

}  // namespace
}  // namespace nibble
