#include "nibble/recipes/models/merge_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/parallel/launch.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/dequantized_source.h"
#include "nibble/quant/quantization_config.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/recipes/models/fingerprints.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble {

namespace {

DType output_dtype(const std::string& name) {
  if (name == "f32") return DType::f32;
  if (name == "f16") return DType::f16;
  return DType::bf16;
}

std::string base_path(const MergeRequest& request) {
  return request.model.empty() ? find_base(request.adapter).string() : request.model;
}

void check_kind(const MergeRequest& request, const std::string& path, bool quantized) {
  if (request.base == "dequantized" && !quantized) {
    throw UsageError("the base is not quantized", "leave --base out, or give the 4-bit directory", path);
  }
  if (request.base == "original" && quantized) {
    throw UsageError("the base is quantized", "give the 16-bit directory to merge into the original weights", path);
  }
}

// MergeReport::mean_rounding, of `merged` that is now `result`.
double mean_rounding(const TensorSource& base, const TensorSource& merged, const CheckpointDir& result,
                     MemoryPool& pool) {
  constexpr int64_t kPieceElements = int64_t{1} << 20;
  const TensorSource rounded = dequantized_source(result, pool);
  double moved = 0, elements = 0;
  for (const TensorSpec& spec : rounded.tensors) {
    const auto source = std::ranges::find(base.tensors, spec.name, &TensorSpec::name);
    if (!is_quantized(result, spec.name) || source == base.tensors.end()) continue;  // a head that was tied
    const int64_t count = spec.shape[0], width = element_count(spec.shape) / count;
    const int64_t piece = std::max<int64_t>(kPieceElements / width, 1);
    double moved_here = 0;
    bool changed = false;
    for (int64_t begin = 0; begin < count; begin += piece) {
      const int64_t end = std::min(begin + piece, count);
      const Tensor was = base.rows(spec.name, begin, end, pool), wanted = merged.rows(spec.name, begin, end, pool);
      const Tensor is = rounded.rows(spec.name, begin, end, pool);
      const auto before = was.span<const float>(), exact = wanted.span<const float>(), after = is.span<const float>();
      for (size_t i = 0; i < exact.size(); ++i) {
        changed |= before[i] != exact[i];
        moved_here += std::abs(static_cast<double>(after[i]) - static_cast<double>(exact[i]));
      }
    }
    if (!changed) continue;
    moved += moved_here;
    elements += static_cast<double>(element_count(spec.shape));
  }
  return elements > 0 ? moved / elements : 0;
}

// Rounds the merged model to 4 bits as its base was.
MergeReport merge_quantized(const MergeRequest& request, const TensorSource& base, const PeftAdapter& adapter,
                            const QuantizationConfig& quantization, int64_t block_size, RankContext& rank) {
  const nlohmann::json config = parse_json(base.config, "config.json", kModelConfigJson);
  const std::string name = config.value("dtype", config.value("torch_dtype", std::string("bfloat16")));
  MergeOptions options;
  options.dtype = name == "float32" ? DType::f32 : name == "float16" ? DType::f16 : DType::bf16;
  const AtomicDirectory scratch(request.out, request.replace);  // refuses an existing target before the work begins
  MergeReport report = merge_adapter(base, adapter, scratch.path() / "dense", options, rank.pool);
  QuantizeModelOptions rounding;
  rounding.codec = {quantization.type, quantization.double_quant, block_size};
  rounding.skip_modules = quantization.skip_modules;
  rounding.replace = request.replace;
  quantize_model(scratch.path() / "dense", request.out, rounding, rank);
  const MergedModel merged(base, adapter, options.dtype, rank.pool);
  report.mean_rounding = mean_rounding(base, merged.source(), CheckpointDir(request.out), rank.pool);
  return report;
}

// config.json does not say the block size; the weights do.
int64_t block_size_of(const CheckpointDir& checkpoint, MemoryPool& pool) {
  for (const std::string& name : checkpoint.names()) {
    if (is_quantized(checkpoint, name)) return read_quantized(checkpoint, name, pool).block_size;
  }
  throw InputError(checkpoint.path().string(), "config.json says it is quantized, but no weight is");
}

}  // namespace

void check_merge(const MergeRequest& request) {
  const std::string base = base_path(request);
  link_roots(base);  // throws unless it is a directory
  guard_output(request.out, {request.adapter, base});
  require_place(request.out, request.replace);
}

std::string merge_warning(const std::string& adapter, const std::string& base) {
  ModelRecipe model;
  model.path = base;
  const OtherBase other = other_base(adapter, model);
  if (other.quantize.empty()) return base_warning(adapter, model, "");
  const std::string copy = base + "-" + other.quantize;
  return "warning: this adapter was trained on " + other.what + "; nibble " +
         shell_line({"quantize", "--model", base, "--type", other.quantize, "--out", copy}) + " gives that, for " +
         shell_line({"--model", copy});
}

std::string merge_warning(const MergeRequest& request) {
  if (!request.base.empty() || !std::filesystem::is_regular_file(std::filesystem::path(request.adapter) / kBaseFile)) {
    return "";
  }
  const std::string warning = merge_warning(request.adapter, base_path(request));
  return warning.empty() ? "" : warning + " (--base original says that you mean this one)";
}

std::vector<std::string> merge_notes(const MergeRequest& request) {
  const std::string base = base_path(request);
  std::vector<std::string> notes = find_text_source(base, request.adapter, "").notes;
  if (trained_in_int8(request.adapter)) {
    notes.push_back("the adapter was trained with products in 8 bits, the merged model computes without that rounding");
  }
  return notes;
}

MergeReport merge_model(const MergeRequest& request, RankContext& rank) {
  const PeftAdapter adapter = read_peft_directory(request.adapter);
  const std::string path = base_path(request);
  check_merge(request);
  const CheckpointDir checkpoint = open_checkpoint(path);
  const TensorSource base = dequantized_source(checkpoint, rank.pool);
  const auto quantization =
      read_quantization_config(parse_json(base.config, path + "/config.json", kModelConfigJson), path + "/config.json");
  check_kind(request, path, quantization.has_value());
  if (request.dtype == "nf4") {
    if (!quantization) throw UsageError("the base is not quantized", "merge into bf16, then nibble quantize", path);
    if (quantization->type == QuantType::mxfp4) {
      throw UsageError("the base is in MXFP4, which is not written", "merge into bf16, then nibble quantize", path);
    }
    return merge_quantized(request, base, adapter, *quantization, block_size_of(checkpoint, rank.pool), rank);
  }
  MergeOptions options;
  options.dtype = output_dtype(request.dtype);
  options.replace = request.replace;
  return merge_adapter(base, adapter, request.out, options, rank.pool);
}

}  // namespace nibble
