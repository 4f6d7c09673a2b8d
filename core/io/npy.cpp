#include "nibble/core/io/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct NpyType {
  std::string_view descr;
  DType dtype;
};
constexpr std::array<NpyType, 8> kTypes = {{{"<f4", DType::f32},
                                            {"<f8", DType::f64},
                                            {"<f2", DType::f16},
                                            {"<i8", DType::i64},
                                            {"<i4", DType::i32},
                                            {"|i1", DType::i8},
                                            {"|u1", DType::u8},
                                            {"|b1", DType::u8}}};

// The header is a Python dictionary literal with exactly the keys descr, fortran_order and shape, in any order.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  void read() {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      if (key == "descr") {
        read_descr();
      } else if (key == "fortran_order") {
        read_order();
      } else if (key == "shape") {
        read_shape();
      } else {
        refuse("header has an unknown key");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!text_.empty() || !has_descr_ || !has_order_ || !has_shape_) refuse("header is incomplete");
  }

  DType dtype = DType::f32;
  Shape shape;

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw InputError(path_, reason, "write it again with numpy.save");
  }
  void skip_space() {
    const size_t begin = text_.find_first_not_of(" \t\n\r");
    text_.remove_prefix(begin == std::string_view::npos ? text_.size() : begin);
  }
  bool accept(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) refuse(std::string("header lacks '") + c + "'");
  }
  std::string_view string() {
    skip_space();
    const char quote = text_.empty() ? '\0' : text_.front();
    const size_t end = quote == '\'' || quote == '"' ? text_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) refuse("header lacks a string");
    const std::string_view value = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return value;
  }
  void read_descr() {
    skip_space();
    if (text_.empty() || text_.front() == '[') refuse("has a structured element type");
    const std::string_view descr = string();
    for (const NpyType& known : kTypes) {
      if (known.descr == descr) {
        dtype = known.dtype;
        has_descr_ = true;
        return;
      }
    }
    std::string shown(descr.substr(0, 20));
    for (char& c : shown) c = c < 0x20 ? '?' : c;
    refuse("has element type '" + shown + "', not one of <f4 <f8 <f2 <i8 <i4 |i1 |u1 |b1");
  }
  void read_order() {
    skip_space();
    constexpr std::string_view kNo = "False", kYes = "True";
    if (text_.substr(0, kYes.size()) == kYes) refuse("is in Fortran order");
    if (text_.substr(0, kNo.size()) != kNo) refuse("header has no valid fortran_order");
    text_.remove_prefix(kNo.size());
    has_order_ = true;
  }
  void read_shape() {
    expect('(');
    shape.clear();
    while (!accept(')')) {
      shape.push_back(number());
      if (shape.size() > 16) refuse("has too many dimensions");
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    has_shape_ = true;
  }
  int64_t number() {
    skip_space();
    int64_t value = 0;
    size_t digits = 0;
    for (; digits < text_.size() && text_[digits] >= '0' && text_[digits] <= '9'; ++digits) {
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, int64_t{text_[digits] - '0'}, &value)) {
        refuse("has a dimension that overflows");
      }
    }
    if (digits == 0) refuse("header has no valid shape");
    text_.remove_prefix(digits);
    return value;
  }

  std::string_view text_;
  const std::string& path_;
  bool has_descr_ = false, has_order_ = false, has_shape_ = false;
};

constexpr size_t kLeastHeader = 256;  // of what is written; NumPy fills its up to a multiple of 64

std::string header_of(const Shape& shape, DType dtype) {
  std::string_view descr;
  for (const NpyType& known : kTypes) {
    if (known.dtype == dtype && descr.empty()) descr = known.descr;
  }
  NIBBLE_CHECK(!descr.empty(), "NumPy has no element type " + std::string(dtype_name(dtype)));
  std::string text = "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': (";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]) + (shape.size() == 1 ? "," : "");
  }
  text += "), }";
  const size_t before = kMagic.size() + 4;  // magic, version, length
  text.resize(std::max(kLeastHeader, (before + text.size() + 64) / 64 * 64) - before - 1, ' ');
  text += '\n';
  const uint16_t length = static_cast<uint16_t>(text.size());
  const std::array<char, 4> version_and_length = {1, 0, static_cast<char>(length & 255),
                                                  static_cast<char>(length >> 8)};
  return std::string(kMagic) + std::string(version_and_length.data(), 4) + text;
}

}  // namespace

Tensor read_npy(const std::filesystem::path& path) {
  const auto file = std::make_shared<const FileMap>(path.string());
  const auto refuse = [&](const std::string& reason) { throw InputError(path.string(), reason, "is it a .npy file?"); };
  const char* bytes = reinterpret_cast<const char*>(file->data());
  if (file->size() < 12 || std::string_view(bytes, kMagic.size()) != kMagic) refuse("does not start as a .npy file");
  const int version = bytes[6];
  if (version < 1 || version > 3) refuse("has .npy format version " + std::to_string(version));
  uint32_t length = 0;
  const size_t length_bytes = version == 1 ? 2 : 4;
  std::memcpy(&length, bytes + 8, length_bytes);
  const size_t start = 8 + length_bytes + length;
  if (start > file->size()) refuse("truncated header");
  const std::string name = path.string();
  HeaderReader header(std::string_view(bytes + 8 + length_bytes, length), name);
  header.read();
  int64_t count = 1;
  for (const int64_t extent : header.shape) {
    if (__builtin_mul_overflow(count, extent, &count)) refuse("has a shape whose size overflows");
  }
  uint64_t size = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(count), dtype_size(header.dtype), &size) ||
      size != file->size() - start) {
    refuse("has shape " + to_string(header.shape) + " but " + std::to_string(file->size() - start) + " bytes of data");
  }
  return Tensor::view(Storage::mapped(file, start, size), 0, header.shape, header.dtype);
}

std::string NpyWriter::mark(DType dtype) {
  const std::string header = header_of({}, dtype);
  return header.substr(0, header.find('(') + 1);
}

NpyWriter::NpyWriter(const std::filesystem::path& path, const Shape& shape, DType dtype)
    : file_(path), dtype_(dtype), missing_(static_cast<uint64_t>(element_count(shape)) * dtype_size(dtype)) {
  const std::string header = header_of(shape, dtype);
  file_.reserve(header.size() + missing_);
  file_.write(header);
}

void NpyWriter::append(const Tensor& piece) {
  NIBBLE_CHECK(piece.dtype() == dtype_ && piece.bytes() <= missing_, "piece not as declared");
  file_.write(std::span(piece.raw(), piece.bytes()));
  missing_ -= piece.bytes();
}

void NpyWriter::finish() {
  NIBBLE_CHECK(missing_ == 0, "array is incomplete");
  file_.commit();
}

}  // namespace nibble
