#include "nibble/core/io/safetensors/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/mistaken_file.h"
#include "nibble/core/io/safetensors/safetensors_header.h"

namespace nibble {

namespace {

// The limit of the safetensors library itself.
constexpr uint64_t kLargestHeader = 100'000'000;

std::string header_text(const std::vector<TensorSpec>& specs, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header.push_back({"__metadata__", metadata});
  // Entries are pushed as text: looking a key up in an ordered object costs the number of keys.
  std::string text = header.dump();
  text.pop_back();
  uint64_t offset = 0;
  for (const TensorSpec& spec : specs) {
    const uint64_t end = offset + static_cast<uint64_t>(element_count(spec.shape)) * dtype_size(spec.dtype);
    nlohmann::ordered_json entry;
    entry["dtype"] = detail::safetensors_dtype_name(spec.dtype);
    entry["shape"] = spec.shape;
    entry["data_offsets"] = {offset, end};
    if (text.size() > 1) text += ',';
    text += nlohmann::json(spec.name).dump() + ":" + entry.dump();
    offset = end;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const std::string remedy = "the file is damaged or no safetensors file: copy or download it again";
  const auto file = std::make_shared<const FileMap>(path);
  const std::string_view all(reinterpret_cast<const char*>(file->data()), file->size());
  const auto refuse = [&](const std::string& reason) {  // a length may look like another format's first bytes
    const auto other = mistaken_file(all.substr(0, 64));
    throw InputError(path, other ? other->reason : reason, other ? other->remedy : remedy);
  };
  uint64_t length = 0;
  if (all.size() < sizeof(length)) refuse("truncated header");
  std::memcpy(&length, all.data(), sizeof(length));
  if (length > kLargestHeader) refuse("header claims " + std::to_string(length) + " bytes");
  if (length > all.size() - sizeof(length)) refuse("truncated header");
  const size_t start = sizeof(length) + static_cast<size_t>(length);
  const std::string_view text = all.substr(sizeof(length), static_cast<size_t>(length));
  detail::SafetensorsHeader header = detail::parse_safetensors_header(text, file->size() - start, path);
  metadata_ = std::move(header.metadata);
  const auto data = Storage::mapped(file, start, file->size() - start);
  for (detail::SafetensorsEntry& entry : header.entries) {
    names_.push_back(entry.name);
    tensors_.emplace(std::move(entry.name), Tensor::view(data, entry.begin, std::move(entry.shape), entry.dtype));
  }
}

Tensor SafetensorsFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? Tensor() : found->second;
}

Tensor SafetensorsFile::at(const std::string& name) const {
  Tensor found = find(name);
  if (!found) throw InputError(path_, "has no tensor \"" + name + "\"", "is it the right file?");
  return found;
}

namespace {

// By which tensors stand in order.
std::pair<int, std::string_view> place_in_file(DType dtype, std::string_view name) {
  return {detail::safetensors_dtype_place(dtype), name};
}

void sort_as_in_file(std::vector<TensorSpec>& specs) {
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return place_in_file(a.dtype, a.name) < place_in_file(b.dtype, b.name);
  });
}

uint64_t data_bytes(const TensorSpec& spec) {
  return static_cast<uint64_t>(element_count(spec.shape)) * dtype_size(spec.dtype);
}

}  // namespace

uint64_t safetensors_bytes(std::vector<TensorSpec> specs, const std::map<std::string, std::string>& metadata) {
  sort_as_in_file(specs);
  uint64_t bytes = sizeof(uint64_t) + header_text(specs, metadata).size();
  for (const TensorSpec& spec : specs) bytes += data_bytes(spec);
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  sort_as_in_file(specs);
  const std::string header = header_text(specs, metadata);
  const uint64_t length = header.size();
  uint64_t offset = sizeof(length) + length;
  for (const TensorSpec& spec : specs) {
    const uint64_t size = data_bytes(spec);
    const bool is_new = slots_.emplace(spec.name, Slot{spec.dtype, offset, size, 0}).second;
    NIBBLE_CHECK(is_new, "tensor named twice: " + spec.name);
    offset += size;
  }
  file_.reserve(offset);
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(header);
}

void SafetensorsWriter::write(const std::string& name, const Tensor& value) {
  append(name, value);
  NIBBLE_CHECK(slots_.at(name).written == slots_.at(name).size, "tensor is smaller than declared: " + name);
}

void SafetensorsWriter::append(const std::string& name, const Tensor& piece) {
  const auto slot = slots_.find(name);
  NIBBLE_CHECK(slot != slots_.end() && slot->second.dtype == piece.dtype(), "tensor not as declared: " + name);
  MemoryPool pool;
  const Tensor here = piece.to(pool);
  append_bytes(name, std::span(here.raw(), here.bytes()));
}

void SafetensorsWriter::append_bytes(const std::string& name, std::span<const std::byte> bytes) {
  const auto found = slots_.find(name);
  NIBBLE_CHECK(found != slots_.end(), "tensor was not declared: " + name);
  Slot& slot = found->second;
  NIBBLE_CHECK(bytes.size() <= slot.size - slot.written, "tensor is larger than declared: " + name);
  file_.write_at(slot.begin + slot.written, bytes);
  slot.written += bytes.size();
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) NIBBLE_CHECK(slot.written == slot.size, "tensor is incomplete: " + name);
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, value] : tensors) specs.push_back({name, value.shape(), value.dtype()});
  SafetensorsWriter writer(path, std::move(specs), metadata);
  std::vector<std::pair<std::string, Tensor>> in_order = tensors;  // a FIFO takes bytes from front to back only
  std::sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) {
    return place_in_file(a.second.dtype(), a.first) < place_in_file(b.second.dtype(), b.first);
  });
  for (const auto& [name, value] : in_order) writer.write(name, value);
  writer.finish();
}

}  // namespace nibble
