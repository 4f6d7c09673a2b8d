#include "nibble/quant/bnb_layout.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/quant/codec.h"
#include "nibble/quant/tables.h"

namespace nibble {

namespace {

constexpr std::string_view kAbsmax = ".absmax", kQuantMap = ".quant_map", kNestedAbsmax = ".nested_absmax",
                           kNestedMap = ".nested_quant_map", kState = ".quant_state.bitsandbytes__";
constexpr QuantType kTypes[] = {QuantType::nf4, QuantType::fp4};
constexpr size_t kLargestState = 4096;  // bytes; real ones have 90 to 180

std::string state_name(const std::string& weight, QuantType type) {
  return weight + std::string(kState) + std::string(quant_type_name(type));
}

struct TorchDType {
  std::string_view name;
  DType dtype;
};
constexpr TorchDType kTorchDTypes[] = {{"bfloat16", DType::bf16}, {"float16", DType::f16}, {"float32", DType::f32}};

std::string torch_dtype_name(DType dtype) {
  for (const TorchDType& known : kTorchDTypes) {
    if (known.dtype == dtype) return std::string(known.name);
  }
  NIBBLE_CHECK(false, "dtype of an unquantized weight");
}

// repr(float) of Python: the shortest digits that read back the same, exponents below 1e-4 and from 1e16.
std::string python_repr(double value) {
  std::array<char, 64> buffer;
  const double magnitude = std::abs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto format = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
  std::string text(buffer.data(), end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

Tensor as_bytes(const Tensor& tensor, Shape shape) {
  const auto offset = static_cast<size_t>(tensor.raw() - tensor.storage()->data());
  return Tensor::view(tensor.storage(), offset, std::move(shape), DType::u8);
}

// Reads the parts of one weight; every error names file and tensor.
class StateReader {
 public:
  StateReader(const CheckpointDir& checkpoint, const std::string& weight, MemoryPool& pool)
      : checkpoint_(checkpoint), weight_(weight), pool_(pool) {}

  QuantizedMatrix read() {
    read_state();
    read_packed();
    copy_finite(kQuantMap, matrix_.table);
    if (checkpoint_.contains(weight_ + std::string(kNestedAbsmax))) {
      read_double_quantized();
    } else {
      matrix_.absmax = read_absmax();
    }
    return std::move(matrix_);
  }

 private:
  [[noreturn]] void refuse(const std::string& tensor, const std::string& reason) const {
    throw InputError(checkpoint_.file_of(tensor) + ": " + tensor, reason,
                     "the checkpoint is damaged or of another kind: quantize the original model again");
  }

  Tensor part(std::string_view suffix) const {
    const std::string name = weight_ + std::string(suffix);
    const Tensor found = checkpoint_.find(name);
    if (!found) refuse(weight_, "lacks its part " + name);
    return found;
  }

  void read_state() {
    std::string name;
    for (const QuantType type : kTypes) {
      if (!checkpoint_.contains(state_name(weight_, type))) continue;
      if (!name.empty()) refuse(weight_, "has the states of two types");
      name = state_name(weight_, type);
      matrix_.type = type;
    }
    if (name.empty()) refuse(weight_, "has no quant_state of bitsandbytes");
    const Tensor bytes = checkpoint_.at(name);
    if (bytes.dtype() != DType::u8 || bytes.bytes() > kLargestState) refuse(name, "is no JSON text");
    JsonLimits limits;
    limits.max_depth = 4;
    limits.unique_keys = true;
    const nlohmann::json state = parse_json({reinterpret_cast<const char*>(bytes.raw()), bytes.bytes()},
                                            checkpoint_.file_of(name) + ": " + name, limits);
    if (!state.is_object()) refuse(name, "is no JSON object");
    if (field<std::string>(state, name, "quant_type") != quant_type_name(matrix_.type)) {
      refuse(name, "says another quant_type than its name");
    }
    matrix_.block_size = block_size(state, name, "blocksize");
    matrix_.original_dtype = dtype(state, name);
    matrix_.shape = shape(state, name);
    if (matrix_.shape.size() == 3) {
      matrix_.matrices = matrix_.shape[0];
      matrix_.shape = {matrix_.shape[0] * matrix_.shape[1], matrix_.shape[2]};
    }
    // Other writers put zeros there where nothing is nested.
    if (!checkpoint_.contains(weight_ + std::string(kNestedAbsmax))) return;
    matrix_.nested_block_size = block_size(state, name, "nested_blocksize");
    matrix_.nested_offset = static_cast<float>(field<double>(state, name, "nested_offset"));
    if (!std::isfinite(matrix_.nested_offset)) refuse(name, "has a nested_offset that is not finite");
  }

  template <typename T>
  T field(const nlohmann::json& state, const std::string& name, const char* key) const {
    const auto found = state.find(key);
    bool fits = found != state.end();
    if constexpr (std::is_same_v<T, std::string>) fits = fits && found->is_string();
    if constexpr (std::is_same_v<T, double>) fits = fits && found->is_number();
    if constexpr (std::is_same_v<T, int64_t>) fits = fits && found->is_number_integer();
    if (!fits) refuse(name, std::string("lacks a valid ") + key);
    return found->get<T>();
  }

  int64_t block_size(const nlohmann::json& state, const std::string& name, const char* key) const {
    const int64_t size = field<int64_t>(state, name, key);
    try {
      check_block_size(size);
    } catch (const UsageError&) {
      refuse(name, std::string("has ") + key + " " + std::to_string(size));
    }
    return size;
  }

  DType dtype(const nlohmann::json& state, const std::string& name) const {
    const std::string text = field<std::string>(state, name, "dtype");
    for (const TorchDType& known : kTorchDTypes) {
      if (known.name == text) return known.dtype;
    }
    refuse(name, "has a dtype other than bfloat16, float16 and float32");
  }

  Shape shape(const nlohmann::json& state, const std::string& name) const {
    const auto found = state.find("shape");
    if (found == state.end() || !found->is_array() || (found->size() != 2 && found->size() != 3)) {
      refuse(name, "lacks a shape [out, in]");
    }
    Shape extents;
    int64_t count = 1;
    for (const nlohmann::json& extent : *found) {
      if (!extent.is_number_unsigned() || extent.get<uint64_t>() > (uint64_t{1} << 40) || extent == 0 ||
          __builtin_mul_overflow(count, extent.get<int64_t>(), &count)) {
        refuse(name, "has an impossible shape");
      }
      extents.push_back(extent.get<int64_t>());
    }
    return extents;
  }

  void read_packed() {
    const Tensor packed = part("");
    const int64_t bytes = (element_count(matrix_.shape) + 1) / 2;
    if (static_cast<int64_t>(packed.bytes()) != bytes) {
      refuse(weight_, "has " + std::to_string(packed.bytes()) + " bytes, its shape " + to_string(matrix_.shape) +
                          " needs " + std::to_string(bytes));
    }
    if (packed.rank() == 2 && packed.dim(0) == 1 && packed.dim(1) > 1) {
      refuse(weight_, "is packed in the transposed form " + to_string(packed.shape()) + " of early versions");
    }
    matrix_.packed = as_bytes(packed, {bytes, 1});
  }

  // A part of `count` floats as flat f32: the mapped tensor itself if it is that.
  Tensor floats(std::string_view suffix, int64_t count) const {
    const Tensor found = part(suffix);
    const std::string name = weight_ + std::string(suffix);
    if (found.numel() != count) {
      refuse(name, "has shape " + to_string(found.shape()) + ", not " + std::to_string(count) + " elements");
    }
    if (found.dtype() == DType::f32) return found.reshape({count});
    if (found.dtype() != DType::bf16 && found.dtype() != DType::f16) refuse(name, "is no float tensor");
    Tensor wide = Tensor::empty(pool_, {count}, DType::f32, name);
    float* const out = wide.data<float>();
    for (int64_t i = 0; i < count; ++i) {
      uint16_t bits;
      std::memcpy(&bits, found.raw() + i * 2, sizeof(bits));
      out[i] = found.dtype() == DType::bf16 ? static_cast<float>(std::bit_cast<bf16>(bits))
                                            : static_cast<float>(std::bit_cast<f16>(bits));
    }
    return wide;
  }

  template <size_t N>
  void copy_finite(std::string_view suffix, std::array<float, N>& values) const {
    const Tensor found = floats(suffix, N);
    std::memcpy(values.data(), found.raw(), sizeof(values));
    require_finite(found, suffix);
  }

  void require_finite(const Tensor& tensor, std::string_view suffix) const {
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      float value;
      std::memcpy(&value, tensor.raw() + i * 4, sizeof(value));
      if (!std::isfinite(value)) refuse(weight_ + std::string(suffix), "has values that are not finite");
    }
  }

  static bool is_flat(const Tensor& tensor) {
    int wide = 0;
    for (const int64_t extent : tensor.shape()) wide += extent != 1;
    return wide <= 1;
  }

  Tensor read_absmax() const {
    const Tensor scales = floats(kAbsmax, matrix_.blocks());
    const Tensor stored = part(kAbsmax);
    if (is_flat(stored)) return scales;
    const int64_t out = matrix_.out_features(), columns = matrix_.in_features() / matrix_.block_size;
    if (stored.shape() != Shape{columns, out} || matrix_.in_features() % matrix_.block_size != 0) {
      refuse(weight_ + std::string(kAbsmax),
             "has shape " + to_string(stored.shape()) + ", which is no order of blocks");
    }
    Tensor flat = Tensor::empty(pool_, {matrix_.blocks()}, DType::f32, weight_ + std::string(kAbsmax));
    float* const values = flat.data<float>();
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = 0; row < out; ++row) {
        std::memcpy(values + row * columns + column, scales.raw() + (column * out + row) * 4, sizeof(float));
      }
    }
    return flat;
  }

  void read_double_quantized() {
    const int64_t blocks = matrix_.blocks(), nested = matrix_.nested_block_size;
    const Tensor codes = part(kAbsmax);
    if (codes.dtype() != DType::u8 || codes.numel() != blocks || !is_flat(codes)) {
      refuse(weight_ + std::string(kAbsmax), "is not " + std::to_string(blocks) + " codes of scales");
    }
    matrix_.absmax_codes = codes.reshape({blocks});
    matrix_.nested_absmax = floats(kNestedAbsmax, (blocks + nested - 1) / nested);
    matrix_.nested_map = floats(kNestedMap, 256);
    require_finite(matrix_.nested_absmax, kNestedAbsmax);
    require_finite(matrix_.nested_map, kNestedMap);
  }

  const CheckpointDir& checkpoint_;
  const std::string& weight_;
  MemoryPool& pool_;
  QuantizedMatrix matrix_;
};

}  // namespace

bool is_quantized(const CheckpointDir& checkpoint, const std::string& weight) {
  return checkpoint.contains(state_name(weight, QuantType::nf4)) ||
         checkpoint.contains(state_name(weight, QuantType::fp4));
}

std::string stored_weight_name(const CheckpointDir& checkpoint, const std::string& weight) {
  const std::string bare = weight.substr(weight.find('.') + 1);
  return !checkpoint.contains(weight) && checkpoint.contains(bare) ? bare : weight;
}

std::string quantized_tensor_of(const std::string& tensor) {
  const size_t state = tensor.find(kState);
  if (state != std::string::npos) return tensor.substr(0, state);
  for (const std::string_view suffix : {kNestedAbsmax, kNestedMap, kAbsmax, kQuantMap}) {
    if (tensor.ends_with(suffix)) return tensor.substr(0, tensor.size() - suffix.size());
  }
  return "";
}

QuantizedMatrix read_quantized(const CheckpointDir& checkpoint, const std::string& weight, MemoryPool& pool) {
  return StateReader(checkpoint, weight, pool).read();
}

std::string quant_state_json(const QuantizedMatrix& matrix) {
  std::string text = "{\"quant_type\": \"" + std::string(quant_type_name(matrix.type)) +
                     "\", \"blocksize\": " + std::to_string(matrix.block_size) + ", \"dtype\": \"" +
                     torch_dtype_name(matrix.original_dtype) + "\", \"shape\": " + to_string(matrix.original_shape());
  if (matrix.double_quantized()) {
    text +=
        ", \"nested_blocksize\": " + std::to_string(matrix.nested_block_size) +
        ", \"nested_dtype\": \"float32\", \"nested_offset\": " + python_repr(static_cast<double>(matrix.nested_offset));
  }
  return text + "}";
}

std::vector<TensorSpec> quantized_specs(const QuantizedMatrix& matrix, const std::string& weight) {
  const auto name = [&](std::string_view suffix) { return weight + std::string(suffix); };
  const int64_t bytes = (element_count(matrix.shape) + 1) / 2, blocks = matrix.blocks();
  const bool double_quant = matrix.double_quantized();
  std::vector<TensorSpec> specs = {{weight, {bytes, 1}, DType::u8},
                                   {name(kAbsmax), {blocks}, double_quant ? DType::u8 : DType::f32},
                                   {name(kQuantMap), {16}, DType::f32}};
  if (double_quant) {
    const int64_t nested = matrix.nested_block_size;
    specs.push_back({name(kNestedAbsmax), {(blocks + nested - 1) / nested}, DType::f32});
    specs.push_back({name(kNestedMap), {256}, DType::f32});
  }
  const auto length = static_cast<int64_t>(quant_state_json(matrix).size());
  specs.push_back({state_name(weight, matrix.type), {length}, DType::u8});
  return specs;
}

std::vector<NamedTensor> quantized_parts(const QuantizedMatrix& matrix, const std::string& weight, MemoryPool& pool) {
  const std::string text = quant_state_json(matrix);
  std::vector<Tensor> values = {as_bytes(matrix.packed, {static_cast<int64_t>(matrix.packed.bytes()), 1}),
                                matrix.double_quantized() ? matrix.absmax_codes : matrix.absmax,
                                Tensor::from<float>(pool, {16}, matrix.table)};
  if (matrix.double_quantized()) {
    values.push_back(matrix.nested_absmax);
    values.push_back(matrix.nested_map);
  }
  values.push_back(Tensor::from<uint8_t>(pool, {static_cast<int64_t>(text.size())},
                                         std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size())));
  std::vector<NamedTensor> parts;
  const std::vector<TensorSpec> specs = quantized_specs(matrix, weight);
  for (size_t i = 0; i < specs.size(); ++i) parts.push_back({specs[i].name, values[i]});
  return parts;
}

}  // namespace nibble
