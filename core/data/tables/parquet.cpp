// The rows of a Parquet file: its footer, and lists and structs put together from the levels of their columns ("Dremel:
// Interactive Analysis of Web-Scale Datasets", Melnik et al. 2010).

#include <cstring>
#include <optional>

#include "nibble/core/base/error.h"
#include "nibble/core/data/large_array.h"
#include "nibble/core/data/tables/json_text.h"
#include "nibble/core/data/tables/parquet_columns.h"
#include "nibble/core/data/tables/table_file.h"
#include "nibble/core/data/tables/thrift.h"

namespace nibble {

namespace {

using Thrift = ThriftReader;

constexpr std::string_view kMagic = "PAR1";

// parquet.thrift
enum Repetition { kRequired = 0, kOptional = 1, kRepeated = 2 };
enum PhysicalType { kBoolean = 0, kInt32 = 1, kInt64 = 2, kFloat = 4, kDouble = 5, kByteArray = 6 };
enum ConvertedType {
  kConvertedUtf8 = 0,
  kConvertedMap = 1,
  kConvertedMapKeyValue = 2,
  kConvertedList = 3,
  kConvertedEnum = 4,
  kConvertedDecimal = 5,
  kConvertedUint8 = 11,
  kConvertedUint64 = 14,
  kConvertedJson = 19
};
enum LogicalType { kStringType = 1, kMapType = 2, kListType = 3, kEnumType = 4, kDecimalType = 5, kJsonType = 12 };

struct SchemaElement {
  int32_t type = -1, repetition = kRequired, children = 0, converted = -1;
  int logical = 0;
  std::string_view name;
};

struct Chunk {
  ColumnChunk pages;
  int32_t codec = 0;
  int64_t data_page = -1, dictionary_page = 0, bytes = -1;
  bool elsewhere = false;  // another file, or encrypted
};

struct RowGroup {
  std::vector<Chunk> columns;
  int64_t rows = 0;
};

/// A value of a row: one of a column, a struct or a list.
struct Node {
  enum Kind { column, object, list } kind = column;
  std::string name;
  bool optional = false;
  uint32_t definition = 0;         ///< the level from which on it is there
  uint32_t inside_definition = 0;  ///< list: the level from which on it has elements
  uint32_t inside_repetition = 0;  ///< list: the level of another element
  size_t index = 0;                ///< the first column in it
  int32_t fields = 0;              ///< of a struct in the file, with those that are not read
  std::vector<Node> children;      ///< list: its element
};

SchemaElement read_element(Thrift& thrift) {
  SchemaElement element;
  thrift.read_struct([&](int id, Thrift::Type type) {
    if (type == Thrift::i32) {
      if (id == 1) element.type = thrift.read_i32();
      if (id == 3) element.repetition = thrift.read_i32();
      if (id == 5) element.children = thrift.read_i32();
      if (id == 6) element.converted = thrift.read_i32();
    } else if (id == 4 && type == Thrift::binary) {
      element.name = thrift.read_text();
    } else if (id == 10 && type == Thrift::structure) {
      thrift.read_struct([&](int kind, Thrift::Type) { element.logical = kind; });
    }
  });
  return element;
}

Chunk read_chunk(Thrift& thrift) {
  Chunk chunk;
  thrift.read_struct([&](int id, Thrift::Type type) {
    if (id == 1 || id == 8) chunk.elsewhere = true;
    if (id != 3 || type != Thrift::structure) return;
    thrift.read_struct([&](int field, Thrift::Type kind) {
      if (field == 4 && kind == Thrift::i32) chunk.codec = thrift.read_i32();
      if (kind != Thrift::i64) return;
      if (field == 5) chunk.pages.values = thrift.read_integer();
      if (field == 7) chunk.bytes = thrift.read_integer();
      if (field == 9) chunk.data_page = thrift.read_integer();
      if (field == 11) chunk.dictionary_page = thrift.read_integer();
    });
  });
  return chunk;
}

RowGroup read_row_group(Thrift& thrift) {
  RowGroup group;
  thrift.read_struct([&](int id, Thrift::Type type) {
    if (id == 1 && type == Thrift::list) {
      thrift.read_list([&](Thrift::Type element) {
        if (element != Thrift::structure) throw BrokenThrift();
        group.columns.push_back(read_chunk(thrift));
      });
    } else if (id == 3 && type == Thrift::i64) {
      group.rows = thrift.read_integer();
    }
  });
  return group;
}

ColumnValue value_of(const SchemaElement& element) {
  const bool is_decimal = element.converted == kConvertedDecimal || element.logical == kDecimalType;
  const bool is_unsigned = element.converted >= kConvertedUint8 && element.converted <= kConvertedUint64;
  const bool is_text = element.converted == kConvertedUtf8 || element.converted == kConvertedEnum ||
                       element.converted == kConvertedJson || element.logical == kStringType ||
                       element.logical == kEnumType || element.logical == kJsonType;
  if (is_decimal) return ColumnValue::other;
  switch (element.type) {
    case kBoolean:
      return ColumnValue::boolean;
    case kInt32:
      return is_unsigned ? ColumnValue::u32 : ColumnValue::i32;
    case kInt64:
      return is_unsigned ? ColumnValue::u64 : ColumnValue::i64;
    case kFloat:
      return ColumnValue::f32;
    case kDouble:
      return ColumnValue::f64;
    case kByteArray:
      return is_text ? ColumnValue::text : ColumnValue::other;
    default:
      return ColumnValue::other;
  }
}

std::optional<BlockCodec> codec_of(int32_t codec) {
  switch (codec) {
    case 0:
      return BlockCodec::none;
    case 1:
      return BlockCodec::snappy;
    case 2:
      return BlockCodec::gzip;
    case 6:
      return BlockCodec::zstd;
    default:
      return std::nullopt;
  }
}

class ParquetFile final : public TableFile {
 public:
  explicit ParquetFile(const std::string& path);
  bool next(RawRecord& record) override;

 private:
  void read_footer();
  // The node at schema_[next], which is inside of what has these levels; null where it holds nothing that is read.
  std::optional<Node> read_node(size_t& next, uint32_t definition, uint32_t repetition, int depth);
  std::optional<Node> read_inside(const SchemaElement& element, Node node, size_t& next, uint32_t repetition,
                                  int depth);
  void open_group();
  void close_group();
  void write(const Node& node, std::string& text);
  void pass(const Node& node);
  ColumnCursor& cursor(const Node& node) { return *cursors_[node.index]; }

  std::vector<SchemaElement> schema_;
  std::vector<RowGroup> groups_;
  std::vector<ColumnSchema> columns_;
  Node root_;
  size_t opened_ = 0;      // groups
  int64_t rows_left_ = 0;  // of the one that is open
  std::vector<std::optional<ColumnCursor>> cursors_;
};

ParquetFile::ParquetFile(const std::string& path) : TableFile(path) {
  try {
    read_footer();
  } catch (const BrokenThrift&) {
    refuse("has a broken footer");
  }
}

void ParquetFile::read_footer() {
  const std::span<const std::byte> bytes = file();
  const auto text = [&](size_t begin) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()) + begin, kMagic.size());
  };
  if (bytes.size() < 12 || text(0) != kMagic || text(bytes.size() - 4) != kMagic) {
    refuse(bytes.size() >= 4 && text(0) == kMagic ? "is a Parquet file that is cut off" : "is no Parquet file");
  }
  uint32_t size = 0;
  std::memcpy(&size, bytes.data() + bytes.size() - 8, sizeof size);
  if (size > bytes.size() - 12) refuse("has a footer of an impossible size");
  Thrift thrift(bytes.subspan(bytes.size() - 8 - size, size));
  bool encrypted = false;
  thrift.read_struct([&](int id, Thrift::Type type) {
    if (id == 8) encrypted = true;
    if (type != Thrift::list || (id != 2 && id != 4)) return;
    thrift.read_list([&](Thrift::Type element) {
      if (element != Thrift::structure) throw BrokenThrift();
      if (id == 2) {
        schema_.push_back(read_element(thrift));
      } else {
        groups_.push_back(read_row_group(thrift));
      }
    });
  });
  if (encrypted) refuse("is encrypted");
  if (schema_.empty()) throw BrokenThrift();
  size_t next = 0;
  schema_[0].repetition = kRequired;
  std::optional<Node> root = read_node(next, 0, 0, 0);
  if (next != schema_.size()) throw BrokenThrift();
  if (!root || root->kind != Node::object) refuse("has no column of a type that is read");
  root_ = std::move(*root);
}

std::optional<Node> ParquetFile::read_node(size_t& next, uint32_t definition, uint32_t repetition, int depth) {
  if (next >= schema_.size() || depth > kMostNested) throw BrokenThrift();
  const SchemaElement element = schema_[next++];
  Node node;
  node.name = element.name;
  node.optional = element.repetition == kOptional;
  node.definition = definition + (node.optional ? 1 : 0);
  if (element.repetition != kRepeated) return read_inside(element, std::move(node), next, repetition, depth);
  // A repeated field outside of what is marked as a list is a list itself.
  Node inside;
  inside.definition = node.inside_definition = definition + 1;
  node.inside_repetition = repetition + 1;
  std::optional<Node> found = read_inside(element, std::move(inside), next, repetition + 1, depth + 1);
  if (!found) return std::nullopt;
  node.kind = Node::list;
  node.index = found->index;
  node.children.push_back(std::move(*found));
  return node;
}

std::optional<Node> ParquetFile::read_inside(const SchemaElement& element, Node node, size_t& next, uint32_t repetition,
                                             int depth) {
  if (element.children == 0 && element.type >= 0) {
    node.index = columns_.size();
    columns_.push_back({value_of(element), node.definition, repetition});
    return columns_.back().value == ColumnValue::other ? std::nullopt : std::optional(std::move(node));
  }
  if (element.children < 0) throw BrokenThrift();
  const bool is_map =
      element.converted == kConvertedMap || element.converted == kConvertedMapKeyValue || element.logical == kMapType;
  const bool is_list = element.converted == kConvertedList || element.logical == kListType;
  const size_t first = columns_.size();
  for (int32_t i = 0; i < element.children; ++i) {
    std::optional<Node> child = read_node(next, node.definition, repetition, depth + 1);
    if (child) node.children.push_back(std::move(*child));
  }
  if (is_map) {
    for (size_t i = first; i < columns_.size(); ++i) columns_[i].value = ColumnValue::other;
  }
  if (node.children.empty() || is_map) return std::nullopt;
  node.kind = Node::object;
  node.fields = element.children;
  node.index = node.children.front().index;
  if (!is_list || element.children != 1 || node.children[0].kind != Node::list) return node;
  // The list is its only child, which is repeated. Of the element, a struct around one field is only there for the
  // levels, but in files of old writers, which call it by these names.
  Node list = std::move(node.children[0]);
  Node& inside = list.children[0];
  if (inside.kind == Node::object && inside.fields == 1 && list.name != "array" && list.name != node.name + "_tuple") {
    Node only = std::move(inside.children[0]);
    inside = std::move(only);
  }
  list.name = node.name;
  list.optional = node.optional;
  list.definition = node.definition;
  return list;
}

void ParquetFile::open_group() {
  const RowGroup& group = groups_[opened_++];
  if (group.columns.size() != columns_.size() || group.rows < 0) refuse("has a row group of another shape");
  rows_left_ = group.rows;
  cursors_.clear();
  for (size_t i = 0; i < columns_.size(); ++i) {
    cursors_.emplace_back();
    if (columns_[i].value == ColumnValue::other) continue;
    Chunk chunk = group.columns[i];
    const std::optional<BlockCodec> codec = codec_of(chunk.codec);
    if (chunk.elsewhere) refuse("has a column in another file, or an encrypted one");
    if (!codec) {
      static constexpr const char* kNames[] = {"none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw"};
      const bool known = chunk.codec >= 0 && chunk.codec < 8;
      throw InputError(path(), std::string("is compressed with ") + (known ? kNames[chunk.codec] : "an unknown codec"),
                       "write it again with snappy or zstd");
    }
    chunk.pages.codec = *codec;
    const bool with_dictionary = chunk.dictionary_page > 0 && chunk.dictionary_page < chunk.data_page;
    const int64_t begin = with_dictionary ? chunk.dictionary_page : chunk.data_page;
    const auto size = static_cast<int64_t>(file().size());
    if (begin < 0 || begin > size || chunk.bytes < 0 || chunk.bytes > size - begin || chunk.pages.values < 0) {
      refuse("has a column outside of the file");
    }
    chunk.pages.pages = file().subspan(static_cast<size_t>(begin), static_cast<size_t>(chunk.bytes));
    cursors_.back().emplace(columns_[i], chunk.pages);
  }
}

void ParquetFile::close_group() {
  for (std::optional<ColumnCursor>& cursor : cursors_) {
    if (cursor && cursor->has()) refuse("has a column with more values than rows");
  }
  cursors_.clear();
  release_pages(file());
}

void ParquetFile::pass(const Node& node) {
  if (node.kind == Node::column) return cursor(node).skip();
  for (const Node& child : node.children) pass(child);
}

void ParquetFile::write(const Node& node, std::string& text) {
  if (node.kind == Node::column) return cursor(node).take(text);
  if (text.size() > RecordReader::kMaxRecordBytes) throw BrokenPage("has a row that is longer than 64 MiB");
  ColumnCursor& first = cursor(node);
  if (!first.has()) throw BrokenPage("has a column that ends too early");
  if (node.optional && first.def() < node.definition) {
    text += "null";
    return pass(node);
  }
  if (node.kind == Node::list) {
    text.push_back('[');
    if (first.def() < node.inside_definition) {
      pass(node);
    } else {
      for (bool more = true; more; more = first.has() && first.rep() == node.inside_repetition) {
        if (text.back() != '[') text.push_back(',');
        write(node.children[0], text);
      }
    }
    text.push_back(']');
    return;
  }
  text.push_back('{');
  for (const Node& child : node.children) {
    if (text.back() != '{') text.push_back(',');
    append_json(text, std::string_view(child.name));
    text.push_back(':');
    write(child, text);
  }
  text.push_back('}');
}

bool ParquetFile::next(RawRecord& record) {
  begin_row(record);
  try {
    while (rows_left_ == 0) {
      if (opened_ > 0) close_group();
      if (opened_ == groups_.size()) return false;
      open_group();
    }
    --rows_left_;
    write(root_, record.text);
    for (std::optional<ColumnCursor>& cursor : cursors_) {
      if (cursor && cursor->has() && cursor->rep() != 0) throw BrokenPage("has columns of different lengths");
    }
  } catch (const BrokenThrift&) {
    refuse_row(record, "has a broken page header");
  } catch (const BrokenPage& broken) {
    refuse_row(record, broken.what());
  }
  return true;
}

}  // namespace

std::unique_ptr<TableFile> open_parquet(const std::string& path) { return std::make_unique<ParquetFile>(path); }

}  // namespace nibble
