#pragma once
// Arrays of Arrow in memory, and their values as JSON.

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace nibble {

/// How an array lies in buffers, and how its values are written.
struct ArrowField {
  enum Layout {
    nulls,       ///< no buffer
    fixed,       ///< validity, values of `width` bits
    text,        ///< validity, offsets, bytes
    view,        ///< validity, 16 bytes for each: its length, and its bytes or where in `pieces` they are
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
  std::vector<ArrowField> children;
};

struct ArrowArray {
  const ArrowField* field = nullptr;
  int64_t length = 0;
  std::span<const std::byte> validity, offsets, data;
  std::vector<std::span<const std::byte>> pieces;  // of views
  std::vector<ArrowArray> children;
};

/// What the readers of arrays throw; who knows the file's name catches it.
struct BrokenArrow : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The values of each dictionary, in the batches that they came in.
using ArrowDictionaries = std::map<int64_t, std::vector<ArrowArray>>;

/// Integer i of those of `width` bytes, little-endian, without a sign.
inline int64_t load_integer(std::span<const std::byte> bytes, size_t width, size_t i) {
  int64_t value = 0;
  std::memcpy(&value, bytes.data() + i * width, width);
  return value;
}

/// Appends value i of the array, which has it, as JSON.
void write_arrow_value(const ArrowArray& array, int64_t i, const ArrowDictionaries& dictionaries, std::string& text);

}  // namespace nibble
