#include "nibble/core/base/error.h"
#include "nibble/core/io/checkpoint_dir.h"
#include "nibble/core/io/gguf.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/npy.h"
#include "nibble/core/train/checkpoint.h"
#include "nibble/tests/fuzz/memory_files.h"

namespace nibble::fuzz {

namespace {

// Reads every byte, so that a view that reaches outside of its file is noticed.
void read_all(const Tensor& tensor) {
  volatile unsigned sum = 0;
  for (size_t i = 0; i < tensor.bytes(); ++i) sum = sum + static_cast<unsigned>(tensor.raw()[i]);
}

std::string manifest_entry(const std::string& name, std::string_view bytes) {
  return "\"" + name + "\":{\"bytes\":" + std::to_string(bytes.size()) + ",\"xxh3_128\":\"" +
         hash_bytes(std::as_bytes(std::span(bytes.data(), bytes.size()))) + "\"}";
}

constexpr std::string_view kState =
    R"({"step":3,"optimizer_updates":3,"settings":{},"best_loss":null,"best_step":0,"evaluations_since_best":0})";

// A checkpoint that verifies, whatever its files hold.
void write_checkpoint(const MemoryDirectory& directory, std::string_view state_bytes, std::string_view trainable) {
  directory.write("state.json", state_bytes);
  directory.write("recipe.json", "{}");
  directory.write("trainable-00000-of-00001.safetensors", trainable);
  directory.write("manifest.json", "{\"format\":1,\"files\":{" + manifest_entry("state.json", state_bytes) + "," +
                                       manifest_entry("recipe.json", "{}") + "," +
                                       manifest_entry("trainable-00000-of-00001.safetensors", trainable) + "}}");
}

// {"a": [2], "b": [1, 2]} in F32
std::string small_safetensors() {
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}})";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(16, '\1');
}

}  // namespace

void safetensors(Bytes bytes) {
  static const MemoryDirectory directory;
  directory.write("f.safetensors", as_text(bytes));
  try {
    const SafetensorsFile file((directory / "f.safetensors").string());
    for (const std::string& name : file.names()) read_all(file.at(name));
  } catch (const Error&) {
  }
}

void gguf(Bytes bytes) {
  static const MemoryDirectory directory;
  static MemoryPool pool;
  directory.write("f.gguf", as_text(bytes));
  try {
    const GgufFile file((directory / "f.gguf").string());
    for (const auto& [key, value] : file.metadata()) {
      try {
        file.number(key);
      } catch (const Error&) {
      }
      file.texts(key);
    }
    for (const GgufTensor& tensor : file.tensors()) {
      const int64_t width = tensor.shape.empty() ? 1 : tensor.shape.back();
      if (width > 0) read_all(file.rows(tensor, 0, element_count(tensor.shape) / width, pool));
    }
  } catch (const Error&) {
  }
}

void index(Bytes bytes) {
  static const MemoryDirectory directory;
  static const bool made = [] {
    directory.write("model-00001-of-00001.safetensors", small_safetensors());
    return true;
  }();
  (void)made;
  directory.write("model.safetensors.index.json", as_text(bytes));
  try {
    const CheckpointDir model(directory.path());
    for (const std::string& name : model.names()) read_all(model.at(name));
  } catch (const Error&) {
  }
}

void npy(Bytes bytes) {
  static const MemoryDirectory directory;
  directory.write("f.npy", as_text(bytes));
  try {
    read_all(read_npy(directory / "f.npy"));
  } catch (const Error&) {
  }
}

void manifest(Bytes bytes) {
  static const MemoryDirectory directory;
  write_checkpoint(directory, kState, small_safetensors());
  directory.write("manifest.json", as_text(bytes));
  try {
    read_checkpoint_state(directory.path());
  } catch (const Error&) {
  }
  try {
    load_checkpoint_tensors(directory.path(), {}, {});
  } catch (const Error&) {
  }
}

void state(Bytes bytes) {
  static const MemoryDirectory directory;
  write_checkpoint(directory, as_text(bytes), small_safetensors());
  try {
    read_checkpoint_state(directory.path());
  } catch (const Error&) {
  }
}

void slices(Bytes bytes) {
  static const MemoryDirectory directory;
  static MemoryPool pool;
  static const std::vector<CheckpointSlice> wanted =
      whole_slices({{"a", Tensor::zeros(pool, {2, 3}, DType::f32)}, {"b", Tensor::zeros(pool, {4}, DType::f32)}});
  write_checkpoint(directory, kState, as_text(bytes));
  try {
    load_checkpoint_tensors(directory.path(), wanted, {});
  } catch (const Error&) {
  }
}

}  // namespace nibble::fuzz
