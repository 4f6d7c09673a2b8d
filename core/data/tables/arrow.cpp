// Arrow's IPC formats: a schema, then record batches and dictionaries, each a Flatbuffer in front of the buffers it
// describes. format/Message.fbs and format/Schema.fbs of apache/arrow.

#include <cmath>
#include <limits>
#include <map>

#include "nibble/core/base/error.h"
#include "nibble/core/data/large_array.h"
#include "nibble/core/data/tables/flatbuffer.h"
#include "nibble/core/data/tables/json_text.h"
#include "nibble/core/data/tables/table_file.h"
#include "nibble/core/io/compression.h"

namespace nibble {

namespace {

using Bytes = std::span<const std::byte>;

constexpr int kMaxDepth = 48;  // lists and structs inside each other
constexpr size_t kMostFields = 10000;
constexpr int64_t kLargestBuffer = int64_t{1} << 32;
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
};

/// How an array lies in buffers, and how its values are written.
struct Field {
  enum Layout {
    nulls,       ///< no buffer
    fixed,       ///< validity, values of `width` bits
    text,        ///< validity, offsets, bytes
    list,        ///< validity, offsets, and the array of elements
    fixed_list,  ///< validity, and the array of elements, `width` for each
    object,      ///< validity, and arrays
  } layout = nulls;
  enum Value { boolean, i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64, other } value = other;
  std::string name;
  int64_t width = 0;
  bool large = false;       ///< offsets of 64 bits
  bool is_read = true;      ///< false: has a form, but none in JSON
  int64_t dictionary = -1;  ///< the values are indices into it
  std::vector<Field> children;
};

struct Array {
  const Field* field = nullptr;
  int64_t length = 0;
  Bytes validity, offsets, data;
  std::vector<Array> children;
};

struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

int64_t load_integer(Bytes bytes, size_t width, size_t i) {
  int64_t value = 0;
  std::memcpy(&value, bytes.data() + i * width, width);
  return value;
}

bool bit_of(Bytes bytes, int64_t i) {
  return (static_cast<uint8_t>(bytes[static_cast<size_t>(i / 8)]) >> (i % 8) & 1) != 0;
}

double half_to_double(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = std::ldexp(fraction, -24);
  if (exponent == 31) value = fraction == 0 ? HUGE_VAL : NAN;
  if (exponent > 0 && exponent < 31) value = std::ldexp(fraction + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

Field::Value integer_value(const FlatTable& type) {
  const bool is_signed = type.number<uint8_t>(1, 0) != 0;
  switch (type.number<int32_t>(0, 0)) {
    case 8:
      return is_signed ? Field::i8 : Field::u8;
    case 16:
      return is_signed ? Field::i16 : Field::u16;
    case 32:
      return is_signed ? Field::i32 : Field::u32;
    case 64:
      return is_signed ? Field::i64 : Field::u64;
    default:
      throw BrokenFlatbuffer();
  }
}

int64_t bits_of(Field::Value value) {
  switch (value) {
    case Field::boolean:
      return 1;
    case Field::i8:
    case Field::u8:
      return 8;
    case Field::i16:
    case Field::u16:
    case Field::f16:
      return 16;
    case Field::i32:
    case Field::u32:
    case Field::f32:
      return 32;
    default:
      return 64;
  }
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
  Field read_field(const FlatTable& table, int depth);
  void set_type(Field& field, int type, const FlatTable& table) const;
  /// Where the nodes and buffers of a batch are read.
  struct Batch {
    FlatTable table;
    Bytes body;
    FlatTable::Vector nodes, buffers;
    size_t next_node = 0, next_buffer = 0;
    bool packed = false;
    std::vector<std::unique_ptr<std::byte[]>>* owners = nullptr;
  };
  Batch open_batch(const FlatTable& table, Bytes body, std::vector<std::unique_ptr<std::byte[]>>& owners) const;
  Bytes read_buffer(Batch& batch) const;
  Array read_array(const Field& field, Batch& batch, bool is_index) const;
  void read_dictionary(const Message& message);
  bool read_batch();
  /// i is in the array.
  void write(const Array& array, int64_t i, std::string& text, int depth) const;
  void write_range(const Array& elements, int64_t begin, int64_t end, std::string& text, int depth) const;
  void write_number(const Array& array, int64_t i, std::string& text) const;
  std::pair<int64_t, int64_t> range(const Array& array, int64_t i, int64_t size) const;

  /// The values of a dictionary, in the batches that they came in.
  struct Dictionary {
    Field field;
    std::vector<std::unique_ptr<std::byte[]>> owners;
    std::vector<Array> pieces;
  };

  Bytes rest_;  // of the file
  std::vector<Field> fields_;
  size_t fields_read_ = 0;
  std::map<int64_t, Dictionary> dictionaries_;
  std::vector<std::unique_ptr<std::byte[]>> owners_;  // of the batch
  std::vector<Array> columns_;
  int64_t length_ = 0, at_ = 0;  // of the batch
};

ArrowFile::ArrowFile(const std::string& path) : TableFile(path), rest_(file()) {
  const auto text = [&](size_t begin) {
    return std::string_view(reinterpret_cast<const char*>(rest_.data()) + begin, kFileMagic.size());
  };
  if (rest_.size() > 18 && text(0) == kFileMagic) {  // the file's form is a stream with a footer
    const int64_t footer = load_integer(rest_.last(10), 4, 0);
    if (text(rest_.size() - 6) != kFileMagic || footer > static_cast<int64_t>(rest_.size()) - 18) {
      refuse("is an Arrow file that is cut off");
    }
    rest_ = rest_.subspan(8, rest_.size() - 18 - static_cast<size_t>(footer));
  }
  try {
    Message message;
    if (!read_message(message) || message.type != kSchema) refuse("is no Arrow file");
    if (message.header.number<int16_t>(0, 0) != 0) refuse("has numbers in big-endian order");
    const FlatTable::Vector fields = message.header.vector(1, 4);
    bool any = false;
    for (size_t i = 0; i < fields.count; ++i) {
      fields_.push_back(read_field(message.header.element(fields, i), 0));
      any = any || fields_.back().is_read;
    }
    if (!any) refuse("has no column of a type that is read");
  } catch (const BrokenFlatbuffer&) {
    refuse("is no Arrow file, or a broken one");
  } catch (const Broken& broken) {
    refuse(broken.what());
  }
}

bool ArrowFile::read_message(Message& message) {
  if (rest_.empty()) return false;
  const auto take = [&](int64_t count) {
    if (count < 0 || static_cast<uint64_t>(count) > rest_.size()) throw Broken("ends too early");
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

void ArrowFile::set_type(Field& field, int type, const FlatTable& table) const {
  static constexpr const char* kNames[] = {"unknown",   "null",     "int",     "float",  "binary",
                                           "utf8",      "bool",     "decimal", "date",   "time",
                                           "timestamp", "interval", "list",    "struct", "union"};
  field.layout = Field::fixed;
  switch (type) {
    case kNull:
      field.layout = Field::nulls;
      return;
    case kInt:
      field.value = integer_value(table);
      break;
    case kFloatingPoint: {
      const auto precision = table.number<int16_t>(0, 0);
      field.value = precision == 0 ? Field::f16 : precision == 1 ? Field::f32 : Field::f64;
      break;
    }
    case kBool:
      field.value = Field::boolean;
      break;
    case kDate:
      field.value = table.number<int16_t>(0, 1) == 0 ? Field::i32 : Field::i64;
      break;
    case kTime:
      field.value = table.number<int32_t>(1, 32) == 32 ? Field::i32 : Field::i64;
      break;
    case kTimestamp:
    case kDuration:
      field.value = Field::i64;
      break;
    case kUtf8:
    case kLargeUtf8:
    case kBinary:
    case kLargeBinary:
      field.layout = Field::text;
      field.large = type == kLargeUtf8 || type == kLargeBinary;
      field.is_read = type == kUtf8 || type == kLargeUtf8;
      return;
    case kList:
    case kLargeList:
    case kMap:
      field.layout = Field::list;
      field.large = type == kLargeList;
      field.is_read = type != kMap;
      return;
    case kFixedSizeList:
      field.layout = Field::fixed_list;
      field.width = table.number<int32_t>(0, 0);
      return;
    case kStruct:
      field.layout = Field::object;
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
    default:
      throw Broken("has column \"" + field.name + "\" of Arrow's type " +
                   (type > 0 && type < 15 ? kNames[type] : std::to_string(type)) + ", which is not read");
  }
  if (field.value != Field::other) field.width = bits_of(field.value);
  field.is_read = field.value != Field::other;
  if (field.width < 0) throw BrokenFlatbuffer();
}

Field ArrowFile::read_field(const FlatTable& table, int depth) {
  // Tables of a Flatbuffer may have others in common: a small file may describe very many.
  if (depth > kMaxDepth || ++fields_read_ > kMostFields) throw BrokenFlatbuffer();
  Field field;
  field.name = table.text(0);
  set_type(field, table.number<uint8_t>(2, 0), table.table(3));
  const FlatTable::Vector children = table.vector(5, 4);
  bool any = false;
  for (size_t i = 0; i < children.count; ++i) {
    field.children.push_back(read_field(table.element(children, i), depth + 1));
    any = any || field.children.back().is_read;
  }
  const bool has_one = field.layout == Field::list || field.layout == Field::fixed_list;
  if ((has_one && children.count != 1) || field.width < 0) throw BrokenFlatbuffer();
  if (has_one || field.layout == Field::object) field.is_read = field.is_read && any;
  if (const FlatTable dictionary = table.table(4); dictionary.is_there()) {
    const auto id = dictionary.number<int64_t>(0, 0);
    if (id < 0) throw BrokenFlatbuffer();
    Field index;
    index.name = field.name;
    index.layout = Field::fixed;
    const FlatTable type = dictionary.table(1);
    index.value = type.is_there() ? integer_value(type) : Field::i32;
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
  Batch batch{table, body, table.vector(1, 16), table.vector(2, 16)};
  batch.owners = &owners;
  if (const FlatTable compression = table.table(3); compression.is_there()) {
    if (compression.number<int8_t>(0, 0) != 1)
      throw Broken("is compressed with lz4; write it again with zstd or plain");
    batch.packed = true;
  }
  return batch;
}

Bytes ArrowFile::read_buffer(Batch& batch) const {
  if (batch.next_buffer == batch.buffers.count) throw Broken("has too few buffers");
  const size_t i = batch.next_buffer++;
  const int64_t begin = batch.table.number_in(batch.buffers, i, 16, 0);
  const int64_t size = batch.table.number_in(batch.buffers, i, 16, 8);
  const auto most = static_cast<int64_t>(batch.body.size());
  if (begin < 0 || size < 0 || begin > most || size > most - begin) throw Broken("has a buffer outside of its batch");
  Bytes buffer = batch.body.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
  if (!batch.packed || buffer.empty()) return buffer;
  if (buffer.size() < 8) throw Broken("has a broken buffer");
  const int64_t unpacked = load_integer(buffer, 8, 0);
  buffer = buffer.subspan(8);
  if (unpacked == -1) return buffer;
  if (unpacked < 0 || unpacked > kLargestBuffer) throw Broken("has a buffer of an impossible size");
  batch.owners->push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(unpacked)));
  const std::span<std::byte> out(batch.owners->back().get(), static_cast<size_t>(unpacked));
  if (!unpack_block(BlockCodec::zstd, buffer, out)) throw Broken("has a buffer that cannot be unpacked");
  return out;
}

Array ArrowFile::read_array(const Field& field, Batch& batch, bool is_index) const {
  if (batch.next_node == batch.nodes.count) throw Broken("has too few columns in a batch");
  Array array;
  array.field = &field;
  array.length = batch.table.number_in(batch.nodes, batch.next_node, 16, 0);
  const int64_t null_count = batch.table.number_in(batch.nodes, batch.next_node, 16, 8);
  ++batch.next_node;
  if (array.length < 0 || array.length > std::numeric_limits<int64_t>::max() / 1024)
    throw Broken("has a broken length");
  if (field.layout == Field::nulls) return array;
  const auto needs = [&](Bytes bytes, int64_t bits) {
    if (static_cast<int64_t>(bytes.size()) < (bits + 7) / 8) throw Broken("has a buffer that is too short");
  };
  array.validity = read_buffer(batch);
  if (null_count == 0) array.validity = {};
  if (!array.validity.empty()) needs(array.validity, array.length);
  if (null_count > 0 && array.validity.empty() && array.length > 0) throw Broken("has nulls without saying where");
  if (field.layout == Field::text || field.layout == Field::list) {
    array.offsets = read_buffer(batch);
    if (array.length > 0) needs(array.offsets, (array.length + 1) * (field.large ? 64 : 32));
  }
  if (field.layout == Field::text || field.layout == Field::fixed) array.data = read_buffer(batch);
  if (field.layout == Field::fixed) {
    if (field.width > 0 && array.length > static_cast<int64_t>(array.data.size()) * 8 / field.width) {
      throw Broken("has a buffer that is too short");
    }
  }
  if (is_index) return array;
  for (const Field& child : field.children) array.children.push_back(read_array(child, batch, child.dictionary >= 0));
  for (const Array& child : array.children) {
    const bool holds = field.layout == Field::object ? child.length >= array.length
                       : field.layout == Field::fixed_list
                           ? field.width == 0 || child.length / field.width >= array.length
                           : true;
    if (!holds) throw Broken("has columns of different lengths");
  }
  return array;
}

void ArrowFile::read_dictionary(const Message& message) {
  const auto found = dictionaries_.find(message.header.number<int64_t>(0, 0));
  if (found == dictionaries_.end()) throw Broken("has a dictionary that no column uses");
  Dictionary& dictionary = found->second;
  if (message.header.number<uint8_t>(2, 0) == 0) {
    dictionary.pieces.clear();
    dictionary.owners.clear();
  }
  Batch batch = open_batch(message.header.table(1), message.body, dictionary.owners);
  dictionary.pieces.push_back(read_array(dictionary.field, batch, false));
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
    for (const Field& field : fields_) {
      columns_.push_back(read_array(field, batch, field.dictionary >= 0));
      if (columns_.back().length != length_) throw Broken("has columns of different lengths");
    }
    return true;
  }
  return false;
}

std::pair<int64_t, int64_t> ArrowFile::range(const Array& array, int64_t i, int64_t size) const {
  const size_t width = array.field->large ? 8 : 4;
  int64_t begin = load_integer(array.offsets, width, static_cast<size_t>(i));
  int64_t end = load_integer(array.offsets, width, static_cast<size_t>(i) + 1);
  if (begin < 0 || end < begin || end > size) throw Broken("has offsets outside of its data");
  return {begin, end};
}

void ArrowFile::write_number(const Array& array, int64_t i, std::string& text) const {
  const auto as = [&]<typename T>(T value) {
    std::memcpy(&value, array.data.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  };
  switch (array.field->value) {
    case Field::boolean:
      return append_json(text, bit_of(array.data, i));
    case Field::i8:
      return append_json(text, static_cast<int>(as(int8_t{})));
    case Field::u8:
      return append_json(text, static_cast<int>(as(uint8_t{})));
    case Field::i16:
      return append_json(text, as(int16_t{}));
    case Field::u16:
      return append_json(text, as(uint16_t{}));
    case Field::i32:
      return append_json(text, as(int32_t{}));
    case Field::u32:
      return append_json(text, as(uint32_t{}));
    case Field::i64:
      return append_json(text, as(int64_t{}));
    case Field::u64:
      return append_json(text, as(uint64_t{}));
    case Field::f16:
      return append_json(text, half_to_double(as(uint16_t{})));
    case Field::f32:
      return append_json(text, double{as(float{})});
    default:
      append_json(text, as(double{}));
  }
}

void ArrowFile::write_range(const Array& elements, int64_t begin, int64_t end, std::string& text, int depth) const {
  text.push_back('[');
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) text.push_back(',');
    write(elements, i, text, depth + 1);
  }
  text.push_back(']');
}

void ArrowFile::write(const Array& array, int64_t i, std::string& text, int depth) const {
  const Field& field = *array.field;
  if (text.size() > RecordReader::kMaxRecordBytes) throw Broken("has a row that is longer than 64 MiB");
  // A dictionary whose values use a dictionary may be its own.
  if (depth > 2 * kMaxDepth) throw Broken("has values too deep inside each other");
  if (field.layout == Field::nulls || (!array.validity.empty() && !bit_of(array.validity, i))) {
    text += "null";
    return;
  }
  if (field.dictionary >= 0) {
    std::string index;
    write_number(array, i, index);
    int64_t left = 0;
    std::from_chars(index.data(), index.data() + index.size(), left);
    for (const Array& piece : dictionaries_.at(field.dictionary).pieces) {
      if (left >= 0 && left < piece.length) return write(piece, left, text, depth + 1);
      left -= piece.length;
    }
    throw Broken("has a value that its dictionary lacks");
  }
  switch (field.layout) {
    case Field::fixed:
      return write_number(array, i, text);
    case Field::text: {
      const auto [begin, end] = range(array, i, static_cast<int64_t>(array.data.size()));
      const auto* letters = reinterpret_cast<const char*>(array.data.data());
      return append_json(text, std::string_view(letters + begin, static_cast<size_t>(end - begin)));
    }
    case Field::list: {
      const auto [begin, end] = range(array, i, array.children[0].length);
      return write_range(array.children[0], begin, end, text, depth);
    }
    case Field::fixed_list:
      return write_range(array.children[0], i * field.width, (i + 1) * field.width, text, depth);
    default:
      text.push_back('{');
      for (const Array& child : array.children) {
        if (!child.field->is_read) continue;
        if (text.back() != '{') text.push_back(',');
        append_json(text, std::string_view(child.field->name));
        text.push_back(':');
        write(child, i, text, depth + 1);
      }
      text.push_back('}');
  }
}

bool ArrowFile::next(RawRecord& record) {
  begin_row(record);
  try {
    while (at_ == length_) {
      if (!read_batch()) return false;
    }
    record.text = "{";
    for (const Array& column : columns_) {
      if (!column.field->is_read) continue;
      if (record.text.size() > 1) record.text.push_back(',');
      append_json(record.text, std::string_view(column.field->name));
      record.text.push_back(':');
      write(column, at_, record.text, 0);
    }
    record.text.push_back('}');
    ++at_;
  } catch (const BrokenFlatbuffer&) {
    refuse_row(record, "has a broken description");
  } catch (const Broken& broken) {
    refuse_row(record, broken.what());
  }
  return true;
}

}  // namespace

std::unique_ptr<TableFile> open_arrow(const std::string& path) { return std::make_unique<ArrowFile>(path); }

}  // namespace nibble
