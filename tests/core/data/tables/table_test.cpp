// Parquet, Arrow and CSV files. The fixtures and their rows are made by tests/oracles/tables.py with pyarrow and
// datasets; NIBBLE_TABLES names a folder of more of them.

#include <gmock/gmock.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using test::Files;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kFixtures = fs::path(kSourceDir) / "tests/data/goldens/tables";

std::vector<std::string> read(const fs::path& path) {
  RecordReader reader(path.string());
  std::vector<std::string> rows;
  for (RawRecord record; reader.next(record);) rows.push_back(record.text);
  return rows;
}

std::vector<fs::path> tables_in(const fs::path& folder) {
  std::vector<fs::path> tables;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".jsonl") tables.push_back(fs::path(entry.path()).replace_extension());
  }
  std::sort(tables.begin(), tables.end());
  return tables;
}

TEST(TableOracle, RowsAreThoseThatPyarrowReads) {
  std::vector<fs::path> tables = tables_in(kFixtures);
  EXPECT_GE(tables.size(), 12u);
  if (const char* more = std::getenv("NIBBLE_TABLES")) {
    for (const fs::path& table : tables_in(more)) tables.push_back(table);
  }
  for (const fs::path& table : tables) {
    SCOPED_TRACE(table.filename().string());
    const std::vector<std::string> rows = read(table), expected = read(table.string() + ".jsonl");
    ASSERT_EQ(rows.size(), expected.size());
    for (size_t i = 0; i < rows.size(); ++i) {  // as text: 3 and 3.0 are different ones to a template
      ASSERT_EQ(json::parse(rows[i]).dump(), json::parse(expected[i]).dump()) << "row " << i;
    }
  }
}

TEST(Tables, ARecordKnowsItsRowAndTheFileItsHash) {
  RecordReader reader((kFixtures / "zstd_v2.parquet").string());
  RawRecord record;
  for (int row = 1; row <= 20; ++row) ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record_place("f.parquet", record, 7), "f.parquet:row 20");
  EXPECT_FALSE(reader.is_text());
  EXPECT_EQ(reader.bytes(), fs::file_size(kFixtures / "zstd_v2.parquet"));
  EXPECT_NE(reader.hash(), RecordReader((kFixtures / "default.parquet").string()).hash());
}

TEST(Tables, FilesThatAreCutOffOrOfAnotherKindAreNamed) {
  Files files;
  const std::string parquet = test::read_bytes(kFixtures / "default.parquet");
  const std::string stream = test::read_bytes(kFixtures / "stream.arrow");
  const std::string file = test::read_bytes(kFixtures / "file_zstd.arrow");
  const struct {
    const char* name;
    std::string bytes, message;
  } cases[] = {
      {"cut.parquet", parquet.substr(0, parquet.size() / 2), "is a Parquet file that is cut off"},
      {"text.parquet", "prompt,completion\na,b\n", "is no Parquet file"},
      {"empty.parquet", "", "is no Parquet file"},
      {"footer.parquet", parquet.substr(0, parquet.size() - 8) + std::string("\xff\xff\xff\x7f") + "PAR1",
       "has a footer of an impossible size"},
      {"cut.arrow", stream.substr(0, stream.size() - 100), "cut.arrow:row 1: ends too early"},
      {"half.arrow", file.substr(0, file.size() / 2), "is an Arrow file that is cut off"},
      {"text.arrow", "{\"prompt\": \"a\", \"completion\": \"b\"}\n", "text.arrow: "},
      {"empty.arrow", "", "is no Arrow file"},
  };
  for (const auto& c : cases) {
    const std::string path = files.write(c.name, c.bytes);
    EXPECT_THAT(error_of<InputError>([&] { read(path); }), HasSubstr(c.message)) << c.name;
  }
}

TEST(Tables, WhatIsNotReadIsNamed) {
  const auto refused = [](const char* name) { return error_of<InputError>([name] { read(kFixtures / name); }); };
  EXPECT_THAT(refused("refused_encoding.parquet"), HasSubstr("the encoding DELTA_BYTE_ARRAY, which is not read"));
  EXPECT_THAT(refused("refused_list_view.arrow"), HasSubstr("Arrow's type list view, which is not read"));
}

TEST(Tables, EveryCutAndEveryChangedByteIsReadOrRefused) {
  Files files;
  for (const char* name : {"zstd_v2.parquet", "types.parquet", "types.arrow", "dictionaries.arrow", "polars.arrow"}) {
    const std::string whole = test::read_bytes(kFixtures / name);
    for (size_t at = 0; at < whole.size(); at += 1 + whole.size() / 150) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ 0x41);
      for (const std::string& bytes : {changed, whole.substr(0, at)}) {
        const std::string path = files.write(name, bytes);
        try {
          read(path);
        } catch (const InputError& error) {
          ASSERT_THAT(error.what(), HasSubstr(name));
        }
      }
    }
  }
}

TEST(Csv, QuotedCellsHoldCommasMarksAndLineBreaks) {
  Files files;
  const std::string path =
      files.write("a.csv", "\xEF\xBB\xBFprompt,completion\r\na,b\r\n\r\n\"x, \"\"y\"\"\nz\",\n\"\",\xC3\xA9");
  EXPECT_THAT(read(path),
              ElementsAre(R"({"prompt":"a","completion":"b"})", R"({"prompt":"x, \"y\"\nz","completion":""})",
                          "{\"prompt\":\"\",\"completion\":\"\xC3\xA9\"}"));
  EXPECT_THAT(read(files.write("one.csv", "text\n\"\"\nb\n")), ElementsAre(R"({"text":""})", R"({"text":"b"})"));
  EXPECT_THAT(read(files.write("empty.csv", "")), ElementsAre());
}

TEST(Csv, WhatIsWrongHasALineAndAColumn) {
  Files files;
  const std::pair<std::string, std::string> cases[] = {
      {"a,b\n1,2,3\n", "a.csv:2:1: has 3 cells, the first line 2"},
      {"a,b\n\"x\ny\",1\n1\n", "a.csv:4:1: has 1 cell, the first line 2"},
      {"a,b\n1,\"x\n", "a.csv:2:3: the quotation mark of this cell is not closed"},
      {"a,b\n\"x\"y,1\n", "a.csv:2:4: there is text behind the closing"},
      {"a,b\n1,\xff\n", "a.csv:2:3: is not UTF-8"},
      {"a;b\n1;2\n", "a.csv: has no comma in its first line"},
      {"a,a\n1,2\n", "a.csv: has two columns named \"a\""},
  };
  for (const auto& [text, message] : cases) {
    const std::string path = files.write("a.csv", text);
    EXPECT_THAT(error_of<InputError>([&] { read(path); }), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace nibble
