#include "nibble/recipes/init_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/io/model_directory.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/quant/quantize_model.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;

InitReport write_dense(const InitRequest& request, const fs::path& target, DType dtype, RankContext& rank) {
  nlohmann::json json = read_json_file(request.config);
  const DecoderConfig config = parse_decoder_config(json.dump(), request.config);
  Decoder plan = plan_decoder(config, rank);
  std::vector<TensorSpec> specs;
  InitReport report;
  for (const NamedTensor& tensor : state_dict(plan)) {
    specs.push_back({tensor.name, tensor.value.shape(), dtype});
    report.weights += tensor.value.numel();
    report.bytes += static_cast<uint64_t>(tensor.value.numel()) * dtype_size(dtype);
  }
  ModelDirectoryWriter writer(target, request.force, specs);
  for (const TensorSpec& spec : specs) {
    const auto parameter = random_parameter(config, request.seed, spec.name, spec.shape, rank.pool);
    Tensor value = parameter->value;
    if (dtype != DType::f32) {
      value = Tensor::empty(rank.pool, spec.shape, dtype);
      ops::cast(parameter->value, value);
    }
    writer.write(spec.name, value);
  }
  json.erase("dtype");
  json["torch_dtype"] = dtype == DType::f32 ? "float32" : "bfloat16";
  write_json_file(writer.path() / "config.json", json);
  writer.finish();
  return report;
}

}  // namespace

InitReport init_model(const InitRequest& request) {
  LocalRank rank(0, request.seed);
  if (request.dtype != "nf4") {
    return write_dense(request, request.out, request.dtype == "f32" ? DType::f32 : DType::bf16, rank.context());
  }
  // The quantizer reads each tensor twice (its scales' mean stands in the header), so there is a 16-bit form on disk.
  const AtomicDirectory scratch(request.out, request.force);
  InitReport report = write_dense(request, scratch.path() / "dense", DType::bf16, rank.context());
  QuantizeModelOptions options;
  options.force = request.force;
  report.bytes = quantize_model(scratch.path() / "dense", request.out, options, rank.context()).bytes;
  return report;
}

}  // namespace nibble
