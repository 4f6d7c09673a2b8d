#include "nibble/core/data/record_reader.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "nibble/core/base/error.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using test::error_of;
using test::Files;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> read(const std::string& path) {
  RecordReader reader(path);
  std::vector<std::string> texts;
  for (RawRecord record; reader.next(record);) texts.push_back(record.text);
  return texts;
}

std::vector<std::string> places(const std::string& path) {
  RecordReader reader(path);
  std::vector<std::string> found;
  for (RawRecord record; reader.next(record);) found.push_back(record_place("f", record));
  return found;
}

TEST(RecordReader, LinesMayEndInCrLfAndTheLastNewlineMayBeMissing) {
  Files files;
  EXPECT_THAT(read(files.write("a.jsonl", "{\"a\":1}\r\n\n  \r\n{\"b\":2}")), ElementsAre("{\"a\":1}", "{\"b\":2}"));
  EXPECT_THAT(places(files.write("b.jsonl", "{}\r\n\n{}\n")), ElementsAre("f:1:1", "f:3:1"));
}

TEST(RecordReader, ByteOrderMarkIsSkipped) {
  Files files;
  EXPECT_THAT(read(files.write("a.jsonl", "\xEF\xBB\xBF{\"a\":1}\n")), ElementsAre("{\"a\":1}"));
  EXPECT_THAT(places(files.write("b.jsonl", "\xEF\xBB\xBF{\"a\":1}\n")), ElementsAre("f:1:1"));
  EXPECT_THAT(read(files.write("a.txt", "\xEF\xBB\xBFhello")), ElementsAre("hello"));
}

TEST(RecordReader, EmptyFilesHaveNoRecords) {
  Files files;
  EXPECT_THAT(read(files.write("a.jsonl", "")), ElementsAre());
  EXPECT_THAT(read(files.write("b.jsonl", "\n \n")), ElementsAre());
  EXPECT_THAT(read(files.write("c.json", "[ ]\n")), ElementsAre());
  EXPECT_THAT(read(files.write("d.txt", "\n\n")), ElementsAre());
}

TEST(RecordReader, ArrayElementsAreSplitByBracketsOutsideOfStrings) {
  Files files;
  const std::string first = R"({"a": "],}\"[", "b": [1, {"c": 2}]})", second = R"({"a":"\\"})";
  const std::string path = files.write("a.json", " [\n  " + first + ",\n  " + second + "\n]\n");
  EXPECT_THAT(read(path), ElementsAre(first, second));
  EXPECT_THAT(places(path), ElementsAre("f:2:3", "f:3:3"));
}

TEST(RecordReader, JsonFilesMayHoldOneObjectALine) {
  Files files;
  EXPECT_THAT(read(files.write("a.json", "{\"a\":1}\n{\"b\":2}\n")), ElementsAre("{\"a\":1}", "{\"b\":2}"));
}

TEST(RecordReader, RecordsMayBeLongerThanTheBuffer) {
  Files files;
  const std::string value = "{\"a\":\"" + std::string(700000, 'x') + "\"}";
  EXPECT_THAT(read(files.write("a.jsonl", value + "\n" + value)), ElementsAre(value, value));
  EXPECT_THAT(read(files.write("a.json", "[" + value + "," + value + "]")), ElementsAre(value, value));
}

TEST(RecordReader, TextFilesAreDocumentsBetweenEndOfTextMarks) {
  Files files;
  EXPECT_THAT(read(files.write("a.txt", "one\n\nstill one\n")), ElementsAre("one\n\nstill one"));
  EXPECT_THAT(read(files.write("b.txt", "\none\r\ntwo\n<|endoftext|>\n\nthree<|endoftext|><|endoftext|>\n")),
              ElementsAre("one\ntwo", "three"));
}

TEST(RecordReader, BrokenFilesAreNamedWithLineAndColumn) {
  struct Case {
    const char* name;
    std::string bytes;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"a.json", "[{\"a\":1}", "a.json:1:9: the array is not closed"},
      {"b.json", "[{\"a\":1", "b.json:1:2: the file ends inside this record"},
      {"c.json", "[{\"a\":\"x", "c.json:1:2: the file ends inside this record"},
      {"d.json", "[{\"a\":1} {\"b\":2}]", "d.json:1:10: expected , or ]"},
      {"e.json", "[{\"a\":1},]", "e.json:1:10: expected a record"},
      {"f.json", "[\n{}]\n{}", "f.json:3:1: there is text after the array"},
      {"g.txt", "a\n\xC3\xA4 \xFFx", "g.txt:2:3: is not UTF-8"},
      {"h.jsonl", "\xFF\xFE{}", "h.jsonl: is not UTF-8 (it begins like UTF-16)"},
      {"i.jsonl", "\xEFzz", "i.jsonl:1:2: is not UTF-8"},
      {"j.txt", "\xED\xA0\x80", "j.txt:1:1: is not UTF-8"},  // a surrogate
  };
  Files files;
  for (const Case& c : cases) {
    const std::string path = files.write(c.name, c.bytes);
    EXPECT_THAT(error_of<InputError>([&] { read(path); }), HasSubstr(c.message)) << c.name;
  }
}

TEST(RecordReader, RecordsAboveTheCapAreRefusedBeforeTheyFillMemory) {
  Files files;
  const std::string path = files.write("big.jsonl", "{}\n" + std::string(size_t{66} << 20, 'x'));
  EXPECT_THAT(error_of<InputError>([&] { read(path); }), HasSubstr("big.jsonl:2:1: is longer than 64 MiB"));
}

TEST(RecordReader, HashIsOfTheWholeFile) {
  Files files;
  const auto hash = [&](const std::string& path) {
    RecordReader reader(path);
    for (RawRecord record; reader.next(record);) {
    }
    return reader.hash();
  };
  const uint64_t one = hash(files.write("a.jsonl", "{\"a\":1}\n"));
  EXPECT_EQ(one, hash(files.write("b.jsonl", "{\"a\":1}\n")));
  EXPECT_NE(one, hash(files.write("c.jsonl", "{\"a\":1}\n\n")));
}

TEST(DataFiles, DirectoriesAndPatternsAreSorted) {
  Files files;
  for (const char* name : {"d/b.jsonl", "d/a.json", "d/c.txt", "d/.hidden.txt", "d/readme.md"}) files.write(name, "x");
  const auto names = [&](const std::string& path) {
    std::vector<std::string> found;
    for (const DataFile& file : find_data_files({{files.path(path), 1.0}})) {
      found.push_back(std::filesystem::path(file.path).filename().string());
    }
    return found;
  };
  EXPECT_THAT(names("d"), ElementsAre("a.json", "b.jsonl", "c.txt"));
  EXPECT_THAT(names("d/*.json*"), ElementsAre("a.json", "b.jsonl"));
  files.write("odd [1]*.txt", "x");
  EXPECT_THAT(names("odd [1]*.txt"), ElementsAre("odd [1]*.txt"));
}

TEST(DataFiles, SourcesKeepTheirOrderAndNumber) {
  Files files;
  const std::string b = files.write("b.txt", "x"), a = files.write("a.txt", "x");
  const auto found = find_data_files({{b, 1.0}, {a, 2.0}});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].path, b);
  EXPECT_EQ(found[1].source, 1u);
}

TEST(DataFiles, WhatIsNoDataFileIsRefused) {
  Files files;
  files.write("empty/readme.md", "");
  ASSERT_EQ(::mkfifo(files.path("pipe.jsonl").c_str(), 0600), 0);
  files.write("table.parquet", "PAR1");
  const std::vector<std::pair<std::string, std::string>> cases = {{"none.jsonl", "no such file"},
                                                                  {"*.csv", "no such file, and no file matches"},
                                                                  {"empty", "holds no .jsonl"},
                                                                  {"pipe.jsonl", "is not a regular file"},
                                                                  {"table.parquet", "has a type that is not read"}};
  for (const auto& [name, message] : cases) {
    const std::string path = files.path(name);
    EXPECT_THAT(error_of<InputError>([&] { find_data_files({{path, 1.0}}); }), HasSubstr(path + ": " + message));
  }
  EXPECT_THAT(error_of<InputError>([&] { RecordReader(files.path("pipe.jsonl")); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of<InputError>([&] { RecordReader(files.path("empty")); }), HasSubstr("is a directory"));
}

}  // namespace
}  // namespace nibble
