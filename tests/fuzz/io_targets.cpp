#include "nibble/core/base/error.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/npy.h"
#include "nibble/core/train/checkpoint/checkpoint.h"
#include "nibble/tests/fuzz/memory_files.h"

namespace nibble::fuzz {

namespace {

// Reads every byte, so that a view that reaches outside of its file is noticed.
void read_all(const Tensor& tensor) {
  volatile unsigned sum = 0;
  for (size_t i = 0; i < tensor.bytes(); ++i) sum = sum + static_cast<unsigned>(tensor.raw()[i]);
}

constexpr const char* kTrainable = "trainable-00000-of-00001.safetensors";
constexpr std::string_view kRecipe = "{}";
constexpr std::string_view kState =
    R"({"step":3,"optimizer_updates":3,"settings":{},"best_loss":null,"best_step":0,"evaluations_since_best":0})";

std::string manifest_entry(const std::string& name, std::string_view bytes) {
  return "\"" + name + "\":{\"bytes\":" + std::to_string(bytes.size()) + ",\"xxh3_128\":\"" +
         hash_bytes(std::as_bytes(std::span(bytes.data(), bytes.size()))) + "\"}";
}

// {"a": [2], "b": [1, 2]} in F32
std::string small_safetensors() {
  const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}})";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(16, '\1');
}

// A checkpoint that verifies; one of its files is foreign.
struct MemoryCheckpoint {
  MemoryDirectory directory;
  std::string tensors = small_safetensors();
  MemoryFile state{directory, "state.json", kState};
  MemoryFile recipe{directory, "recipe.json", kRecipe};
  MemoryFile trainable{directory, kTrainable, tensors};
  MemoryFile manifest{directory, "manifest.json"};
  // What the manifest says of the files that do not change.
  std::string state_entry = manifest_entry("state.json", kState);
  std::string recipe_entry = manifest_entry("recipe.json", kRecipe);
  std::string trainable_entry = manifest_entry(kTrainable, tensors);

  void write_manifest(const std::string& of_state, const std::string& of_trainable) {
    manifest.write("{\"format\":1,\"files\":{" + of_state + "," + recipe_entry + "," + of_trainable + "}}");
  }
};

}  // namespace

void safetensors(Bytes bytes) {
  static const MemoryDirectory directory;
  static MemoryFile foreign(directory, "f.safetensors");
  foreign.write(as_text(bytes));
  try {
    const SafetensorsFile file(foreign.path());
    for (const std::string& name : file.names()) read_all(file.at(name));
  } catch (const Error&) {
  }
}

void gguf(Bytes bytes) {
  static const MemoryDirectory directory;
  static MemoryFile foreign(directory, "f.gguf");
  static MemoryPool pool;
  foreign.write(as_text(bytes));
  try {
    const GgufFile file(foreign.path());
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
  static MemoryFile shard(directory, "model-00001-of-00001.safetensors", small_safetensors());
  static MemoryFile foreign(directory, "model.safetensors.index.json");
  foreign.write(as_text(bytes));
  try {
    const CheckpointDir model(directory.path());
    for (const std::string& name : model.names()) read_all(model.at(name));
  } catch (const Error&) {
  }
}

void npy(Bytes bytes) {
  static const MemoryDirectory directory;
  static MemoryFile foreign(directory, "f.npy");
  foreign.write(as_text(bytes));
  try {
    read_all(read_npy(foreign.path()));
  } catch (const Error&) {
  }
}

void manifest(Bytes bytes) {
  static MemoryCheckpoint checkpoint;
  checkpoint.manifest.write(as_text(bytes));
  try {
    read_checkpoint_state(checkpoint.directory.path());
    load_checkpoint_tensors(checkpoint.directory.path(), {}, {});
  } catch (const Error&) {
  }
}

void state(Bytes bytes) {
  static MemoryCheckpoint checkpoint;
  checkpoint.state.write(as_text(bytes));
  checkpoint.write_manifest(manifest_entry("state.json", as_text(bytes)), checkpoint.trainable_entry);
  try {
    read_checkpoint_state(checkpoint.directory.path());
  } catch (const Error&) {
  }
}

void slices(Bytes bytes) {
  static MemoryCheckpoint checkpoint;
  static MemoryPool pool;
  static const std::vector<CheckpointSlice> wanted =
      full_slices({{"a", Tensor::zeros(pool, {2, 3}, DType::f32)}, {"b", Tensor::zeros(pool, {4}, DType::f32)}});
  checkpoint.trainable.write(as_text(bytes));
  checkpoint.write_manifest(checkpoint.state_entry, manifest_entry(kTrainable, as_text(bytes)));
  try {
    load_checkpoint_tensors(checkpoint.directory.path(), wanted, {});
  } catch (const Error&) {
  }
}

}  // namespace nibble::fuzz
