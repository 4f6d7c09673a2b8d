// Arrow's IPC formats: a schema, then record batches and dictionaries, each a Flatbuffer in front of the buffers it
// describes. format/Message.fbs and format/Schema.fbs of apache/arrow.

#include <limits>
#include <optional>

#include "nibble/core/base/error.h"
#include "nibble/core/data/large_array.h"
#include "nibble/core/data/tables/arrow_values.h"
#include "nibble/core/data/tables/flatbuffer.h"
#include "nibble/core/data/tables/json_text.h"
#include "nibble/core/data/tables/table_file.h"
#include "nibble/core/io/compression.h"

namespace nibble {

namespace {

using Bytes = std::span<const std::byte>;

constexpr size_t kMostFields = 10000;
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
constexpr int64_t kLargestBuffer = int64_t{1} << 24;
#else
constexpr int64_t kLargestBuffer = int64_t{1} << 32;  // taken, and written as far as there is something to unpack
#endif
constexpr std::string_view kFileMagic = "ARROW1";

enum MessageType { kSchema = 1, kDictionaryBatch = 2, kRecordBatch = 3 };

// Type of Schema.fbs
enum ArrowType {
  kNull = 1,
  kInt,
  kFloatingPoint,
  kBinary,
  kUtf8,
  kBool,
  kDecimal,
  kDate,
  kTime,
  kTimestamp,
  kInterval,
  kList,
  kStruct,
  kUnion,
  kFixedSizeBinary,
  kFixedSizeList,
  kMap,
  kDuration,
  kLargeBinary,
  kLargeUtf8,
  kLargeList,
  kRunEndEncoded,
  kBinaryView,
  kUtf8View,
  kListView,
  kLargeListView,
};

ArrowField::Value integer_value(const FlatTable& type) {
  const bool is_signed = type.number<uint8_t>(1, 0) != 0;
  switch (type.number<int32_t>(0, 0)) {
    case 8:
      return is_signed ? ArrowField::i8 : ArrowField::u8;
    case 16:
      return is_signed ? ArrowField::i16 : ArrowField::u16;
    case 32:
      return is_signed ? ArrowField::i32 : ArrowField::u32;
    case 64:
      return is_signed ? ArrowField::i64 : ArrowField::u64;
    default:
      throw BrokenFlatbuffer();
  }
}

int64_t bits_of(ArrowField::Value value) {
  constexpr int64_t kBits[] = {1, 8, 16, 32, 64, 8, 16, 32, 64, 16, 32, 64};  // in the order of ArrowField::Value
  return kBits[value];
}

class ArrowFile final : public TableFile {
 public:
  explicit ArrowFile(const std::string& path);
  bool next(RawRecord& record) override;

 private:
  struct Message {
    int type = 0;
    FlatTable header;
    Bytes body;
  };
  bool read_message(Message& message);
  FlatTable read_footer();
  void find_blocks(const FlatTable& footer, uint16_t list);
  ArrowField read_field(const FlatTable& table, int depth);
  void set_type(ArrowField& field, int type, const FlatTable& table) const;
  /// Where the nodes and buffers of a batch are read.
  struct Batch {
    FlatTable table;
    Bytes body;
    FlatTable::Vector nodes, buffers, pieces;
    size_t next_node = 0, next_buffer = 0, next_pieces = 0;
    bool packed = false;
    std::vector<std::unique_ptr<std::byte[]>>* owners = nullptr;
  };
  Batch open_batch(const FlatTable& table, Bytes body, std::vector<std::unique_ptr<std::byte[]>>& owners) const;
  Bytes read_buffer(Batch& batch) const;
  ArrowArray read_array(const ArrowField& field, Batch& batch, bool is_index) const;
  void read_dictionary(const Message& message);
  bool read_batch();
  struct Dictionary {
    ArrowField field;
    std::vector<std::unique_ptr<std::byte[]>> owners;
  };

  Bytes rest_;                                // of the stream, or of a block
  std::optional<std::vector<Bytes>> blocks_;  // of a file, that are left, the next one last
  std::vector<ArrowField> fields_;
  size_t fields_read_ = 0;
  std::map<int64_t, Dictionary> dictionaries_;
  ArrowDictionaries values_;                          // of the dictionaries
  std::vector<std::unique_ptr<std::byte[]>> owners_;  // of the batch
  std::vector<ArrowArray> columns_;
  int64_t length_ = 0, at_ = 0;  // of the batch
};

// Of a file's form: what is in front of it need not be a stream.
FlatTable ArrowFile::read_footer() {
  const int64_t size = load_integer(rest_.last(10), 4, 0);
  const auto* letters = reinterpret_cast<const char*>(rest_.data());
  if (std::string_view(letters, rest_.size()).substr(rest_.size() - 6) != kFileMagic ||
      size > static_cast<int64_t>(rest_.size()) - 18) {
    refuse("is an Arrow file that is cut off");
  }
  return FlatTable::root(rest_.subspan(rest_.size() - 10 - static_cast<size_t>(size), static_cast<size_t>(size)));
}

// Puts the blocks of a list of the footer before those that are left.
void ArrowFile::find_blocks(const FlatTable& footer, uint16_t list) {
  constexpr size_t kBlock = 24;
  const FlatTable::Vector blocks = footer.vector(list, kBlock);
  const auto most = static_cast<int64_t>(file().size());
  for (size_t i = blocks.count; i-- > 0;) {
    const int64_t begin = footer.number_in(blocks, i, kBlock, 0), body = footer.number_in(blocks, i, kBlock, 16);
    const int64_t head = footer.number_in(blocks, i, kBlock, 8) & 0x7FFFFFFF;
    if (begin < 0 || begin > most || head > most - begin || body < 0 || body > most - begin - head)
      throw BrokenArrow("has a block outside of the file");
    blocks_->push_back(file().subspan(static_cast<size_t>(begin), static_cast<size_t>(head + body)));
  }
}

ArrowFile::ArrowFile(const std::string& path) : TableFile(path), rest_(file()) {
  const auto* letters = reinterpret_cast<const char*>(rest_.data());
  try {
    FlatTable schema;
    if (rest_.size() > 18 && std::string_view(letters, rest_.size()).starts_with(kFileMagic)) {
      const FlatTable footer = read_footer();
      schema = footer.table(1);
      blocks_.emplace();
      find_blocks(footer, 3);
      find_blocks(footer, 2);  // dictionaries, which go first
    } else {
      Message message;
      if (!read_message(message) || message.type != kSchema) refuse("is no Arrow file");
      schema = message.header;
    }
    if (schema.number<int16_t>(0, 0) != 0) refuse("has numbers in big-endian order");
    const FlatTable::Vector fields = schema.vector(1, 4);
    bool any = false;
    for (size_t i = 0; i < fields.count; ++i) {
      fields_.push_back(read_field(schema.element(fields, i), 0));
      any = any || fields_.back().is_read;
    }
    if (!any) refuse("has no column of a type that is read");
  } catch (const BrokenFlatbuffer&) {
    refuse("is no Arrow file, or a broken one");
  } catch (const BrokenArrow& broken) {
    refuse(broken.what());
  }
}

bool ArrowFile::read_message(Message& message) {
  if (blocks_) {
    rest_ = blocks_->empty() ? Bytes() : blocks_->back();
    if (!rest_.empty()) blocks_->pop_back();
  }
  if (rest_.empty()) return false;
  const auto take = [&](int64_t count) {
    if (count < 0 || static_cast<uint64_t>(count) > rest_.size()) throw BrokenArrow("ends too early");
    const Bytes front = rest_.first(static_cast<size_t>(count));
    rest_ = rest_.subspan(static_cast<size_t>(count));
    return front;
  };
  int64_t size = load_integer(take(4), 4, 0);
  if (size == 0xFFFFFFFF) size = load_integer(take(4), 4, 0);  // before 0.15 there was no mark of continuation
  if (size == 0) return false;
  const FlatTable root = FlatTable::root(take(size));
  message.type = root.number<uint8_t>(1, 0);
  message.header = root.table(2);
  message.body = take(root.number<int64_t>(3, 0));
  return true;
}

void ArrowFile::set_type(ArrowField& field, int type, const FlatTable& table) const {
  field.layout = ArrowField::fixed;
  switch (type) {
    case kNull:
      field.layout = ArrowField::nulls;
      return;
    case kInt:
      field.value = integer_value(table);
      break;
    case kFloatingPoint: {
      const auto precision = table.number<int16_t>(0, 0);
      field.value = precision == 0 ? ArrowField::f16 : precision == 1 ? ArrowField::f32 : ArrowField::f64;
      break;
    }
    case kBool:
      field.value = ArrowField::boolean;
      break;
    case kDate:
      field.value = table.number<int16_t>(0, 1) == 0 ? ArrowField::i32 : ArrowField::i64;
      break;
    case kTime:
      field.value = table.number<int32_t>(1, 32) == 32 ? ArrowField::i32 : ArrowField::i64;
      break;
    case kTimestamp:
    case kDuration:
      field.value = ArrowField::i64;
      break;
    case kUtf8:
    case kLargeUtf8:
    case kBinary:
    case kLargeBinary:
      field.layout = ArrowField::text;
      field.large = type == kLargeUtf8 || type == kLargeBinary;
      field.is_read = type == kUtf8 || type == kLargeUtf8;
      return;
    case kUtf8View:
    case kBinaryView:
      field.layout = ArrowField::view;
      field.is_read = type == kUtf8View;
      return;
    case kList:
    case kLargeList:
    case kMap:
      field.layout = ArrowField::list;
      field.large = type == kLargeList;
      field.is_read = type != kMap;
      return;
    case kFixedSizeList:
      field.layout = ArrowField::fixed_list;
      field.width = table.number<int32_t>(0, 0);
      return;
    case kStruct:
      field.layout = ArrowField::object;
      return;
    case kFixedSizeBinary:
      field.width = int64_t{8} * table.number<int32_t>(0, 0);
      break;
    case kDecimal:
      field.width = table.number<int32_t>(2, 128);
      break;
    case kInterval: {
      const auto unit = table.number<int16_t>(0, 0);
      field.width = unit == 0 ? 32 : unit == 1 ? 64 : 128;
      break;
    }
    default: {
      const std::map<int, const char*> names = {{kUnion, "union"},
                                                {kRunEndEncoded, "run-end encoded"},
                                                {kListView, "list view"},
                                                {kLargeListView, "large list view"}};
      const auto known = names.find(type);
      throw BrokenArrow("has column \"" + field.name + "\" of Arrow's type " +
                        (known == names.end() ? std::to_string(type) : known->second) + ", which is not read");
    }
  }
  if (field.value != ArrowField::other) field.width = bits_of(field.value);
  field.is_read = field.value != ArrowField::other;
  if (field.width < 0) throw BrokenFlatbuffer();
}

ArrowField ArrowFile::read_field(const FlatTable& table, int depth) {
  // Tables of a Flatbuffer may have others in common: a small file may describe very many.
  if (depth > kMostNested || ++fields_read_ > kMostFields) throw BrokenFlatbuffer();
  ArrowField field;
  field.name = table.text(0);
  set_type(field, table.number<uint8_t>(2, 0), table.table(3));
  const FlatTable::Vector children = table.vector(5, 4);
  bool any = false;
  for (size_t i = 0; i < children.count; ++i) {
    field.children.push_back(read_field(table.element(children, i), depth + 1));
    any = any || field.children.back().is_read;
  }
  const bool has_one = field.layout == ArrowField::list || field.layout == ArrowField::fixed_list;
  if ((has_one && children.count != 1) || field.width < 0) throw BrokenFlatbuffer();
  if (has_one || field.layout == ArrowField::object) field.is_read = field.is_read && any;
  if (const FlatTable dictionary = table.table(4); dictionary.is_there()) {
    const auto id = dictionary.number<int64_t>(0, 0);
    if (id < 0) throw BrokenFlatbuffer();
    ArrowField index;
    index.name = field.name;
    index.layout = ArrowField::fixed;
    const FlatTable type = dictionary.table(1);
    index.value = type.is_there() ? integer_value(type) : ArrowField::i32;
    index.width = bits_of(index.value);
    index.is_read = field.is_read;
    index.dictionary = id;
    dictionaries_[id].field = std::move(field);
    return index;
  }
  return field;
}

ArrowFile::Batch ArrowFile::open_batch(const FlatTable& table, Bytes body,
                                       std::vector<std::unique_ptr<std::byte[]>>& owners) const {
  Batch batch{table, body, table.vector(1, 16), table.vector(2, 16), table.vector(4, 8)};
  batch.owners = &owners;
  if (const FlatTable compression = table.table(3); compression.is_there()) {
    if (compression.number<int8_t>(0, 0) != 1)
      throw BrokenArrow("is compressed with lz4; write it again with zstd or plain");
    batch.packed = true;
  }
  return batch;
}

Bytes ArrowFile::read_buffer(Batch& batch) const {
  if (batch.next_buffer == batch.buffers.count) throw BrokenArrow("has too few buffers");
  const size_t i = batch.next_buffer++;
  const int64_t begin = batch.table.number_in(batch.buffers, i, 16, 0);
  const int64_t size = batch.table.number_in(batch.buffers, i, 16, 8);
  const auto most = static_cast<int64_t>(batch.body.size());
  if (begin < 0 || size < 0 || begin > most || size > most - begin)
    throw BrokenArrow("has a buffer outside of its batch");
  Bytes buffer = batch.body.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
  if (!batch.packed || buffer.empty()) return buffer;
  if (buffer.size() < 8) throw BrokenArrow("has a broken buffer");
  const int64_t unpacked = load_integer(buffer, 8, 0);
  buffer = buffer.subspan(8);
  if (unpacked == -1) return buffer;
  if (unpacked < 0 || unpacked > kLargestBuffer) throw BrokenArrow("has a buffer of an impossible size");
  batch.owners->push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(unpacked)));
  const std::span<std::byte> out(batch.owners->back().get(), static_cast<size_t>(unpacked));
  if (!unpack_block(BlockCodec::zstd, buffer, out)) throw BrokenArrow("has a buffer that cannot be unpacked");
  return out;
}

ArrowArray ArrowFile::read_array(const ArrowField& field, Batch& batch, bool is_index) const {
  if (batch.next_node == batch.nodes.count) throw BrokenArrow("has too few columns in a batch");
  ArrowArray array;
  array.field = &field;
  array.length = batch.table.number_in(batch.nodes, batch.next_node, 16, 0);
  const int64_t null_count = batch.table.number_in(batch.nodes, batch.next_node, 16, 8);
  ++batch.next_node;
  if (array.length < 0 || array.length > std::numeric_limits<int64_t>::max() / 1024)
    throw BrokenArrow("has a broken length");
  if (field.layout == ArrowField::nulls) return array;
  const auto needs = [&](Bytes bytes, int64_t bits) {
    if (static_cast<int64_t>(bytes.size()) < (bits + 7) / 8) throw BrokenArrow("has a buffer that is too short");
  };
  array.validity = read_buffer(batch);
  if (null_count == 0) array.validity = {};
  if (!array.validity.empty()) needs(array.validity, array.length);
  if (null_count > 0 && array.validity.empty() && array.length > 0) throw BrokenArrow("has nulls without saying where");
  if (field.layout == ArrowField::text || field.layout == ArrowField::list) {
    array.offsets = read_buffer(batch);
    if (array.length > 0) needs(array.offsets, (array.length + 1) * (field.large ? 64 : 32));
  }
  if (field.layout == ArrowField::text || field.layout == ArrowField::fixed) array.data = read_buffer(batch);
  if (field.layout == ArrowField::view) {
    array.data = read_buffer(batch);
    needs(array.data, array.length * 128);
    if (batch.next_pieces == batch.pieces.count) throw BrokenArrow("has too few counts of buffers");
    int64_t count = batch.table.number_in(batch.pieces, batch.next_pieces++, 8, 0);
    while (count-- > 0) array.pieces.push_back(read_buffer(batch));
  }
  if (field.layout == ArrowField::fixed) {
    if (field.width > 0 && array.length > static_cast<int64_t>(array.data.size()) * 8 / field.width) {
      throw BrokenArrow("has a buffer that is too short");
    }
  }
  if (is_index) return array;
  for (const ArrowField& child : field.children)
    array.children.push_back(read_array(child, batch, child.dictionary >= 0));
  for (const ArrowArray& child : array.children) {
    const bool holds = field.layout == ArrowField::object ? child.length >= array.length
                       : field.layout == ArrowField::fixed_list
                           ? field.width == 0 || child.length / field.width >= array.length
                           : true;
    if (!holds) throw BrokenArrow("has columns of different lengths");
  }
  return array;
}

void ArrowFile::read_dictionary(const Message& message) {
  const auto found = dictionaries_.find(message.header.number<int64_t>(0, 0));
  if (found == dictionaries_.end()) throw BrokenArrow("has a dictionary that no column uses");
  Dictionary& dictionary = found->second;
  if (message.header.number<uint8_t>(2, 0) == 0) {
    values_[found->first].clear();
    dictionary.owners.clear();
  }
  Batch batch = open_batch(message.header.table(1), message.body, dictionary.owners);
  values_[found->first].push_back(read_array(dictionary.field, batch, false));
}

bool ArrowFile::read_batch() {
  release_pages(file());
  columns_.clear();
  owners_.clear();
  for (Message message; read_message(message);) {
    if (message.type == kDictionaryBatch) read_dictionary(message);
    if (message.type != kRecordBatch) continue;
    Batch batch = open_batch(message.header, message.body, owners_);
    length_ = message.header.number<int64_t>(0, 0);
    at_ = 0;
    for (const ArrowField& field : fields_) {
      columns_.push_back(read_array(field, batch, field.dictionary >= 0));
      if (columns_.back().length != length_) throw BrokenArrow("has columns of different lengths");
    }
    return true;
  }
  return false;
}

bool ArrowFile::next(RawRecord& record) {
  begin_row(record);
  try {
    while (at_ == length_) {
      if (!read_batch()) return false;
    }
    record.text = "{";
    for (const ArrowArray& column : columns_) {
      if (!column.field->is_read) continue;
      if (record.text.size() > 1) record.text.push_back(',');
      append_json(record.text, std::string_view(column.field->name));
      record.text.push_back(':');
      write_arrow_value(column, at_, values_, record.text);
    }
    record.text.push_back('}');
    ++at_;
  } catch (const BrokenFlatbuffer&) {
    refuse_row(record, "has a broken description");
  } catch (const BrokenArrow& broken) {
    refuse_row(record, broken.what());
  }
  return true;
}

}  // namespace

std::unique_ptr<TableFile> open_arrow(const std::string& path) { return std::make_unique<ArrowFile>(path); }

}  // namespace nibble
