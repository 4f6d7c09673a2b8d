#pragma once
// From files to records: JSON Lines, JSON arrays, plain text, CSV, Parquet and Arrow, read as streams, hostile input
// expected.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "nibble/core/data/data_options.h"

namespace nibble {

/// One file of a data set.
struct DataFile {
  std::string path;
  uint32_t source = 0;  ///< index of the DataSource that named it
};

/// The type of data that the name of a file says, without what it is compressed with: ".jsonl" of "a.jsonl.gz". Empty
/// where RecordReader does not read it.
std::string data_type(const std::filesystem::path& path);

/// The regular files that `sources` name, in order. A path that exists is taken literally before it is tried as a glob
/// pattern (sorted), and then as an ID, or a path or pattern in one, in the Hugging Face cache (find_in_hub). Of a
/// directory with splits those of `wanted` (directory_files.h). Throws InputError naming the source that is missing,
/// empty, not a regular file (pipes, devices), of a type that is not read, or without a split for `wanted`.
std::vector<DataFile> find_data_files(const std::vector<DataSource>& sources, DataSplit wanted = DataSplit::train);

/// A line for each directory with splits: which one find_data_files() takes, and which not.
std::vector<std::string> split_notes(const std::vector<DataSource>& sources, DataSplit wanted = DataSplit::train);

/// The paths that `sources` name, of a pattern what matches it. What is not there is passed over.
std::vector<std::filesystem::path> data_paths(const std::vector<DataSource>& sources);

class TableFile;

/// The text of one record and where it begins.
struct RawRecord {
  std::string text;    ///< one JSON value, or for .txt a document
  int64_t line = 1;    ///< from 1; of Parquet and Arrow the row
  int64_t column = 1;  ///< from 1, in characters; 0: `line` is a row
};

/// Reads the records of one file:
/// - .jsonl, .ndjson, .json: objects, one a line (LF or CRLF, blank lines skipped, the last newline may be missing),
///   or, when the file begins with '[', the elements of one JSON array.
/// - .txt: the whole file is one document; the mark <|endoftext|> separates several. CRLF becomes LF, line breaks
///   around a document are dropped, empty documents skipped.
/// - .csv (RFC 4180): the first line names the columns; a record is an object of strings.
/// - .parquet, .arrow: a record is an object of the row's columns (tables/parquet.h, tables/arrow.h).
/// All but the last two may be compressed with gzip or Zstandard. A UTF-8 byte order mark is skipped. JSON is only
/// split here; format.h parses it.
class RecordReader {
 public:
  /// Bytes of one JSON record at most.
  static constexpr size_t kMaxRecordBytes = size_t{64} << 20;
  /// Bytes of one .txt document at most.
  static constexpr size_t kMaxDocumentBytes = size_t{1} << 30;

  /// Throws InputError where the file is no regular file or UTF-16, IoError where it cannot be read.
  explicit RecordReader(std::string path);
  ~RecordReader();

  const std::string& path() const;
  bool is_text() const;

  /// The next record, false at the end. Throws InputError ("file:line:column: ...") for a record above the cap, broken
  /// array structure, or a .txt file that is not UTF-8.
  bool next(RawRecord& record);

  /// XXH3 (64 bits) of all bytes of the file, valid after next() returned false; and their number.
  uint64_t hash() const;
  uint64_t bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;        // of what is read byte by byte
  std::unique_ptr<TableFile> table_;  // of the others
};

/// "file:line:column" of byte `byte` of `record`, or "file:row N".
std::string record_place(const std::string& path, const RawRecord& record, size_t byte = 0);

}  // namespace nibble
