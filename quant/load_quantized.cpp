#include "nibble/quant/load_quantized.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/shared_modules.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/int8_layout.h"
#include "nibble/quant/mxfp4_layout.h"
#include "nibble/quant/nf4_weight.h"
#include "nibble/quant/quantization_config.h"

namespace nibble {

namespace {

// The parts of its checkpoint form that a QuantizedMatrix does not hold.
std::vector<NamedTensor> state_parts(const QuantizedMatrix& matrix, const std::string& weight, MemoryPool& pool) {
  std::vector<NamedTensor> parts = quantized_parts(matrix, weight, pool);
  std::erase_if(parts, [&](const NamedTensor& part) {
    return !part.name.starts_with(weight + ".quant_map") && !part.name.starts_with(weight + ".quant_state");
  });
  return parts;
}

std::unique_ptr<LinearWeight> make_weight(const std::string& weight, const QuantizedMatrix& matrix, bool transposed,
                                          MemoryPool& pool) {
  return std::make_unique<Nf4Weight>(weight, matrix, state_parts(matrix, weight, pool), matrix.matrices, transposed);
}

bool has_transposed_experts(const CheckpointDir& checkpoint) {
  const DecoderConfig config = read_decoder_config(checkpoint.path());
  return config.experts && config.experts->transposed;
}

void require_shape(const CheckpointDir& checkpoint, const std::string& stored, const std::string& kind,
                   const Shape& found, const Shape& shape) {
  if (found == shape) return;
  throw InputError(checkpoint.file_of(stored) + ": " + stored,
                   "is " + kind + " " + to_string(found) + ", config.json makes it " + to_string(shape),
                   "check that config.json belongs to these weights");
}

std::unique_ptr<LinearWeight> mapped(const CheckpointDir& checkpoint, const std::string& stored,
                                     const std::string& weight, Shape shape, MemoryPool& pool) {
  const QuantizedMatrix matrix = read_quantized(checkpoint, stored, pool);
  const bool transposed = shape.size() == 3 && has_transposed_experts(checkpoint);
  if (transposed) std::swap(shape[1], shape[2]);
  require_shape(checkpoint, stored, "a 4-bit matrix", matrix.original_shape(), shape);
  return make_weight(weight, matrix, transposed, pool);
}

std::unique_ptr<LinearWeight> mapped_mxfp4(const CheckpointDir& checkpoint, const std::string& stored,
                                           const std::string& weight, const Shape& shape) {
  const QuantizedMatrix matrix = read_mxfp4(checkpoint, stored);
  require_shape(checkpoint, mxfp4_blocks_name(stored), "an MXFP4 tensor", matrix.original_shape(), shape);
  return std::make_unique<Nf4Weight>(weight, matrix, std::vector<NamedTensor>(), matrix.matrices);
}

// Through f32 rows, whatever the dense weight's dtype and orientation are: widening changes no bit of the result.
// Several matrices are quantized as they are stored, as the one that all their rows make.
std::unique_ptr<LinearWeight> quantized(std::unique_ptr<LinearWeight> dense, const std::string& weight,
                                        const QuantizeOptions& options, MemoryPool& pool) {
  const Tensor stored = dense->parameter()->value;
  const bool several = stored.rank() == 3;
  const bool transposed = several && dynamic_cast<const DenseWeight&>(*dense).transposed();
  if (several) {
    const Shape rows = {stored.dim(0) * stored.dim(1), stored.dim(2)};
    dense = std::make_unique<DenseWeight>(
        std::make_shared<Parameter>(Parameter{.name = weight, .value = stored.reshape(rows), .gradient = {}}));
  }
  const int64_t out = dense->out_features(), in = dense->in_features();
  Quantizer quantizer(several ? stored.shape() : Shape{out, in}, stored.dtype(), options, pool, weight);
  const int64_t step = rows_of_piece(in, options.block_size);
  for (int64_t begin = 0; begin < out; begin += step) {
    quantizer.append(dense->dequantize(begin, std::min(out, begin + step), pool));
  }
  release_pages(stored);
  return make_weight(weight, quantizer.finish(), transposed, pool);
}

bool has_four_bits(const CheckpointDir& checkpoint) {
  const std::string place = (checkpoint.path() / "config.json").string();
  return is_four_bit(parse_json(checkpoint.config_text(), place, kModelConfigJson), place);
}

// Widened to f32, in the orientation that the family stores.
std::unique_ptr<LinearWeight> widened(const CheckpointDir& checkpoint, const std::string& stored,
                                      const std::string& module, const Shape& shape, MemoryPool& pool) {
  Tensor matrix = read_int8(checkpoint, stored, pool);
  require_shape(checkpoint, stored, "an 8-bit matrix", matrix.shape(), shape);
  const DecoderConfig config = read_decoder_config(checkpoint.path());
  const bool transposed = config.transposed_linears && module != config.names.head;
  if (transposed) {
    Tensor turned = Tensor::empty(pool, {shape[1], shape[0]}, DType::f32, stored);
    for (int64_t out = 0; out < shape[0]; ++out) {
      for (int64_t in = 0; in < shape[1]; ++in) {
        turned.data<float>()[in * shape[0] + out] = matrix.data<const float>()[out * shape[1] + in];
      }
    }
    matrix = turned;
  }
  const auto parameter =
      std::make_shared<Parameter>(Parameter{.name = module + ".weight", .value = matrix, .gradient = {}});
  return std::make_unique<DenseWeight>(parameter, transposed);
}

}  // namespace

bool is_four_bit(const std::filesystem::path& model) {
  const std::filesystem::path place = model / "config.json";
  return is_four_bit(read_json_file(place, kModelConfigJson), place.string());
}

LoadOptions load_quantized(RankContext& rank, const std::optional<QuantizeOnLoad>& quantize) {
  if (quantize) check_block_size(quantize->codec.block_size);
  const auto taken = std::make_shared<std::unordered_set<std::string>>();
  MemoryPool& pool = rank.pool;
  LoadOptions options;
  options.wrap_linear = [taken, quantize, &pool](const CheckpointDir& checkpoint, LinearWeightMaker dense) {
    std::shared_ptr<const DecoderConfig> config;
    std::shared_ptr<const SkipRule> skip;             // absent: nothing is quantized on the way
    const bool four_bit = has_four_bits(checkpoint);  // refuses what others quantized
    if (quantize && !four_bit) {
      config = std::make_shared<DecoderConfig>(read_decoder_config(checkpoint.path()));
      skip =
          std::make_shared<SkipRule>(quantize->skip_modules, std::vector<std::string>{config->names.head, kScoreHead});
    }
    return [taken, quantize, skip, config, dense, &pool, &checkpoint](
               const std::string& module, const Shape& shape) -> std::unique_ptr<LinearWeight> {
      const std::string weight = weight_name(module, shape), stored = stored_weight_name(checkpoint, weight);
      if (is_quantized(checkpoint, stored)) {
        taken->insert(stored);
        return mapped(checkpoint, stored, weight, shape, pool);
      }
      if (shape.size() == 3 && is_mxfp4(checkpoint, stored)) {
        taken->insert(stored);
        return mapped_mxfp4(checkpoint, stored, weight, shape);
      }
      const bool eight_bit = is_int8(checkpoint, stored);
      if (eight_bit) taken->insert(stored);
      std::unique_ptr<LinearWeight> result =
          eight_bit ? widened(checkpoint, stored, module, shape, pool) : dense(module, shape);
      // as Transformers, which leaves weights that modules share as they are
      if (!skip || skip->skips(module_of_weight(weight)) || first_layer_of_block(*config, weight) >= 0) return result;
      return quantized(std::move(result), weight, quantize->codec, pool);
    };
  };
  options.expects = [taken](const std::string& tensor) {
    if (taken->contains(tensor) || taken->contains(int8_weight_of(tensor))) return true;
    return taken->contains(quantized_tensor_of(tensor)) || taken->contains(mxfp4_tensor_of(tensor));
  };
  return options;
}

}  // namespace nibble
