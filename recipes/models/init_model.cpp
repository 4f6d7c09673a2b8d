#include "nibble/recipes/models/init_model.h"

#include <map>
#include <nlohmann/json.hpp>

#include "nibble/adapters/tuners/init.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/shared_modules.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/codec.h"
#include "nibble/quant/mxfp4_layout.h"
#include "nibble/quant/quantization_config.h"

namespace nibble {

namespace {

Tensor narrowed(const Tensor& value, DType dtype, MemoryPool& pool) {
  if (value.dtype() == dtype) return value;
  Tensor result = Tensor::empty(pool, value.shape(), dtype);
  ops::cast(value, result);
  return result;
}

// Writes tensor after tensor, the Linears but for the head in 4 bits where asked.
class InitialModel {
 public:
  InitialModel(const InitRequest& request, RankContext& rank)
      : request_(request),
        pool_(rank.pool),
        json_(read_json_file(request.config, kModelConfigJson)),
        config_(parse_decoder_config(json_.dump(), request.config)),
        dtype_(request.dtype == "f32" ? DType::f32 : DType::bf16),
        constants_(stored_constants(config_, pool_)) {
    Decoder plan = plan_decoder(config_, rank);
    for (const NamedTensor& tensor : state_dict(plan)) {
      tensors_.push_back({tensor.name, tensor.value.shape(), dtype_});
      report_.weights += tensor.value.numel();
    }
    if (request.dtype == "mxfp4") plan_experts(plan);
    if (request.dtype != "nf4") return;
    plan.visit_linears([&](Linear& linear) {
      if (linear.name() == config_.names.head || is_router(config_, linear.name())) return;
      if (first_layer_of_block(config_, linear.name()) >= 0) return;  // as nibble quantize
      const Parameter& parameter = *linear.weight().parameter();
      const bool turned = dynamic_cast<const DenseWeight&>(linear.weight()).transposed();
      linears_[parameter.name] = turned && parameter.value.rank() == 2;
    });
  }

  InitReport write() {
    guard_output(request_.out, {request_.config});
    const std::vector<TensorSpec> specs = plan();
    for (const TensorSpec& spec : specs) {
      report_.bytes += static_cast<uint64_t>(element_count(spec.shape)) * dtype_size(spec.dtype);
    }
    ModelDirectoryWriter writer(request_.out, request_.replace, specs);
    for (const TensorSpec& tensor : tensors_) {
      if (mxfp4_.contains(tensor.name)) {
        write_mxfp4(tensor, writer);
        continue;
      }
      if (!linears_.contains(tensor.name)) {
        writer.write(tensor.name, value(tensor));
        continue;
      }
      const QuantizedMatrix matrix = quantize(linear(tensor), {}, pool_, tensor.name);
      for (const NamedTensor& part : quantized_parts(matrix, tensor.name, pool_)) writer.write(part.name, part.value);
    }
    for (const auto& [name, value] : constants_) writer.write(name, narrowed(value, dtype_, pool_));
    json_.erase("dtype");
    json_["torch_dtype"] = dtype_ == DType::f32 ? "float32" : "bfloat16";
    if (!linears_.empty() || !mxfp4_.empty()) {
      QuantizationConfig quantization;
      quantization.type = mxfp4_.empty() ? QuantizeOptions{}.type : QuantType::mxfp4;
      quantization.double_quant = QuantizeOptions{}.double_quant;
      quantization.compute_dtype = "bfloat16";
      json_["quantization_config"] = quantization_config_json(quantization);
    }
    write_json_file(writer.path() / "config.json", json_);
    writer.finish();
    return report_;
  }

 private:
  void plan_experts(Decoder& plan) {
    plan.visit_linears([&](Linear& linear) {
      const Parameter& parameter = *linear.weight().parameter();
      if (parameter.value.rank() != 3) return;
      mxfp4_[parameter.name] = dynamic_cast<const DenseWeight&>(linear.weight()).transposed();
    });
    if (mxfp4_.empty()) {
      throw InputError(request_.config, "the model has no tensors of all experts, which alone are stored in MXFP4",
                       "use nf4");
    }
  }

  // [n, out, in], as MXFP4 is stored, whatever way the 16-bit tensor is.
  Shape mxfp4_shape(const TensorSpec& tensor) const {
    Shape shape = tensor.shape;
    if (mxfp4_.at(tensor.name)) std::swap(shape[1], shape[2]);
    return shape;
  }

  void write_mxfp4(const TensorSpec& tensor, ModelDirectoryWriter& writer) {
    const Shape shape = mxfp4_shape(tensor);
    const QuantizedMatrix planned = plan_mxfp4(shape, tensor.name);
    Tensor packed = Tensor::empty(pool_, planned.packed.shape(), DType::u8);
    Tensor exponents = Tensor::empty(pool_, planned.exponents.shape(), DType::u8);
    const Tensor all = value(tensor);
    for (int64_t e = 0; e < shape[0]; ++e) {
      const Tensor one = all.rows(e, e + 1).reshape({tensor.shape[1], tensor.shape[2]});
      const Tensor rows = narrowed(mxfp4_.at(tensor.name) ? transposed(one, pool_) : one, DType::f32, pool_);
      Tensor codes = packed.rows(e, e + 1), scales = exponents.rows(e, e + 1);
      encode_mxfp4(rows, codes, scales);
    }
    writer.write(mxfp4_blocks_name(tensor.name), packed);
    writer.write(mxfp4_scales_name(tensor.name), exponents);
  }

  Tensor value(const TensorSpec& tensor) {
    return narrowed(random_parameter(config_, request_.seed, tensor.name, tensor.shape, pool_)->value, dtype_, pool_);
  }

  // [out, in]; a tensor of all experts as it is stored
  Tensor linear(const TensorSpec& tensor) {
    return linears_.at(tensor.name) ? transposed(value(tensor), pool_) : value(tensor);
  }

  // The mean of a matrix's scales stands in its state, whose length must be known before anything is written: 4-bit
  // weights are made twice.
  std::vector<TensorSpec> plan() {
    std::vector<TensorSpec> specs;
    for (const TensorSpec& tensor : tensors_) {
      if (mxfp4_.contains(tensor.name)) {
        const QuantizedMatrix planned = plan_mxfp4(mxfp4_shape(tensor), tensor.name);
        specs.push_back({mxfp4_blocks_name(tensor.name), planned.packed.shape(), DType::u8});
        specs.push_back({mxfp4_scales_name(tensor.name), planned.exponents.shape(), DType::u8});
        continue;
      }
      if (!linears_.contains(tensor.name)) {
        specs.push_back(tensor);
        continue;
      }
      const Tensor weight = linear(tensor);
      ScaleScan scan(weight.shape(), QuantizeOptions{}.block_size, tensor.name);
      scan.append(weight);
      const QuantizedMatrix planned = plan_quantized(weight.shape(), dtype_, {}, scan.mean());
      for (TensorSpec& spec : quantized_specs(planned, tensor.name)) specs.push_back(std::move(spec));
    }
    for (const auto& [name, value] : constants_) specs.push_back({name, value.shape(), dtype_});
    return specs;
  }

  const InitRequest& request_;
  MemoryPool& pool_;
  nlohmann::json json_;
  DecoderConfig config_;
  DType dtype_;
  std::vector<NamedTensor> constants_;
  std::vector<TensorSpec> tensors_;
  std::map<std::string, bool> mxfp4_;    // made in MXFP4: the same
  std::map<std::string, bool> linears_;  // made in 4 bits: name of the weight -> stored [in, out]
  InitReport report_;
};

}  // namespace

InitReport init_model(const InitRequest& request) {
  LocalRank rank(0, request.seed);
  return InitialModel(request, rank.context()).write();
}

}  // namespace nibble
