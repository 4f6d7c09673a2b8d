#include "nibble/core/data/encoded_cache.h"

#include <gmock/gmock.h>

#include <fstream>

#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::byte_encoder;
using test::Files;
using test::shown;

class EncodedCacheTest : public ::testing::Test {
 protected:
  // Counts how often it is asked to encode.
  Encoder encoder(const std::string& fingerprint = "bytes") {
    Encoder result = byte_encoder();
    result.fingerprint = fingerprint;
    result.encode = [this, encode = result.encode](std::string_view text, const TakeTokens& take) {
      ++encoded_;
      encode(text, take);
    };
    return result;
  }
  Dataset load(const DataOptions& options, const Encoder& with) { return Dataset::load({{path_, 2.0}}, options, with); }
  DataOptions options() {
    DataOptions result;
    result.cache = files_.path("cache");
    result.max_length = 64;
    return result;
  }
  std::vector<std::string> all(const Dataset& dataset) {
    std::vector<std::string> texts;
    for (int64_t i = 0; i < dataset.size(); ++i) texts.push_back(shown(dataset.sample(i), true));
    return texts;
  }
  void write_lines(int count) {
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines += R"({"prompt": "question )" + std::to_string(i) + R"(", "completion": "answer"})" + "\n";
    path_ = files_.write("a.jsonl", lines);
  }

  Files files_;
  std::string path_;
  std::atomic<int64_t> encoded_ = 0;
};

TEST_F(EncodedCacheTest, TheSameDataIsEncodedOnceAndIsTheSameAsInMemory) {
  write_lines(3000);
  const Dataset in_memory = load({.max_length = 64}, encoder());
  const Dataset first = load(options(), encoder());
  const int64_t asked = encoded_;
  const Dataset second = load(options(), encoder());
  EXPECT_EQ(encoded_, asked) << "the second run takes it from the directory";
  for (const Dataset* dataset : {&first, &second}) {
    EXPECT_EQ(all(*dataset), all(in_memory));
    EXPECT_EQ(dataset->fingerprint(), in_memory.fingerprint());
    EXPECT_EQ(dataset->weights(), in_memory.weights());
    EXPECT_EQ(dataset->report().trained_tokens, in_memory.report().trained_tokens);
    EXPECT_EQ(dataset->report().lengths, in_memory.report().lengths);
    ASSERT_EQ(dataset->report().files.size(), 1U);
    EXPECT_EQ(dataset->report().files[0].hash, in_memory.report().files[0].hash);
    EXPECT_EQ(dataset->report().files[0].path, path_);
  }
}

TEST_F(EncodedCacheTest, OtherContentOptionsOrTokenizersAreEncodedAnew) {
  write_lines(20);
  load(options(), encoder());
  const auto is_encoded = [&](const DataOptions& asked, const Encoder& with) {
    const int64_t before = encoded_;
    load(asked, with);
    return encoded_ > before;
  };
  EXPECT_FALSE(is_encoded(options(), encoder()));
  DataOptions other = options();
  other.train_on_prompt = true;
  EXPECT_TRUE(is_encoded(other, encoder()));
  EXPECT_TRUE(is_encoded(options(), encoder("other tokenizer")));
  write_lines(21);
  EXPECT_TRUE(is_encoded(options(), encoder()));
  EXPECT_TRUE(is_encoded(options(), encoder(""))) << "without a fingerprint nothing is kept";
  EXPECT_TRUE(is_encoded(options(), encoder("")));
}

TEST_F(EncodedCacheTest, WhatIsDamagedIsMadeAgain) {
  write_lines(50);
  const std::vector<std::string> want = all(load(options(), encoder()));
  for (const char* name : {"tokens.bin", "samples.bin", "data.json"}) {
    const fs::path file = fs::directory_iterator(options().cache)->path() / name;
    {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekp(40);
      bytes.put('\x7F');
    }
    const int64_t before = encoded_;
    EXPECT_EQ(all(load(options(), encoder())), want) << name;
    EXPECT_GT(encoded_, before) << name;
  }
}

}  // namespace
}  // namespace nibble
