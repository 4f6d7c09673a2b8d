#include "nibble/core/train/checkpoint/checkpoint_slices.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/safetensors/safetensors.h"

namespace nibble::detail {

using nlohmann::json;

namespace {

constexpr const char* kMetadataKey = "slices";

/// The box that two slices share; false when they share nothing.
struct Box {
  Shape begin, size;
};

bool overlap(const CheckpointSlice& a, const CheckpointSlice& b, Box& box) {
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.value.dim(d), b.offset[d] + b.value.dim(d));
    if (end <= begin) return false;
    box.begin.push_back(begin);
    box.size.push_back(end - begin);
  }
  return true;
}

// Index of a global position in a slice's own row-major elements.
int64_t local_index(const CheckpointSlice& slice, const Shape& position) {
  int64_t index = 0;
  for (size_t d = 0; d < position.size(); ++d) index = index * slice.value.dim(d) + position[d] - slice.offset[d];
  return index;
}

Shape read_shape(const json& value, const std::string& place) {
  Shape shape;
  if (!value.is_array()) throw InputError(place, "a slice has no shape");
  for (const json& size : value) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > (uint64_t{1} << 48)) {
      throw InputError(place, "a slice has an impossible shape");
    }
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

CheckpointSlice read_slice(const SafetensorsFile& file, const json& slices, const std::string& name) {
  const std::string place = file.path() + ": " + name;
  const auto found = slices.find(name);
  if (found == slices.end() || !found->is_object() || !found->contains("global_shape") || !found->contains("offset")) {
    throw InputError(place, "the file does not say which slice this is");
  }
  const json tensor = found->value("tensor", json(name));  // absent in older checkpoints
  if (!tensor.is_string()) throw InputError(place, "the file does not say which tensor this is");
  CheckpointSlice slice{tensor.get<std::string>(), file.at(name), read_shape((*found)["global_shape"], place),
                        read_shape((*found)["offset"], place)};
  const DType dtype = slice.value.dtype();
  bool fits = (dtype == DType::f32 || dtype == DType::u8) && slice.global_shape.size() == slice.value.rank() &&
              slice.offset.size() == slice.value.rank();
  for (size_t d = 0; fits && d < slice.offset.size(); ++d) {
    fits = slice.offset[d] + slice.value.dim(d) <= slice.global_shape[d];
  }
  if (!fits) throw InputError(place, "the slice does not lie in its tensor");
  return slice;
}

using SlicesByName = std::map<std::string, std::vector<CheckpointSlice>>;

void add_slices(const std::filesystem::path& path, SlicesByName& found) {
  const SafetensorsFile file(path.string());
  const auto entry = file.metadata().find(kMetadataKey);
  if (entry == file.metadata().end()) throw InputError(path.string(), "no slices in the metadata");
  const json slices = parse_json(entry->second, path.string() + ": metadata");
  for (const std::string& name : file.names()) {
    CheckpointSlice slice = read_slice(file, slices, name);
    Box ignored;
    for (const CheckpointSlice& other : found[slice.name]) {
      if (other.global_shape != slice.global_shape || other.value.dtype() != slice.value.dtype() ||
          overlap(other, slice, ignored)) {
        throw InputError(path.string() + ": " + name, "contradicts another slice of the checkpoint");
      }
    }
    found[slice.name].push_back(std::move(slice));
  }
}

}  // namespace

int64_t copy_overlap(const CheckpointSlice& from, const CheckpointSlice& to) {
  Box box;
  if (!overlap(from, to, box)) return 0;
  const int64_t run = box.size.empty() ? 1 : box.size.back();
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < box.size.size(); ++d) rows *= box.size[d];
  NIBBLE_CHECK(to.value.writable(), to.name + " is read-only");
  const std::byte* source = from.value.address();
  std::byte* target = to.value.address();
  const Device& device = to.value.device().host() ? from.value.device() : to.value.device();
  const auto size = static_cast<int64_t>(dtype_size(to.value.dtype()));
  Shape position = box.begin;
  for (int64_t row = 0; row < rows; ++row) {
    device.copy(source + local_index(from, position) * size, target + local_index(to, position) * size,
                static_cast<size_t>(run * size));
    for (size_t d = box.size.size(); d-- > 1;) {  // the next row: count up the dimensions before the last
      if (++position[d - 1] < box.begin[d - 1] + box.size[d - 1]) break;
      position[d - 1] = box.begin[d - 1];
    }
  }
  return rows * run;
}

namespace {

/// What a file of slices holds.
struct SliceFile {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, std::string> metadata;
};

SliceFile file_of(const std::vector<CheckpointSlice>& slices) {
  SliceFile file;
  json where = json::object();
  std::map<std::string, std::vector<const CheckpointSlice*>> of_tensor;
  for (const CheckpointSlice& slice : slices) {
    const DType dtype = slice.value.dtype();
    NIBBLE_CHECK(dtype == DType::f32 || dtype == DType::u8, slice.name + " is neither f32 nor u8");
    Box shared;
    for (const CheckpointSlice* other : of_tensor[slice.name]) {
      NIBBLE_CHECK(!overlap(*other, slice, shared), slice.name + ": slices share elements");
    }
    of_tensor[slice.name].push_back(&slice);
    std::string key = slice.name;  // several boxes of one tensor: name, name#1, name#2, ...
    for (int i = 1; where.contains(key); ++i) key = slice.name + "#" + std::to_string(i);
    where[key] = {{"tensor", slice.name}, {"global_shape", slice.global_shape}, {"offset", slice.offset}};
    file.tensors.emplace_back(key, slice.value);
  }
  file.metadata = {{kMetadataKey, where.dump()}};
  return file;
}

}  // namespace

void write_slices(const std::filesystem::path& file, const std::vector<CheckpointSlice>& slices) {
  const SliceFile contents = file_of(slices);
  write_safetensors(file, contents.tensors, contents.metadata);
}

uint64_t bytes_of_file(const std::vector<CheckpointSlice>& slices) {
  const SliceFile contents = file_of(slices);
  std::vector<TensorSpec> specs;
  for (const auto& [name, value] : contents.tensors) specs.push_back({name, value.shape(), value.dtype()});
  return safetensors_bytes(std::move(specs), contents.metadata);
}

void read_slices(const std::vector<std::filesystem::path>& files, const std::string& what,
                 const std::vector<CheckpointSlice>& wanted) {
  SlicesByName found;
  for (const std::filesystem::path& file : files) add_slices(file, found);
  const std::string place = files.empty() ? what : files.front().string();
  std::set<std::string> known;
  const auto refuse = [&](const std::string& name, const std::string& reason) {
    throw InputError(place, "the " + what + " " + name + " " + reason,
                     "it is of another model, adapter or objective: choose another output.dir, or start afresh, which "
                     "deletes the run there, with output.resume=never output.force=true");
  };
  for (const CheckpointSlice& slice : wanted) {
    known.insert(slice.name);
    const auto sources = found.find(slice.name);
    if (sources == found.end()) refuse(slice.name, "is missing");
    if (sources->second.front().global_shape != slice.global_shape) {
      refuse(slice.name, "has shape " + to_string(sources->second.front().global_shape) + ", the model's has " +
                             to_string(slice.global_shape));
    }
    if (sources->second.front().value.dtype() != slice.value.dtype()) {
      refuse(slice.name, "has another dtype than the run's");
    }
    int64_t filled = 0;
    for (const CheckpointSlice& source : sources->second) filled += copy_overlap(source, slice);
    if (filled != slice.value.numel()) throw InputError(place, "the " + what + " " + slice.name + " is incomplete");
  }
  for (const auto& [name, slices] : found) {
    if (!known.contains(name)) refuse(name, "is not in the model");
  }
}

}  // namespace nibble::detail
