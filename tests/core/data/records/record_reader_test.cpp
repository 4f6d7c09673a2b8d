#include "nibble/core/data/records/record_reader.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

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

// As pzstd writes it: before each frame of Zstandard one to be skipped, with the size of the other.
TEST(RecordReader, AFileOfZstandardMayBeginWithAFrameToBeSkipped) {
  Files files;
  std::string bytes;
  for (const char* text : {"{\"a\":1}\n", "{\"a\":2}\n"}) {
    std::string packed(ZSTD_compressBound(8), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text, 8, 1));
    bytes +=
        std::string("\x50\x2a\x4d\x18\x04\0\0\0", 8) + static_cast<char>(packed.size()) + std::string(3, '\0') + packed;
  }
  EXPECT_THAT(read(files.write("a.jsonl.zst", bytes)), ::testing::SizeIs(2));
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

// As `gzip` and `zstd` write it.
std::string gzipped(const std::string& text) {
  Files files;
  const std::string path = files.path("packed");
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return test::read_bytes(path);
}

std::string zstandard(const std::string& text) {
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  std::string packed(ZSTD_compressBound(text.size()), 0);
  packed.resize(ZSTD_compress2(context.get(), packed.data(), packed.size(), text.data(), text.size()));
  return packed;
}

TEST(RecordReader, CompressedFilesAreUnpacked) {
  Files files;
  std::string lines;
  for (int i = 0; i < 50000; ++i) lines += "{\"number\": " + std::to_string(i * 7919) + "}\n";
  for (const auto& [end, pack] : {std::pair{".gz", &gzipped}, std::pair{".zst", &zstandard}}) {
    SCOPED_TRACE(end);
    const std::string packed = pack(lines) + pack("{}");  // members one after another are one file
    const std::string path = files.write(std::string("a.jsonl") + end, packed);
    const std::vector<std::string> rows = read(path);
    ASSERT_EQ(rows.size(), 50001u);
    EXPECT_EQ(rows[49999], "{\"number\": " + std::to_string(49999 * 7919) + "}");
    EXPECT_EQ(rows[50000], "{}");
    EXPECT_THAT(read(files.write(std::string("a.txt") + end, pack("one<|endoftext|>two"))), ElementsAre("one", "two"));
    EXPECT_THAT(read(files.write(std::string("a.csv") + end, pack("text\nx\n"))), ElementsAre("{\"text\":\"x\"}"));
    EXPECT_THAT(read(files.write(std::string("e.jsonl") + end, pack(""))), ElementsAre());
    EXPECT_THAT(read(files.write("named-plain.jsonl", pack("{}"))), ElementsAre("{}"));
    const std::string cut = files.write(std::string("cut.jsonl") + end, packed.substr(0, packed.size() / 2));
    EXPECT_THAT(error_of<InputError>([&] { read(cut); }), HasSubstr(cut + ": ends inside of its compressed data"));
    std::string changed = pack(lines);
    for (size_t i = 5000; i < 5100; ++i) changed[i] = static_cast<char>(i);
    const std::string broken = files.write(std::string("broken.jsonl") + end, changed);
    EXPECT_THAT(error_of<InputError>([&] { read(broken); }), HasSubstr(broken + ": holds broken "));
  }
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

TEST(DataFiles, WhatDescribesADatasetIsNoneOfItsFiles) {
  Files files;
  for (const char* name : {"d/data-00000-of-00001.arrow", "d/dataset_info.json", "f/state.json"})
    files.write(name, "x");
  files.write("d/state.json", R"({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})");
  EXPECT_EQ(find_data_files({{files.path("d"), 1.0}}).size(), 1u);
  EXPECT_EQ(find_data_files({{files.path("f"), 1.0}}).size(), 1u);
}

TEST(DataFiles, AnIdIsItsSnapshotInTheHubsCache) {
  Files files;
  files.write("hub/datasets--a--b/snapshots/1/main/b.parquet", "x");
  files.write("hub/datasets--a--b/snapshots/1/all.jsonl.gz", "x");
  files.write("hub/datasets--a--b/refs/main", "1");
  ::setenv("HF_HUB_CACHE", files.path("hub").c_str(), 1);
  const std::string snapshot = files.path("hub/datasets--a--b/snapshots/1");
  const auto first = [](const std::string& path) { return find_data_files({{path, 1.0}}).front().path; };
  EXPECT_EQ(first("a/b"), snapshot + "/all.jsonl.gz");
  EXPECT_EQ(first("a/b/main/*.parquet"), snapshot + "/main/b.parquet");
  EXPECT_EQ(first(files.path("hub/datasets--a--b")), snapshot + "/all.jsonl.gz");
  EXPECT_EQ(data_paths({{"a/b/main", 1.0}}).front(), snapshot + "/main");
  EXPECT_THAT(error_of<InputError>([] { find_data_files({{"a/c", 1.0}}); }), HasSubstr("hf download a/c"));
  ::unsetenv("HF_HUB_CACHE");
}

TEST(DataFiles, SourcesKeepTheirOrderAndNumber) {
  Files files;
  const std::string b = files.write("b.txt", "x"), a = files.write("a.txt", "x");
  const auto found = find_data_files({{b, 1.0}, {a, 2.0}});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].path, b);
  EXPECT_EQ(found[1].source, 1u);
}

TEST(DataFiles, TypesMayBeInCapitals) {
  Files files;
  const std::string path = files.write("d/MY.CSV", "a\nb\n");
  EXPECT_EQ(data_type("a/B.JSONL.GZ"), ".jsonl");
  EXPECT_THAT(read(path), ElementsAre(R"({"a":"b"})"));
  EXPECT_EQ(find_data_files({{files.path("d"), 1.0}}).size(), 1u);
}

TEST(DataFiles, WhatIsNoDataFileIsRefused) {
  Files files;
  files.write("empty/readme.md", "");
  ASSERT_EQ(::mkfifo(files.path("pipe.jsonl").c_str(), 0600), 0);
  files.write("table.xlsx", "PK");
  const std::vector<std::pair<std::string, std::string>> cases = {{"none.jsonl", "no such file"},
                                                                  {"*.csv", "no such file, and no file matches"},
                                                                  {"empty", "holds no .jsonl"},
                                                                  {"pipe.jsonl", "is not a regular file"},
                                                                  {"table.xlsx", "has a type that is not read"}};
  for (const auto& [name, message] : cases) {
    const std::string path = files.path(name);
    EXPECT_THAT(error_of<InputError>([&] { find_data_files({{path, 1.0}}); }), HasSubstr(path + ": " + message));
  }
  EXPECT_THAT(error_of<InputError>([&] {
                find_data_files({{"a.jsonl,b.jsonl", 1.0}});
              }),
              HasSubstr("a list in brackets, [a.jsonl,b.jsonl]"));
  EXPECT_THAT(error_of<InputError>([&] { RecordReader(files.path("pipe.jsonl")); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of<InputError>([&] { RecordReader(files.path("empty")); }), HasSubstr("is a directory"));
}

}  // namespace
}  // namespace nibble
