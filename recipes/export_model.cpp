#include "nibble/recipes/export_model.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "nibble/core/io/checkpoint_dir.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/io/model_directory.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

// config.json names the dtype under "torch_dtype" or, as Transformers 5 writes it, "dtype".
DType dtype_of_config(const nlohmann::json& config, const std::string& place) {
  const std::string name = config.value("dtype", config.value("torch_dtype", std::string("float32")));
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  throw InputError(place, "dtype " + name + " is not known", "use float32, bfloat16 or float16");
}

Tensor in_dtype(const Tensor& value, DType dtype, RankContext& rank) {
  if (value.dtype() == dtype) return value;
  Tensor converted = Tensor::empty(rank.pool, value.shape(), dtype);
  ops::cast(value, converted);
  return converted;
}

void compare_with_written(const std::vector<NamedTensor>& tensors, const std::filesystem::path& target, DType dtype,
                          RankContext& rank) {
  const CheckpointDir written(target);
  for (const NamedTensor& tensor : tensors) {
    const Tensor expected = in_dtype(tensor.value, dtype, rank), got = written.at(tensor.name);
    if (got.shape() != expected.shape() || got.dtype() != dtype ||
        std::memcmp(got.raw(), expected.raw(), expected.bytes()) != 0) {
      throw IoError(target.string(), tensor.name + " does not read back as it was written", "check the disk");
    }
  }
}

}  // namespace

void export_model(Decoder& model, const std::filesystem::path& config_path, const std::filesystem::path& companions,
                  const std::filesystem::path& target, RankContext& rank) {
  const std::filesystem::path file =
      std::filesystem::is_directory(config_path) ? config_path / "config.json" : config_path;
  nlohmann::json config = read_json_file(file);
  if (config.contains("vocab_size")) config["vocab_size"] = model.config().vocab_size;
  const DType dtype = dtype_of_config(config, file.string());
  const std::vector<NamedTensor> tensors = state_dict(model);
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : tensors) specs.push_back({tensor.name, tensor.value.shape(), dtype});

  ModelDirectoryWriter writer(target, true, specs);
  for (const NamedTensor& tensor : tensors) writer.write(tensor.name, in_dtype(tensor.value, dtype, rank));
  write_json_file(writer.path() / "config.json", config);
  writer.copy_companions(companions);
  writer.finish();
  compare_with_written(tensors, target, dtype, rank);
}

}  // namespace nibble
