#include "nibble/core/data/tables/arrow_values.h"

#include <charconv>
#include <cmath>

#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/data/tables/json_text.h"

namespace nibble {

namespace {

using Bytes = std::span<const std::byte>;

constexpr int kMostNestedValues = 100;  // of arrays and dictionaries inside each other

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

std::pair<int64_t, int64_t> range(const ArrowArray& array, int64_t i, int64_t size) {
  const size_t width = array.field->large ? 8 : 4;
  int64_t begin = load_integer(array.offsets, width, static_cast<size_t>(i));
  int64_t end = load_integer(array.offsets, width, static_cast<size_t>(i) + 1);
  if (begin < 0 || end < begin || end > size) throw BrokenArrow("has offsets outside of its data");
  return {begin, end};
}

// Of a text that is a view: up to 12 bytes beside its length, or else in a piece, behind a copy of the first four.
std::string_view viewed(const ArrowArray& array, int64_t i) {
  constexpr size_t kView = 16, kInside = 12;
  const Bytes view = array.data.subspan(static_cast<size_t>(i) * kView, kView);
  const auto length = static_cast<size_t>(load_integer(view, 4, 0));
  if (length <= kInside) return {reinterpret_cast<const char*>(view.data()) + 4, length};
  const auto piece = static_cast<size_t>(load_integer(view, 4, 2)),
             begin = static_cast<size_t>(load_integer(view, 4, 3));
  if (piece >= array.pieces.size() || begin + length > array.pieces[piece].size()) {
    throw BrokenArrow("has a text outside of its data");
  }
  return {reinterpret_cast<const char*>(array.pieces[piece].data()) + begin, length};
}

void write_number(const ArrowArray& array, int64_t i, std::string& text) {
  const auto as = [&]<typename T>(T value) {
    std::memcpy(&value, array.data.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  };
  switch (array.field->value) {
    case ArrowField::boolean:
      return append_json(text, bit_of(array.data, i));
    case ArrowField::i8:
      return append_json(text, static_cast<int>(as(int8_t{})));
    case ArrowField::u8:
      return append_json(text, static_cast<int>(as(uint8_t{})));
    case ArrowField::i16:
      return append_json(text, as(int16_t{}));
    case ArrowField::u16:
      return append_json(text, as(uint16_t{}));
    case ArrowField::i32:
      return append_json(text, as(int32_t{}));
    case ArrowField::u32:
      return append_json(text, as(uint32_t{}));
    case ArrowField::i64:
      return append_json(text, as(int64_t{}));
    case ArrowField::u64:
      return append_json(text, as(uint64_t{}));
    case ArrowField::f16:
      return append_json(text, half_to_double(as(uint16_t{})));
    case ArrowField::f32:
      return append_json(text, double{as(float{})});
    default:
      append_json(text, as(double{}));
  }
}

class ValueWriter {
 public:
  ValueWriter(const ArrowDictionaries& dictionaries, std::string& text) : dictionaries_(dictionaries), text_(text) {}
  void write(const ArrowArray& array, int64_t i, int depth) const;

 private:
  void write_range(const ArrowArray& elements, int64_t begin, int64_t end, int depth) const;

  const ArrowDictionaries& dictionaries_;
  std::string& text_;
};

void ValueWriter::write_range(const ArrowArray& elements, int64_t begin, int64_t end, int depth) const {
  text_.push_back('[');
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) text_.push_back(',');
    write(elements, i, depth + 1);
  }
  text_.push_back(']');
}

void ValueWriter::write(const ArrowArray& array, int64_t i, int depth) const {
  const ArrowField& field = *array.field;
  if (text_.size() > RecordReader::kMaxRecordBytes) throw BrokenArrow("has a row that is longer than 64 MiB");
  // A dictionary whose values use a dictionary may be its own.
  if (depth > kMostNestedValues) throw BrokenArrow("has values too deep inside each other");
  if (field.layout == ArrowField::nulls || (!array.validity.empty() && !bit_of(array.validity, i))) {
    text_ += "null";
    return;
  }
  if (field.dictionary >= 0) {
    std::string index;
    write_number(array, i, index);
    int64_t left = 0;
    std::from_chars(index.data(), index.data() + index.size(), left);
    const auto values = dictionaries_.find(field.dictionary);
    if (values == dictionaries_.end()) throw BrokenArrow("has values of a dictionary that is not there");
    for (const ArrowArray& piece : values->second) {
      if (left >= 0 && left < piece.length) return write(piece, left, depth + 1);
      left -= piece.length;
    }
    throw BrokenArrow("has a value that its dictionary lacks");
  }
  switch (field.layout) {
    case ArrowField::fixed:
      return write_number(array, i, text_);
    case ArrowField::text: {
      const auto [begin, end] = range(array, i, static_cast<int64_t>(array.data.size()));
      const auto* letters = reinterpret_cast<const char*>(array.data.data());
      return append_json(text_, std::string_view(letters + begin, static_cast<size_t>(end - begin)));
    }
    case ArrowField::view:
      return append_json(text_, viewed(array, i));
    case ArrowField::list: {
      const auto [begin, end] = range(array, i, array.children[0].length);
      return write_range(array.children[0], begin, end, depth);
    }
    case ArrowField::fixed_list:
      return write_range(array.children[0], i * field.width, (i + 1) * field.width, depth);
    default:
      text_.push_back('{');
      for (const ArrowArray& child : array.children) {
        if (!child.field->is_read) continue;
        if (text_.back() != '{') text_.push_back(',');
        append_json(text_, std::string_view(child.field->name));
        text_.push_back(':');
        write(child, i, depth + 1);
      }
      text_.push_back('}');
  }
}

}  // namespace

void write_arrow_value(const ArrowArray& array, int64_t i, const ArrowDictionaries& dictionaries, std::string& text) {
  ValueWriter(dictionaries, text).write(array, i, 0);
}

}  // namespace nibble
