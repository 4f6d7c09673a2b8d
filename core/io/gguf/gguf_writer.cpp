#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/io/gguf/gguf_kinds.h"

namespace nibble {

namespace {

constexpr uint64_t kAlignment = 32;  // the format's default
constexpr uint32_t kVersion = 3;

constexpr int32_t kInfinityBits = std::bit_cast<int32_t>(std::numeric_limits<float>::infinity());
// Scales and offsets of blocks are f16, up to 65504, and at most the distance between two values.
constexpr int32_t kSurelyHeld = std::bit_cast<int32_t>(32000.0f);

// As bits, of which those of infinity and NaN are above those of all numbers.
int32_t largest_magnitude(const float* x, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  return largest;
}

uint64_t aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

/// The header as bytes.
class Header {
 public:
  std::string bytes;

  template <typename T>
  void number(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes.append(raw, sizeof(T));
  }
  void text(const std::string& value) {
    number<uint64_t>(value.size());
    bytes += value;
  }
  void value(const GgufValue& value) {
    std::visit([this](const auto& held) { typed(held); }, value);
  }

 private:
  void typed(bool v) { number<uint32_t>(kBool), number<uint8_t>(v); }
  void typed(uint32_t v) { number<uint32_t>(kU32), number(v); }
  void typed(int64_t v) { number<uint32_t>(kI64), number(v); }
  void typed(uint64_t v) { number<uint32_t>(kU64), number(v); }
  void typed(float v) { number<uint32_t>(kF32), number(v); }
  void typed(double v) { number<uint32_t>(kF64), number(v); }
  void typed(const std::string& v) { number<uint32_t>(kString), text(v); }
  void array(GgufKind kind, uint64_t count) { number<uint32_t>(kArray), number<uint32_t>(kind), number(count); }
  void typed(const std::vector<bool>& v) {
    array(kBool, v.size());
    for (const bool element : v) number<uint8_t>(element);
  }
  void typed(const std::vector<int64_t>& v) {
    array(kI64, v.size());
    for (const int64_t element : v) number(element);
  }
  void typed(const std::vector<int32_t>& v) {
    array(kI32, v.size());
    for (const int32_t element : v) number(element);
  }
  void typed(const std::vector<float>& v) {
    array(kF32, v.size());
    for (const float element : v) number(element);
  }
  void typed(const std::vector<std::string>& v) {
    array(kString, v.size());
    for (const std::string& element : v) text(element);
  }
};

}  // namespace

uint64_t GgufTensor::row_bytes() const {
  const int64_t width = shape.empty() ? 1 : shape.back();
  return static_cast<uint64_t>(width / gguf_block_elements(type) * gguf_block_bytes(type));
}

uint64_t GgufTensor::bytes() const {
  const int64_t width = shape.empty() ? 1 : shape.back();
  return width == 0 ? 0 : static_cast<uint64_t>(element_count(shape) / width) * row_bytes();
}

GgufWriter::GgufWriter(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, GgufValue>>& metadata, std::vector<GgufTensor> tensors,
                       Replace replace)
    : file_(path, replace) {
  Header header;
  header.bytes = "GGUF";
  header.number(kVersion);
  header.number<uint64_t>(tensors.size());
  header.number<uint64_t>(metadata.size());
  for (const auto& [key, value] : metadata) {
    header.text(key);
    header.value(value);
  }
  uint64_t offset = 0;
  for (GgufTensor& tensor : tensors) {
    if (!tensor.shape.empty() && tensor.shape.back() % gguf_block_elements(tensor.type) != 0) {
      throw UsageError(tensor.name + " has rows of " + std::to_string(tensor.shape.back()) + " elements, " +
                           std::string(gguf_type_name(tensor.type)) + " needs a multiple of " +
                           std::to_string(gguf_block_elements(tensor.type)),
                       "use f16", path.string());
    }
    tensor.offset = offset;
    header.text(tensor.name);
    header.number<uint32_t>(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) header.number(*size);
    header.number(static_cast<uint32_t>(tensor.type));
    header.number(offset);
    offset = aligned(offset + tensor.bytes());
    const std::string name = tensor.name;
    NIBBLE_CHECK(slots_.emplace(name, Slot{std::move(tensor)}).second, name + " comes twice");
  }
  data_begin_ = aligned(header.bytes.size());
  header.bytes.resize(data_begin_, '\0');
  bytes_ = data_begin_ + offset;
  file_.reserve(bytes_);
  file_.write(header.bytes);
}

void GgufWriter::append(const std::string& name, const Tensor& rows) {
  const auto found = slots_.find(name);
  NIBBLE_CHECK(found != slots_.end(), name + " was not announced");
  Slot& slot = found->second;
  const GgufTensor& tensor = slot.tensor;
  const int64_t width = tensor.shape.empty() ? 1 : tensor.shape.back(), count = rows.numel() / width;
  std::vector<std::byte> encoded(static_cast<size_t>(count) * tensor.row_bytes());
  NIBBLE_CHECK(slot.written + encoded.size() <= tensor.bytes(), name + " has more rows than announced");
  const float* from = rows.data<const float>();
  std::byte* to = encoded.data();
  parallel_for(count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* values = from + row * width;
      std::byte* blocks = to + static_cast<uint64_t>(row) * tensor.row_bytes();
      const int32_t largest = largest_magnitude(values, width);
      if (largest >= kInfinityBits) {
        throw NumericError(name, "has a value that is not finite", "the weights are damaged: get them again");
      }
      gguf_encode(tensor.type, values, width, blocks);
      if (largest < kSurelyHeld) continue;
      std::vector<float> again(static_cast<size_t>(width));
      gguf_decode(tensor.type, blocks, width, again.data());
      if (largest_magnitude(again.data(), width) >= kInfinityBits) {
        throw NumericError(name, "has a value that " + std::string(gguf_type_name(tensor.type)) + " does not hold",
                           "use bf16 or f32");
      }
    }
  });
  file_.write_at(data_begin_ + tensor.offset + slot.written, encoded);
  slot.written += encoded.size();
}

void GgufWriter::finish() {
  uint64_t end = data_begin_;
  for (const auto& [name, slot] : slots_) {
    NIBBLE_CHECK(slot.written == slot.tensor.bytes(), name + " is not whole");
    end = std::max(end, data_begin_ + slot.tensor.offset + slot.tensor.bytes());
  }
  if (end < bytes_) file_.write_at(bytes_ - 1, std::array<std::byte, 1>{});  // padding reads as zeros
  file_.commit();
}

}  // namespace nibble
