#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <type_traits>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/io/gguf/gguf_kinds.h"

namespace nibble {

namespace {

constexpr const char* kRemedy = "the file is damaged or no GGUF file: copy or download it again";
constexpr uint32_t kMostDimensions = 4;
constexpr uint64_t kMostName = 1 << 16;

std::string shown(const std::string& name) {
  std::string text = "\"";
  for (const char c : name.substr(0, 100)) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text + (name.size() > 100 ? "...\"" : "\"");
}

/// Reads forward through the mapped header.
class Cursor {
 public:
  explicit Cursor(const FileMap& map) : map_(map) {}

  uint64_t position() const { return at_; }
  uint64_t left() const { return map_.size() - at_; }
  [[noreturn]] void fail(const std::string& reason) const {
    throw InputError(map_.path(), "byte " + std::to_string(at_) + ": " + reason, kRemedy);
  }

  template <typename T>
  T number() {
    if (left() < sizeof(T)) fail("the file ends inside the header");
    T value;
    std::memcpy(&value, map_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string text(uint64_t most = UINT64_MAX) {
    const auto size = number<uint64_t>();
    if (size > left() || size > most) fail("a text of " + std::to_string(size) + " bytes does not fit the file");
    std::string value(reinterpret_cast<const char*>(map_.data() + at_), size);
    at_ += size;
    return value;
  }
  template <typename T>
  T value() {
    if constexpr (std::is_same_v<T, std::string>) {
      return text();
    } else if constexpr (std::is_same_v<T, bool>) {
      return number<uint8_t>() != 0;
    } else {
      return number<T>();
    }
  }
  /// A count of things that take at least `bytes` each.
  uint64_t count(uint64_t bytes, const char* what) {
    const auto value = number<uint64_t>();
    if (value > left() / bytes) fail(std::to_string(value) + " " + what + " do not fit the file");
    return value;
  }

 private:
  const FileMap& map_;
  uint64_t at_ = 0;
};

/// use(a value of the type of that number)
template <typename Use>
GgufValue with_type(uint32_t kind, const Cursor& cursor, const std::string& unknown, const Use& use) {
  switch (kind) {
    case kU8:
      return use(uint8_t{});
    case kI8:
      return use(int8_t{});
    case kU16:
      return use(uint16_t{});
    case kI16:
      return use(int16_t{});
    case kU32:
      return use(uint32_t{});
    case kI32:
      return use(int32_t{});
    case kF32:
      return use(float{});
    case kBool:
      return use(bool{});
    case kString:
      return use(std::string());
    case kU64:
      return use(uint64_t{});
    case kI64:
      return use(int64_t{});
    case kF64:
      return use(double{});
    default:
      cursor.fail(unknown + std::to_string(kind));
  }
}

template <typename T>
constexpr bool is_whole = std::is_integral_v<T> && !std::is_same_v<T, bool>;

GgufValue read_scalar(Cursor& cursor, uint32_t kind) {
  return with_type(kind, cursor, "unknown kind of value ", [&]<typename T>(T) -> GgufValue {
    if constexpr (is_whole<T> && (sizeof(T) < 4 || std::is_signed_v<T>)) {
      return int64_t{cursor.value<T>()};
    } else {
      return cursor.value<T>();
    }
  });
}

GgufValue read_array(Cursor& cursor) {
  const auto kind = cursor.number<uint32_t>();
  return with_type(kind, cursor, "an array of kind ", [&]<typename T>(T) -> GgufValue {
    constexpr bool kText = std::is_same_v<T, std::string>;
    using Whole = std::conditional_t<std::is_same_v<T, int32_t>, int32_t, int64_t>;
    using Element = std::conditional_t<is_whole<T>, Whole, std::conditional_t<std::is_same_v<T, double>, float, T>>;
    const uint64_t count = cursor.count(kText ? sizeof(uint64_t) : sizeof(T), "elements of an array");
    std::vector<Element> list;
    if (!kText) list.reserve(count);
    for (uint64_t i = 0; i < count; ++i) list.push_back(static_cast<Element>(cursor.value<T>()));
    return list;
  });
}

/// Name, shape and offset; the type's number apart.
GgufTensor read_tensor(Cursor& cursor, uint32_t& type) {
  GgufTensor tensor;
  tensor.name = cursor.text(kMostName);
  const auto dimensions = cursor.number<uint32_t>();
  if (dimensions > kMostDimensions)
    cursor.fail(shown(tensor.name) + " has " + std::to_string(dimensions) + " dimensions");
  int64_t total = 1;  // of the dimensions that are not empty: rows are counted without them
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto size = cursor.number<uint64_t>();
    if (size > INT64_MAX || __builtin_mul_overflow(total, std::max<int64_t>(1, static_cast<int64_t>(size)), &total)) {
      cursor.fail(shown(tensor.name) + " is too large");
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  if (total > INT64_MAX / 8) cursor.fail(shown(tensor.name) + " is too large");
  type = cursor.number<uint32_t>();
  tensor.offset = cursor.number<uint64_t>();
  return tensor;
}

std::optional<int64_t> whole_number(const std::map<std::string, GgufValue>& metadata, const std::string& key,
                                    const std::string& path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  if (const auto* held = std::get_if<uint32_t>(&found->second)) return int64_t{*held};
  if (const auto* held = std::get_if<int64_t>(&found->second)) return *held;
  if (const auto* held = std::get_if<uint64_t>(&found->second); held && *held <= INT64_MAX) {
    return static_cast<int64_t>(*held);
  }
  throw InputError(path, key + " is no whole number", kRemedy);
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : path_(path) {
  std::set<std::string> names;
  metadata_ = read(path, names);
  if (const int64_t count = integer("split.count").value_or(1); count > 1) read_others(count, names);
}

void GgufFile::read_others(int64_t count, std::set<std::string>& names) {
  const auto end_of = [&](int64_t number) {
    return formatted("-%05lld-of-%05lld.gguf", static_cast<long long>(number), static_cast<long long>(count));
  };
  const std::string first = end_of(1), together = "the model is in " + std::to_string(count) + " files";
  if (const int64_t part = integer("split.no").value_or(0); part != 0) {
    throw InputError(path_, "is file " + std::to_string(part + 1) + " of a model in " + std::to_string(count),
                     "give the first one, whose name ends with " + first);
  }
  if (!path_.ends_with(first)) {
    throw InputError(path_, "is the first file of a model in several, but its name does not end with " + first,
                     "give all files the names that they had");
  }
  const std::string begin = path_.substr(0, path_.size() - first.size());
  for (int64_t part = 1; part < count; ++part) {
    const std::string path = begin + end_of(part + 1);
    if (!std::filesystem::exists(path)) throw InputError(path, "is missing beside " + path_, "get it: " + together);
    const Metadata other = read(path, names);
    if (whole_number(other, "split.no", path) != part || whole_number(other, "split.count", path) != count) {
      throw InputError(path, "is not file " + std::to_string(part + 1) + " of the model in " + path_, "get it again");
    }
  }
  const int64_t tensors = std::ssize(tensors_) + std::ssize(unreadable_);
  if (const auto wanted = integer("split.tensors.count"); wanted && *wanted != tensors) {
    throw InputError(
        path_, together + " with " + std::to_string(*wanted) + " tensors, but they hold " + std::to_string(tensors),
        "get the files again");
  }
}

GgufFile::Metadata GgufFile::read(const std::string& path, std::set<std::string>& names) {
  const auto map = std::make_shared<const FileMap>(path);
  Metadata metadata;
  Cursor cursor(*map);
  if (map->size() < 4 || std::memcmp(map->data(), "GGUF", 4) != 0) {
    throw InputError(path, "does not begin with GGUF", "give a GGUF file");
  }
  cursor.number<uint32_t>();
  const auto version = cursor.number<uint32_t>();
  if (version != 2 && version != 3) {
    cursor.fail("version " + std::to_string(version) + (version > 0xffff ? " (big-endian?)" : "") + " is not 2 or 3");
  }
  const uint64_t tensor_count = cursor.count(24, "tensors");
  const uint64_t key_count = cursor.count(13, "keys");
  for (uint64_t i = 0; i < key_count; ++i) {
    const std::string key = cursor.text(kMostName);
    const auto kind = cursor.number<uint32_t>();
    GgufValue value = kind == kArray ? read_array(cursor) : read_scalar(cursor, kind);
    if (!metadata.emplace(key, std::move(value)).second) cursor.fail("key " + shown(key) + " comes twice");
  }
  const size_t first = tensors_.size();
  for (uint64_t i = 0; i < tensor_count; ++i) {
    uint32_t type = 0;
    GgufTensor tensor = read_tensor(cursor, type);
    if (!names.insert(tensor.name).second) cursor.fail("tensor " + shown(tensor.name) + " comes twice");
    if (const auto known = find_gguf_type(type)) {
      tensor.type = *known;
      tensor.file = parts_.size();
      tensors_.push_back(std::move(tensor));
    } else {
      unreadable_.emplace_back(tensor.name, type);
    }
  }
  const int64_t alignment = whole_number(metadata, "general.alignment", path).value_or(32);
  if (alignment < 1 || alignment > (1 << 20)) cursor.fail("general.alignment is " + std::to_string(alignment));
  const auto step = static_cast<uint64_t>(alignment);
  const uint64_t begin = (cursor.position() + step - 1) / step * step;
  const uint64_t space = map->size() > begin ? map->size() - begin : 0;
  for (const GgufTensor& tensor : std::span(tensors_).subspan(first)) {
    const int64_t width = tensor.shape.empty() ? 1 : tensor.shape.back();  // a scalar is a row of one
    const bool whole_blocks = width % gguf_block_elements(tensor.type) == 0;
    const bool fits = whole_blocks && tensor.offset <= space && tensor.bytes() <= space - tensor.offset;
    if (!fits || tensor.offset % step != 0) {
      throw InputError(path, "tensor " + shown(tensor.name) + " does not fit the file", kRemedy);
    }
  }
  parts_.push_back({map, begin});
  return metadata;
}

const GgufTensor* GgufFile::find(const std::string& name) const {
  const auto found = std::ranges::find(tensors_, name, &GgufTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

std::optional<std::string> GgufFile::text(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return std::nullopt;
  if (const auto* held = std::get_if<std::string>(&found->second)) return *held;
  throw InputError(path_, key + " is no text", kRemedy);
}

std::optional<int64_t> GgufFile::integer(const std::string& key) const { return whole_number(metadata_, key, path_); }

std::optional<int32_t> GgufFile::token_id(const std::string& role) const {
  const std::string key = "tokenizer.ggml." + role + "_token_id";
  const std::optional<int64_t> id = integer(key);
  if (!id || *id == -1 || *id == UINT32_MAX) return std::nullopt;
  const std::vector<std::string>* tokens = texts("tokenizer.ggml.tokens");
  const int64_t count = tokens ? std::ssize(*tokens) : INT32_MAX;
  if (*id >= 0 && *id < count) return static_cast<int32_t>(*id);
  throw InputError(path_ + ": " + key,
                   "is " + std::to_string(*id) + ", beyond the " + std::to_string(count) + " tokens", kRemedy);
}

std::optional<double> GgufFile::number(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return std::nullopt;
  if (const auto* held = std::get_if<float>(&found->second)) return double{*held};
  if (const auto* held = std::get_if<double>(&found->second)) return *held;
  return static_cast<double>(*integer(key));
}

const std::vector<std::string>* GgufFile::texts(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : std::get_if<std::vector<std::string>>(&found->second);
}

Tensor GgufFile::rows(const GgufTensor& tensor, int64_t begin, int64_t end, MemoryPool& pool) const {
  const int64_t width = tensor.shape.empty() ? 1 : tensor.shape.back();
  const int64_t count = width == 0 ? 0 : element_count(tensor.shape) / width;
  NIBBLE_CHECK(begin >= 0 && begin <= end && end <= count, tensor.name + ": rows");
  Tensor result = Tensor::empty(pool, {end - begin, width}, DType::f32, tensor.name);
  const Part& part = parts_.at(tensor.file);
  const std::byte* from = part.map->data() + part.data_begin + tensor.offset;
  float* to = result.data<float>();
  parallel_for(end - begin, 16, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      gguf_decode(tensor.type, from + static_cast<uint64_t>(begin + row) * tensor.row_bytes(), width, to + row * width);
    }
  });
  return result;
}

}  // namespace nibble
