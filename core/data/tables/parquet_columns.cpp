#include "nibble/core/data/tables/parquet_columns.h"

#include <bit>
#include <cstring>

#include "nibble/core/data/tables/json_text.h"
#include "nibble/core/data/tables/thrift.h"

namespace nibble {

namespace {

using Bytes = std::span<const std::byte>;

constexpr int64_t kLargestPage = int64_t{1} << 30;
// parquet.thrift
enum PageType { kDataPage = 0, kDictionaryPage = 2, kDataPageV2 = 3 };
enum PageEncoding { kPlain = 0, kPlainDictionary = 2, kRuns = 3, kRunDictionary = 8 };

std::string encoding_name(int encoding) {
  static constexpr const char* kNames[] = {
      "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
      "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
      "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
  return encoding >= 0 && encoding < std::ssize(kNames) ? kNames[encoding] : std::to_string(encoding);
}

Bytes cut(Bytes& from, uint64_t count) {
  if (count > from.size()) throw BrokenPage("has a page that ends too early");
  const Bytes front = from.first(count);
  from = from.subspan(count);
  return front;
}

template <typename T>
T little_endian(Bytes bytes) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

int bits_of(uint32_t largest) { return static_cast<int>(std::bit_width(largest)); }

size_t fixed_size(ColumnValue value) {
  switch (value) {
    case ColumnValue::i32:
    case ColumnValue::u32:
    case ColumnValue::f32:
      return 4;
    case ColumnValue::i64:
    case ColumnValue::u64:
    case ColumnValue::f64:
      return 8;
    default:
      return 0;
  }
}

struct PageHeader {
  int32_t type = -1, unpacked_size = -1, packed_size = -1;
  int32_t values = -1, encoding = -1, definition_encoding = kRuns, repetition_encoding = kRuns;
  int32_t definition_bytes = 0, repetition_bytes = 0;
  bool compressed = true;
};

// Of any of the three kinds; `fields`: the member that each field of it goes to.
void read_page_kind(ThriftReader& thrift, std::initializer_list<std::pair<int, int32_t*>> fields, bool* compressed) {
  thrift.read_struct([&](int id, ThriftReader::Type type) {
    for (const auto& [number, member] : fields) {
      if (id == number && type == ThriftReader::i32) *member = thrift.read_i32();
    }
    if (compressed != nullptr && id == 7) *compressed = ThriftReader::truth(type);
  });
}

PageHeader read_header(Bytes& bytes) {
  PageHeader page;
  ThriftReader thrift(bytes);
  thrift.read_struct([&](int id, ThriftReader::Type type) {
    if (type == ThriftReader::i32) {
      if (id == 1) page.type = thrift.read_i32();
      if (id == 2) page.unpacked_size = thrift.read_i32();
      if (id == 3) page.packed_size = thrift.read_i32();
    } else if (type == ThriftReader::structure) {
      if (id == 5) {
        read_page_kind(
            thrift,
            {{1, &page.values}, {2, &page.encoding}, {3, &page.definition_encoding}, {4, &page.repetition_encoding}},
            nullptr);
      } else if (id == 7) {
        read_page_kind(thrift, {{1, &page.values}, {2, &page.encoding}}, nullptr);
      } else if (id == 8) {
        read_page_kind(
            thrift, {{1, &page.values}, {4, &page.encoding}, {5, &page.definition_bytes}, {6, &page.repetition_bytes}},
            &page.compressed);
      }
    }
  });
  bytes = thrift.rest();
  if (page.packed_size < 0 || page.unpacked_size < 0 || page.unpacked_size > kLargestPage) {
    throw BrokenPage("has a page of an impossible size");
  }
  return page;
}

}  // namespace

RunDecoder::RunDecoder(Bytes bytes, int bit_width) : bytes_(bytes), width_(bit_width) {
  if (width_ > 32) throw BrokenPage("has numbers of more than 32 bits in a page");
}

uint64_t RunDecoder::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    const auto next = static_cast<uint8_t>(cut(bytes_, 1)[0]);
    value |= static_cast<uint64_t>(next & 0x7F) << shift;
    if (next < 0x80) return value;
  }
  throw BrokenPage("has a broken run in a page");
}

void RunDecoder::begin_run() {
  const uint64_t head = varint();
  packed_ = (head & 1) != 0;
  left_ = packed_ ? (head >> 1) * 8 : head >> 1;
  if (packed_) {
    // Some writers leave away the last bytes of the last group.
    run_ = cut(bytes_, std::min<uint64_t>(bytes_.size(), (head >> 1) * static_cast<uint64_t>(width_)));
    bit_ = 0;
  } else {
    const Bytes value = cut(bytes_, static_cast<uint64_t>(width_ + 7) / 8);
    value_ = 0;
    std::memcpy(&value_, value.data(), value.size());
  }
}

uint32_t RunDecoder::next() {
  if (width_ == 0) return 0;
  while (left_ == 0) begin_run();
  --left_;
  if (!packed_) return value_;
  const uint64_t first = bit_ / 8;
  if (bit_ + static_cast<uint64_t>(width_) > run_.size() * 8) throw BrokenPage("has a page that ends too early");
  uint64_t window = 0;
  std::memcpy(&window, run_.data() + first, std::min<uint64_t>(8, run_.size() - first));
  const uint64_t value = window >> (bit_ % 8);  // 32 bits behind 7 others fit 8 bytes
  bit_ += static_cast<uint64_t>(width_);
  return static_cast<uint32_t>(value & ((uint64_t{1} << width_) - 1));
}

ColumnCursor::ColumnCursor(const ColumnSchema& schema, const ColumnChunk& chunk) : schema_(schema), chunk_(chunk) {}

Bytes ColumnCursor::unpacked(Bytes packed, int64_t size, bool compressed, std::unique_ptr<std::byte[]>& owner) const {
  if (!compressed || chunk_.codec == BlockCodec::none) {
    if (packed.size() != static_cast<size_t>(size)) throw BrokenPage("has a page of another size than it says");
    return packed;
  }
  owner = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(size));
  const std::span<std::byte> out(owner.get(), static_cast<size_t>(size));
  // A page without values may have no bytes at all.
  if (!(size == 0 && packed.empty()) && !unpack_block(chunk_.codec, packed, out)) {
    throw BrokenPage("has a page that cannot be unpacked");
  }
  return out;
}

void ColumnCursor::read_dictionary(Bytes page, int64_t count) {
  const size_t fixed = fixed_size(schema_.value);
  if (count < 0 || static_cast<uint64_t>(count) > page.size() / 4) throw BrokenPage("has a broken dictionary");
  dictionary_.clear();
  dictionary_.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const Bytes begin = page;
    cut(page, fixed != 0 ? fixed : little_endian<uint32_t>(cut(page, 4)));
    dictionary_.push_back(begin.first(begin.size() - page.size()));
  }
}

void ColumnCursor::begin_values(Bytes bytes, int encoding) {
  if (encoding == kPlainDictionary || encoding == kRunDictionary) {
    encoding_ = Encoding::dictionary;
    indices_ = bytes.empty() ? RunDecoder() : RunDecoder(bytes.subspan(1), static_cast<int>(bytes[0]));
  } else if (encoding == kPlain) {
    encoding_ = schema_.value == ColumnValue::boolean ? Encoding::bits : Encoding::plain;
    plain_ = bytes;
    bit_ = 0;
  } else if (encoding == kRuns && schema_.value == ColumnValue::boolean) {
    encoding_ = Encoding::runs;
    indices_ = RunDecoder(cut(bytes, bytes.empty() ? 0 : little_endian<uint32_t>(cut(bytes, 4))), 1);
  } else {
    throw BrokenPage("has values in the encoding " + encoding_name(encoding) +
                     ", which is not read (plain and dictionary are)");
  }
}

void ColumnCursor::read_page() {
  if (chunk_.pages.empty()) throw BrokenPage("has a column that ends too early");
  const PageHeader page = read_header(chunk_.pages);
  Bytes body = cut(chunk_.pages, static_cast<uint64_t>(page.packed_size));
  if (page.type == kDictionaryPage) {
    return read_dictionary(unpacked(body, page.unpacked_size, true, dictionary_page_), page.values);
  }
  if (page.type != kDataPage && page.type != kDataPageV2) return;  // an index
  if (page.values < 0 || page.values > chunk_.values) throw BrokenPage("has a page with too many values");
  left_in_page_ = page.values;
  const int rep_bits = bits_of(schema_.max_repetition), def_bits = bits_of(schema_.max_definition);
  if (page.type == kDataPageV2) {
    if (page.repetition_bytes < 0 || page.definition_bytes < 0) throw BrokenPage("has broken levels");
    repetitions_ = RunDecoder(cut(body, static_cast<uint64_t>(page.repetition_bytes)), rep_bits);
    definitions_ = RunDecoder(cut(body, static_cast<uint64_t>(page.definition_bytes)), def_bits);
    const int64_t size = int64_t{page.unpacked_size} - page.repetition_bytes - page.definition_bytes;
    if (size < 0) throw BrokenPage("has a page of an impossible size");
    return begin_values(unpacked(body, size, page.compressed, page_), page.encoding);
  }
  body = unpacked(body, page.unpacked_size, true, page_);
  const auto levels = [&](int bits, int encoding) {
    if (bits == 0) return RunDecoder();
    if (encoding != kRuns)
      throw BrokenPage("has levels in the encoding " + encoding_name(encoding) + ", which is not read");
    return RunDecoder(cut(body, little_endian<uint32_t>(cut(body, 4))), bits);
  };
  repetitions_ = levels(rep_bits, page.repetition_encoding);
  definitions_ = levels(def_bits, page.definition_encoding);
  begin_values(body, page.encoding);
}

void ColumnCursor::next_levels() {
  while (left_in_page_ == 0) read_page();
  repetition_ = repetitions_.next();
  definition_ = definitions_.next();
  if (repetition_ > schema_.max_repetition || definition_ > schema_.max_definition) {
    throw BrokenPage("has a level that is too large");
  }
  --left_in_page_;
  --chunk_.values;
  current_ = true;
}

bool ColumnCursor::has() {
  if (!current_ && chunk_.values > 0) next_levels();
  return current_;
}

void ColumnCursor::take(std::string& json) {
  if (!has()) throw BrokenPage("has a column that ends too early");
  current_ = false;
  if (definition_ == schema_.max_definition) return append_value(&json);
  json += "null";
}

void ColumnCursor::skip() {
  if (!has()) throw BrokenPage("has a column that ends too early");
  current_ = false;
  if (definition_ == schema_.max_definition) append_value(nullptr);
}

void ColumnCursor::append_plain(Bytes& bytes, std::string* json) const {
  const size_t fixed = fixed_size(schema_.value);
  const Bytes value = cut(bytes, fixed != 0 ? fixed : little_endian<uint32_t>(cut(bytes, 4)));
  if (json == nullptr) return;
  switch (schema_.value) {
    case ColumnValue::i32:
      return append_json(*json, little_endian<int32_t>(value));
    case ColumnValue::u32:
      return append_json(*json, little_endian<uint32_t>(value));
    case ColumnValue::i64:
      return append_json(*json, little_endian<int64_t>(value));
    case ColumnValue::u64:
      return append_json(*json, little_endian<uint64_t>(value));
    case ColumnValue::f32:
      return append_json(*json, double{little_endian<float>(value)});
    case ColumnValue::f64:
      return append_json(*json, little_endian<double>(value));
    default:
      append_json(*json, std::string_view(reinterpret_cast<const char*>(value.data()), value.size()));
  }
}

void ColumnCursor::append_value(std::string* json) {
  switch (encoding_) {
    case Encoding::plain:
      return append_plain(plain_, json);
    case Encoding::dictionary: {
      const uint32_t index = indices_.next();
      if (index >= dictionary_.size()) throw BrokenPage("has a value that its dictionary lacks");
      Bytes value = dictionary_[index];
      return append_plain(value, json);
    }
    case Encoding::runs: {
      const bool value = indices_.next() != 0;
      if (json != nullptr) append_json(*json, value);
      return;
    }
    default: {
      if (bit_ / 8 >= plain_.size()) throw BrokenPage("has a page that ends too early");
      const bool value = (static_cast<uint8_t>(plain_[bit_ / 8]) >> (bit_ % 8) & 1) != 0;
      ++bit_;
      if (json != nullptr) append_json(*json, value);
    }
  }
}

}  // namespace nibble
