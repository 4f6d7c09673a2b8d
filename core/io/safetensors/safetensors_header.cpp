#include "nibble/core/io/safetensors/safetensors_header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "nibble/core/base/error.h"

namespace nibble::detail {

namespace {

constexpr std::string_view kRemedy = "the file is damaged or no safetensors file: copy or download it again";
constexpr size_t kMostDimensions = 16;

struct DTypeName {
  std::string_view name;
  DType dtype;
};
// In the order in which the safetensors library lays tensors out.
constexpr std::array<DTypeName, 10> kDTypes = {{{"I64", DType::i64},
                                                {"F64", DType::f64},
                                                {"F32", DType::f32},
                                                {"I32", DType::i32},
                                                {"BF16", DType::bf16},
                                                {"F16", DType::f16},
                                                {"F8_E4M3", DType::f8_e4m3},
                                                {"I8", DType::i8},
                                                {"U8", DType::u8},
                                                {"BOOL", DType::u8}}};
// What else the format has (safetensors 0.8).
constexpr std::string_view kOtherDTypes[] = {"F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2",
                                             "F4",      "I16",     "U16",         "U32",         "U64",     "C64"};

const DTypeName& known_dtype(DType dtype) {
  for (const DTypeName& known : kDTypes) {
    if (known.dtype == dtype) return known;
  }
  NIBBLE_CHECK(false, "dtype without a safetensors name");
}

// Names come from the file: control characters and endless names must not reach the error line.
std::string shown(const std::string& name) {
  std::string text = "\"";
  for (const char c : name.substr(0, 200)) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text + (name.size() > 200 ? "...\"" : "\"");
}

// Builds the entries while the parser reads: nothing of a hostile header is stored that does not fit the format.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  std::string failure;
  std::string remedy{kRemedy};

  bool start_object(std::size_t) override {
    if (in_array_ || depth_ >= 2) return unexpected("an object");
    if (++depth_ == 2 && !in_metadata()) {
      header_.entries.emplace_back().name = name_;
      seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    }
    return true;
  }
  bool key(string_t& key) override {
    has_key_ = true;
    key_ = key;
    if (depth_ == 1) {
      name_ = key;
      if (!names_.insert(key).second) return refuse("tensor " + shown(key) + " comes twice");
    }
    return true;
  }
  bool end_object() override {
    if (depth_ == 2 && !in_metadata() && !(seen_dtype_ && seen_shape_ && seen_offsets_)) {
      return refuse("tensor " + shown(name_) + " lacks dtype, shape or data_offsets");
    }
    --depth_;
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata() && !in_array_) {
      header_.metadata[key_] = value;
      return true;
    }
    if (depth_ != 2 || in_array_ || key_ != "dtype" || seen_dtype_) return unexpected("a string");
    seen_dtype_ = true;
    for (const DTypeName& known : kDTypes) {
      if (known.name == value) {
        header_.entries.back().dtype = known.dtype;
        return true;
      }
    }
    const std::string which = "tensor " + shown(name_) + " has element type " + shown(value);
    if (std::ranges::count(kOtherDTypes, std::string_view(value)) > 0) {
      remedy = "bring the weights to bf16 first, or take the repository that has them so";
      return refuse(which + ", which nibble does not compute with");
    }
    return refuse(which + ", not one of F32 F16 BF16 F8_E4M3 F64 I64 I32 I8 U8 BOOL");
  }
  bool start_array(std::size_t) override {
    bool* const seen = key_ == "shape" ? &seen_shape_ : key_ == "data_offsets" ? &seen_offsets_ : nullptr;
    if (depth_ != 2 || in_array_ || in_metadata() || seen == nullptr || *seen) return unexpected("an array");
    *seen = in_array_ = true;
    numbers_.clear();
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return unexpected("a number");
    if (value > static_cast<uint64_t>(INT64_MAX)) return refuse("tensor " + shown(name_) + " has a number over 2^63");
    if (numbers_.size() >= kMostDimensions) return refuse("tensor " + shown(name_) + " has too many dimensions");
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    SafetensorsEntry& entry = header_.entries.back();
    if (key_ == "shape") {
      entry.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2 || numbers_[0] > numbers_[1]) {
      return refuse("tensor " + shown(name_) + " has data_offsets that are no range");
    }
    entry.begin = static_cast<uint64_t>(numbers_[0]);
    entry.end = static_cast<uint64_t>(numbers_[1]);
    return true;
  }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction"); }
  bool binary(binary_t&) override { return unexpected("binary"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    return refuse("header is no valid JSON at byte " + std::to_string(position));
  }

 private:
  bool in_metadata() const { return name_ == "__metadata__"; }
  bool refuse(const std::string& reason) {
    if (failure.empty()) failure = reason;
    return false;
  }
  bool unexpected(const std::string& what) {
    return refuse("header has " + what + " where the format has none" +
                  (has_key_ ? " (at " + shown(name_) + ", key " + shown(key_) + ")" : ""));
  }

  SafetensorsHeader& header_;
  std::unordered_set<std::string> names_;
  std::string name_, key_;
  std::vector<int64_t> numbers_;
  int depth_ = 0;
  bool has_key_ = false, in_array_ = false, seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
};

// Elements times size, or no value on overflow.
bool byte_size(const SafetensorsEntry& entry, uint64_t& bytes) {
  int64_t product = 1;
  for (const int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(product, extent, &product)) return false;
  }
  return !__builtin_mul_overflow(static_cast<uint64_t>(product), dtype_size(entry.dtype), &bytes);
}

void check_layout(const SafetensorsHeader& header, uint64_t data_bytes, const std::string& path) {
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    const auto refuse = [&](const std::string& reason) {
      throw InputError(path, "tensor " + shown(entry.name) + " " + reason, std::string(kRemedy));
    };
    uint64_t bytes = 0;
    if (!byte_size(entry, bytes)) refuse("has a shape whose size overflows");
    if (bytes != entry.end - entry.begin) {
      refuse("has shape " + to_string(entry.shape) + ", " + std::to_string(bytes) + " bytes, but " +
             std::to_string(entry.end - entry.begin) + " bytes of data");
    }
    if (entry.end > data_bytes) refuse("ends past the end of the file");
    if (entry.begin < end) refuse("overlaps the tensor before it");
    if (entry.begin > end) refuse("leaves a gap before its data");
    end = entry.end;
  }
  if (end != data_bytes) {
    throw InputError(path, "has " + std::to_string(data_bytes - end) + " bytes after the last tensor",
                     std::string(kRemedy));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, uint64_t data_bytes, const std::string& path) {
  if (text.empty() || text.front() != '{') {
    throw InputError(path, "header does not start with '{'", std::string(kRemedy));
  }
  SafetensorsHeader header;
  HeaderReader reader(header);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) {
    throw InputError(path, reader.failure, reader.remedy);
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(header, data_bytes, path);
  return header;
}

std::string_view safetensors_dtype_name(DType dtype) { return known_dtype(dtype).name; }

int safetensors_dtype_place(DType dtype) { return static_cast<int>(&known_dtype(dtype) - kDTypes.data()); }

}  // namespace nibble::detail
