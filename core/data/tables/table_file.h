#pragma once
// Files of rows and columns that are mapped as a whole: Parquet and Arrow. A row becomes the text of a JSON object.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/tensor/storage.h"

namespace nibble {

/// How deep lists and structs of a schema may be inside each other.
inline constexpr int kMostNested = 48;

class TableFile {
 public:
  explicit TableFile(const std::string& path) : map_(path) {}
  virtual ~TableFile() = default;

  /// The next row, false at the end. Values that JSON has no form for (infinite numbers) are null; columns of a type
  /// that no format of data has (bytes, maps, decimals) are left out. Throws InputError where the file is broken.
  virtual bool next(RawRecord& record) = 0;

  const std::string& path() const { return map_.path(); }
  uint64_t bytes() const { return map_.size(); }
  /// XXH3 (64 bits) of the file.
  uint64_t hash() const;

 protected:
  std::span<const std::byte> file() const { return {map_.data(), map_.size()}; }
  [[noreturn]] void refuse(const std::string& reason) const;
  /// In the row that `record` is to have.
  [[noreturn]] void refuse_row(const RawRecord& record, const std::string& reason) const;
  /// Makes `record` an empty text for the next row.
  void begin_row(RawRecord& record);

 private:
  FileMap map_;
  int64_t row_ = 0;
};

/// Apache Parquet, as pyarrow (and so `datasets`) writes it: data pages of version 1 and 2, plain and dictionary
/// encodings, snappy, gzip and Zstandard. https://github.com/apache/parquet-format
std::unique_ptr<TableFile> open_parquet(const std::string& path);

/// Arrow's IPC formats, as a stream (what `datasets` keeps) or a file; buffers plain or in Zstandard.
/// https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
std::unique_ptr<TableFile> open_arrow(const std::string& path);

}  // namespace nibble
