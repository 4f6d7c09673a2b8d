#include "nibble/quant/quantize_model.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/nonfinite.h"
#include "nibble/core/models/shared_modules.h"
#include "nibble/core/models/tensor_source.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/quantization_config.h"

namespace nibble {
namespace fs = std::filesystem;

namespace {

// A Linear as the family's table has it.
struct LinearPlace {
  Shape shape;      // [out, in], or of the tensor of all experts as it is stored
  bool transposed;  // stored [in, out]
  bool of_experts;

  // Of the matrix that is quantized: experts are one after another.
  Shape rows() const { return shape.size() == 2 ? shape : Shape{shape[0] * shape[1], shape[2]}; }
};

// Linear weights by their names in the checkpoint.
std::map<std::string, LinearPlace> linears_of(const DecoderConfig& config, const CheckpointDir& checkpoint,
                                              RankContext& rank) {
  std::map<std::string, LinearPlace> linears;
  Decoder plan = plan_decoder(config, rank);
  plan.visit_linears([&](Linear& linear) {
    const auto& dense = dynamic_cast<const DenseWeight&>(linear.weight());
    if (is_router(config, linear.name())) return;  // stays as it is
    const Parameter& parameter = *linear.weight().parameter();
    const bool several = parameter.value.rank() == 3;
    const bool tied = linear.name() == config.names.head && config.tied_head;
    const std::string weight = stored_weight_name(checkpoint, tied ? linear.name() + ".weight" : parameter.name);
    if (!checkpoint.contains(weight) && tied) return;
    const Tensor stored = checkpoint.at(weight);
    const Shape shape = {dense.out_features(), dense.in_features()};
    const Shape& expected = parameter.value.shape();
    if (stored.shape() != expected) {
      throw InputError(checkpoint.file_of(weight) + ": " + weight,
                       "has shape " + to_string(stored.shape()) + ", config.json makes it " + to_string(expected),
                       "check that config.json belongs to these weights");
    }
    linears[weight] = {several ? expected : shape, !several && dense.transposed(),
                       expert_part(config, linear.name()).has_value()};
  });
  return linears;
}

// Rows [begin, end) of a Linear weight as [n, in], in the dtype of the file.
Tensor rows_of(const Tensor& stored, const LinearPlace& place, int64_t begin, int64_t end, MemoryPool& pool) {
  if (!place.transposed) return stored.rows(begin, end);
  const int64_t in = place.shape[1], out = place.shape[0];
  const size_t size = dtype_size(stored.dtype());
  Tensor rows = Tensor::empty(pool, {end - begin, in}, stored.dtype(), "transposed rows");
  std::byte* const target = rows.mutable_raw();
  for (int64_t k = 0; k < in; ++k) {
    const std::byte* const source = stored.raw() + static_cast<size_t>(k * out + begin) * size;
    for (int64_t row = 0; row < end - begin; ++row) {
      std::copy_n(source + static_cast<size_t>(row) * size, size, target + static_cast<size_t>(row * in + k) * size);
    }
  }
  return rows;
}

// Calls body(rows) for pieces that end at the ends of blocks; what was read is given back to the system.
template <typename Body>
void for_pieces(const Tensor& stored, const LinearPlace& place, int64_t block_size, MemoryPool& pool,
                const Body& body) {
  const int64_t out = place.rows()[0], in = place.rows()[1];
  const Tensor matrix = place.shape.size() == 3 ? stored.reshape(place.rows()) : stored;
  const int64_t step = rows_of_piece(in, block_size);
  for (int64_t begin = 0; begin < out; begin += step) {
    const Tensor rows = rows_of(matrix, place, begin, std::min(out, begin + step), pool);
    body(rows);
    if (!place.transposed) release_pages(rows);
  }
  release_pages(stored);
}

class ModelQuantizer {
 public:
  ModelQuantizer(const fs::path& model, const QuantizeModelOptions& options, RankContext& rank)
      : checkpoint_(open_checkpoint(model)), options_(options), pool_(rank.pool) {
    const std::string place = (model / "config.json").string();
    config_json_ = parse_json(checkpoint_.config_text(), place, kModelConfigJson);
    if (read_quantization_config(config_json_, place)) {
      throw UsageError("the model is quantized already", "give the 16-bit model", model.string());
    }
    const DecoderConfig config = read_decoder_config(model);
    if (has_vision_tower(config) && !options_.skip_modules) {  // only the language model's are known here
      options_.skip_modules = {config.names.head};
      for (const std::string& tower : config.towers) {
        const auto is_inside = [&](const std::string& name) { return name.starts_with(tower); };
        if (!std::ranges::any_of(checkpoint_.names(), is_inside)) continue;
        options_.skip_modules->push_back(tower.substr(0, tower.size() - 1));
      }
    }
    const SkipRule skip(options_.skip_modules, {config.names.head});
    std::vector<std::string> modules = {config.names.head};
    std::ranges::transform(checkpoint_.names(), std::back_inserter(modules), module_of_weight);
    skip.require_used(modules, "--skip");
    for (const auto& [weight, linear] : linears_of(config, checkpoint_, rank)) {
      // bitsandbytes in Transformers leaves weights that modules share as they are.
      if (skip.skips(module_of_weight(weight)) || first_layer_of_block(config, weight) >= 0) continue;
      require_float(weight);
      linears_.emplace(weight, linear);
    }
    if (linears_.empty()) {
      throw UsageError("every Linear is skipped", "shorten the list of modules to skip", model.string());
    }
    report_.source_bytes = checkpoint_.total_bytes();
  }

  QuantizeModelReport run(const fs::path& out) {
    const std::vector<TensorSpec> specs = plan();
    ModelDirectoryWriter writer(out, options_.replace, specs);
    for (const std::string& name : checkpoint_.names()) {
      const auto linear = linears_.find(name);
      if (linear != linears_.end()) {
        write_quantized(writer, name, linear->second);
        ++report_.quantized;
        report_.experts += linear->second.of_experts;
      } else if (fp8_weight_of(checkpoint_, name).empty()) {
        const Tensor copied = read_plain(checkpoint_, name, pool_);
        require_finite(name, copied);
        writer.write(name, copied);
        release_pages(checkpoint_.at(name));
        ++report_.copied;
      }
      advance(name);
    }
    drop_quantization_config(config_json_);
    config_json_["quantization_config"] = quantization_config_json(config());
    writer.write_text("config.json", config_json_.dump(2, ' ', true) + "\n");
    copy_companions(checkpoint_.path(), writer.path());
    writer.finish();
    return report_;
  }

 private:
  void require_finite(const std::string& name, const Tensor& copied) const {
    if (copied.rank() == 0) return;  // masked_bias of older files is -inf
    const std::string bad = nonfinite_text(name, copied.aligned() ? copied : copied.clone(pool_));
    if (!bad.empty())
      throw NumericError(checkpoint_.file_of(name), bad, "the checkpoint is damaged: download it again");
  }

  void require_float(const std::string& weight) const {
    const DType dtype = plain_spec(checkpoint_, weight).dtype;
    if (is_float(dtype)) return;
    throw InputError(checkpoint_.file_of(weight) + ": " + weight,
                     "has dtype " + std::string(dtype_name(dtype)) + ", not f32, bf16 or f16", "give the 16-bit model");
  }

  // Names and sizes of everything that will be written. The size of a state is known once its offset is.
  std::vector<TensorSpec> plan() {
    std::vector<TensorSpec> specs;
    for (const std::string& name : checkpoint_.names()) {
      if (!fp8_weight_of(checkpoint_, name).empty()) continue;
      const TensorSpec spec = plain_spec(checkpoint_, name);
      const auto linear = linears_.find(name);
      if (linear == linears_.end()) {
        specs.push_back(spec);
        continue;
      }
      float offset = 0;
      if (options_.codec.double_quant) {
        const Tensor stored = read_plain(checkpoint_, name, pool_);
        ScaleScan scan(linear->second.shape, options_.codec.block_size, place_of(name));
        for_pieces(stored, linear->second, options_.codec.block_size, pool_,
                   [&](const Tensor& rows) { scan.append(rows); });
        offset = scan.mean();
        advance(name);
      }
      const QuantizedMatrix planned = plan_quantized(linear->second.shape, spec.dtype, options_.codec, offset);
      for (TensorSpec& part : quantized_specs(planned, name)) specs.push_back(std::move(part));
    }
    for (const TensorSpec& spec : specs) {
      report_.bytes += static_cast<uint64_t>(element_count(spec.shape)) * dtype_size(spec.dtype);
    }
    return specs;
  }

  void write_quantized(ModelDirectoryWriter& writer, const std::string& name, const LinearPlace& linear) {
    const Tensor stored = read_plain(checkpoint_, name, pool_);
    Quantizer quantizer(linear.shape, stored.dtype(), options_.codec, pool_, place_of(name));
    for_pieces(stored, linear, options_.codec.block_size, pool_, [&](const Tensor& rows) { quantizer.append(rows); });
    for (const NamedTensor& part : quantized_parts(quantizer.finish(), name, pool_)) {
      writer.write(part.name, part.value);
    }
  }

  QuantizationConfig config() const {
    QuantizationConfig result;
    result.type = options_.codec.type;
    result.double_quant = options_.codec.double_quant;
    result.skip_modules = options_.skip_modules;
    const DType dtype = plain_spec(checkpoint_, linears_.begin()->first).dtype;
    result.compute_dtype = dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
    return result;
  }

  // Linears count twice when they are read twice.
  std::string place_of(const std::string& name) const { return checkpoint_.file_of(name) + ": " + name; }

  void advance(const std::string& name) {
    if (!options_.progress) return;
    uint64_t total = report_.source_bytes;
    if (options_.codec.double_quant) {
      for (const auto& [weight, linear] : linears_) total += checkpoint_.at(weight).bytes();
    }
    done_ += checkpoint_.at(name).bytes();
    options_.progress(name, done_, total);
  }

  CheckpointDir checkpoint_;
  QuantizeModelOptions options_;
  MemoryPool& pool_;
  nlohmann::json config_json_;
  std::map<std::string, LinearPlace> linears_;
  QuantizeModelReport report_;
  uint64_t done_ = 0;
};

}  // namespace

QuantizeModelReport quantize_model(const fs::path& model, const fs::path& out, const QuantizeModelOptions& options,
                                   RankContext& rank) {
  check_block_size(options.codec.block_size);
  guard_output(out, {model});
  ModelQuantizer quantizer(model, options, rank);
  return quantizer.run(out);
}

}  // namespace nibble
