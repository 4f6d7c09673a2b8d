#pragma once
// The columns of a Parquet file, value by value: pages, levels and encodings.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/io/compression.h"

namespace nibble {

/// What a column holds, by its physical and its logical type.
enum class ColumnValue : uint8_t { boolean, i32, u32, i64, u64, f32, f64, text, other };

/// A column as the schema has it.
struct ColumnSchema {
  ColumnValue value = ColumnValue::other;
  uint32_t max_definition = 0, max_repetition = 0;
};

/// Where a row group has a column.
struct ColumnChunk {
  std::span<const std::byte> pages;
  BlockCodec codec = BlockCodec::none;
  int64_t values = 0;  ///< with nulls and empty lists
};

/// What the readers of pages throw; who knows the file's name catches it.
struct BrokenPage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Numbers of a few bits in runs: repeated ones, and packed ones in groups of eight.
/// https://parquet.apache.org/docs/file-format/data-pages/encodings/#RLE
class RunDecoder {
 public:
  RunDecoder() = default;
  RunDecoder(std::span<const std::byte> bytes, int bit_width);
  uint32_t next();

 private:
  void begin_run();
  uint64_t varint();

  std::span<const std::byte> bytes_;
  int width_ = 0;
  uint64_t left_ = 0;  // of the run
  bool packed_ = false;
  uint32_t value_ = 0;              // of a repeated run
  std::span<const std::byte> run_;  // of a packed run
  uint64_t bit_ = 0;
};

/// The values of one column in one row group, in order, each with its levels.
class ColumnCursor {
 public:
  ColumnCursor(const ColumnSchema& schema, const ColumnChunk& chunk);

  /// Whether a value is left; rep() and def() are its levels.
  bool has();
  uint32_t rep() const { return repetition_; }
  uint32_t def() const { return definition_; }
  /// Appends the value as JSON, null where there is none, and goes to the next.
  void take(std::string& json);
  void skip();

 private:
  void next_levels();
  void read_page();
  void read_dictionary(std::span<const std::byte> page, int64_t count);
  void begin_values(std::span<const std::byte> bytes, int encoding);
  std::span<const std::byte> unpacked(std::span<const std::byte> packed, int64_t size, bool compressed,
                                      std::unique_ptr<std::byte[]>& owner) const;
  void append_value(std::string* json);
  /// Appends the value at the front of `bytes` and drops it from there.
  void append_plain(std::span<const std::byte>& bytes, std::string* json) const;

  ColumnSchema schema_;
  ColumnChunk chunk_;
  int64_t left_in_page_ = 0;
  bool current_ = false;  // whether the levels are those of a value that is not taken
  uint32_t repetition_ = 0, definition_ = 0;

  std::unique_ptr<std::byte[]> page_, dictionary_page_;
  std::vector<std::span<const std::byte>> dictionary_;
  RunDecoder repetitions_, definitions_;
  enum class Encoding : uint8_t { plain, bits, runs, dictionary } encoding_ = Encoding::plain;
  std::span<const std::byte> plain_;
  uint64_t bit_ = 0;
  RunDecoder indices_;
};

}  // namespace nibble
