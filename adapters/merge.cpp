#include "nibble/adapters/merge.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/adapters/target_modules.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/io/model_directory.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/core/ops/weight_norm.h"

namespace nibble {

namespace {

constexpr int64_t kBlockElements = int64_t{4} << 20;

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

/// Constants that old checkpoints hold beside the weights, recomputed by everyone.
bool is_buffer(const std::string& name, const Tensor& tensor) {
  const bool mask = name.ends_with(".attn.bias") || name.ends_with(".attention.bias");
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with(".masked_bias") || (mask && tensor.rank() == 4);
}

bool ends_with_taken(const std::string& name, const std::string& end, std::string& stem) {
  if (!name.ends_with(end)) return false;
  stem = name.substr(0, name.size() - end.size());
  return true;
}

Tensor as_f32(const Tensor& tensor, MemoryPool& pool) {
  Tensor wide = Tensor::empty(pool, tensor.shape(), DType::f32, "adapter");
  ops::cast(tensor, wide);
  return wide;
}

Tensor transposed(const Tensor& m, MemoryPool& pool) {
  Tensor made = Tensor::empty(pool, {m.dim(1), m.dim(0)}, DType::f32, "adapter");
  for (int64_t i = 0; i < m.dim(0); ++i) {
    for (int64_t j = 0; j < m.dim(1); ++j) {
      made.data<float>()[j * m.dim(0) + i] = m.data<const float>()[i * m.dim(1) + j];
    }
  }
  return made;
}

/// W += s left right, where left [rows of W, R] and right [R, columns of W]: B and A, or A^T and B^T for a weight that
/// is stored as [in, out].
struct LowRank {
  Tensor left, right;
  float scaling;
  Tensor lengths;  ///< of the rows of the sum (DoRA), or undefined
};

/// One tensor of the result.
struct Output {
  std::string name;
  Shape shape;
  DType dtype;
  std::string source;  ///< tensor of the base; empty: none
  Tensor replacement;  ///< or: taken from the adapter
  std::string lora;    ///< module whose LoRA is added, or empty
  Tensor bias;         ///< added to a bias: lora_B.bias, with
  float bias_scaling = 0;
};

/// Which part of the adapter goes into which tensor.
class MergePlan {
 public:
  MergePlan(const MergeBase& base, const PeftAdapter& adapter, DType dtype) : base_(base), adapter_(adapter) {
    for (const TensorSpec& spec : base.tensors) {
      index_[spec.name] = outputs_.size();
      outputs_.push_back({.name = spec.name,
                          .shape = spec.shape,
                          .dtype = is_float(spec.dtype) ? dtype : spec.dtype,
                          .source = spec.name});
    }
    untie();
    for (const auto& [name, tensor] : adapter.tensors) place(name, tensor);
  }

  std::vector<Output>& outputs() { return outputs_; }
  bool untied() const { return untied_; }

 private:
  Output& output(const std::string& name, const std::string& part) {
    const auto found = index_.find(name);
    if (found != index_.end()) return outputs_[found->second];
    throw InputError(adapter_.file(), part + " needs " + name + ", which the base does not have",
                     "merge into the model that the adapter was trained on");
  }

  void place(const std::string& name, const Tensor& tensor) {
    std::string module;
    if (ends_with_taken(name, ".lora_A.weight", module)) {
      output(module + ".weight", name).lora = module;
    } else if (ends_with_taken(name, ".lora_B.bias", module)) {
      Output& bias = output(module + ".bias", name);
      bias.bias = tensor;
      const Tensor a = adapter_.find(module + ".lora_A.weight");
      if (!a) throw InputError(adapter_.file(), name + " has no lora_A beside it");
      bias.bias_scaling = static_cast<float>(lora_scaling(adapter_.options, module, a.dim(0)));
    } else if (ends_with_taken(name, ".base_layer.bias", module)) {
      replace(module + ".bias", name, tensor);
    } else if (!name.ends_with(".lora_B.weight") && !name.ends_with(".lora_magnitude_vector")) {
      replace(name, name, tensor);
    }
  }

  void replace(const std::string& target, const std::string& part, const Tensor& tensor) {
    Output& whole = output(target, part);
    if (whole.shape != tensor.shape()) {
      throw InputError(adapter_.file(),
                       part + " has shape " + to_string(tensor.shape()) + ", the base has " + to_string(whole.shape),
                       "merge into the model that the adapter was trained on");
    }
    whole.replacement = tensor;
  }

  /// A tied head that the adapter touches on either side becomes a tensor of its own.
  void untie() {
    const DecoderConfig model = parse_decoder_config(base_.config, (base_.directory / "config.json").string());
    if (!model.tied_head || !(touches(model.names.head) || touches(model.names.embedding))) return;
    untied_ = true;
    const std::string head = model.names.head + ".weight", embedding = model.names.embedding + ".weight";
    if (index_.contains(head)) return;  // both are in the file
    Output copy = output(embedding, head);
    copy.name = head;
    index_[head] = outputs_.size();
    outputs_.push_back(std::move(copy));
  }

  bool touches(const std::string& module) const {
    return adapter_.find(module + ".weight") || adapter_.find(module + ".lora_A.weight");
  }

  const MergeBase& base_;
  const PeftAdapter& adapter_;
  std::vector<Output> outputs_;
  std::map<std::string, size_t> index_;
  bool untied_ = false;
};

/// Computes tensors of the result and writes them.
class Merger {
 public:
  Merger(const MergeBase& base, const PeftAdapter& adapter, ModelDirectoryWriter& writer, MemoryPool& pool)
      : base_(base), adapter_(adapter), writer_(writer), pool_(pool) {}

  void write(const Output& output) {
    if (output.replacement) {
      ++report_.replaced;
      write_rows(output, as_f32(output.replacement, pool_));
      return;
    }
    const LowRank change = output.lora.empty() ? LowRank{} : low_rank(output);
    const int64_t count = output.shape.empty() ? 1 : output.shape[0];
    const int64_t width = count > 0 ? std::max<int64_t>(element_count(output.shape) / count, 1) : 1;
    const int64_t block = std::max<int64_t>(kBlockElements / width, 1);
    for (int64_t begin = 0; begin < count; begin += block) {
      const int64_t end = std::min(begin + block, count);
      Tensor rows = base_.rows(output.source, begin, end, pool_);
      if (!output.lora.empty()) add(change, begin, rows);
      if (output.bias) ops::add(as_f32(output.bias, pool_), rows, output.bias_scaling);
      write_rows(output, rows);
    }
    if (!output.lora.empty()) ++report_.modules;
  }

  MergeReport report() const {
    MergeReport made = report_;
    if (changed_ > 0) made.mean_change = sum_ / static_cast<double>(changed_);
    return made;
  }

 private:
  LowRank low_rank(const Output& output) {
    const Tensor a = as_f32(adapter_.find(output.lora + ".lora_A.weight"), pool_);
    const Tensor b = as_f32(adapter_.find(output.lora + ".lora_B.weight"), pool_);
    const auto scaling = static_cast<float>(lora_scaling(adapter_.options, output.lora, a.dim(0)));
    const Shape plain{b.dim(0), a.dim(1)}, turned{a.dim(1), b.dim(0)};
    const bool square_turned = plain == turned && adapter_.options.fan_in_fan_out;
    const Tensor magnitude = adapter_.find(output.lora + ".lora_magnitude_vector");
    if (magnitude.defined() != adapter_.options.use_dora || (magnitude && magnitude.shape() != Shape{b.dim(0)})) {
      throw InputError(adapter_.file(), output.lora + ": lora_magnitude_vector and use_dora do not fit each other",
                       "save the adapter again");
    }
    const bool is_plain = output.shape == plain && !square_turned;
    if (is_plain) return {b, a, scaling, magnitude ? as_f32(magnitude, pool_) : Tensor()};
    if (magnitude) throw InputError(adapter_.file(), output.lora + ": DoRA on a transposed weight is not supported");
    if (output.shape == turned) return {transposed(a, pool_), transposed(b, pool_), scaling, {}};
    throw InputError(adapter_.file(),
                     output.lora + ": lora_A " + to_string(a.shape()) + " and lora_B " + to_string(b.shape()) +
                         " do not fit the weight " + to_string(output.shape),
                     "merge into the model that the adapter was trained on");
  }

  void add(const LowRank& change, int64_t begin, Tensor& rows) {
    const int64_t end = begin + rows.dim(0);
    Tensor merged = rows.clone(pool_);
    ops::matmul_nn(change.left.rows(begin, end), change.right, merged, true, change.scaling);
    if (change.lengths) ops::set_row_norms(change.lengths.rows(begin, end), merged);
    const std::span<const float> before = rows.span<const float>(), after = merged.span<const float>();
    for (size_t i = 0; i < before.size(); ++i) {
      const double moved = std::abs(double{after[i]} - before[i]);
      report_.max_change = std::max(report_.max_change, moved);
      sum_ += moved;
    }
    changed_ += rows.numel();
    rows = merged;
  }

  void write_rows(const Output& output, const Tensor& rows) {
    if (!is_float(output.dtype)) {
      throw InputError(base_.directory.string(), output.name + " is no float tensor", "remove it from the checkpoint");
    }
    Tensor rounded = rows;
    if (output.dtype != DType::f32) {
      rounded = Tensor::empty(pool_, rows.shape(), output.dtype, output.name);
      ops::cast(rows, rounded);
    }
    if (ops::first_nonfinite(rounded) >= 0) {
      throw NumericError(output.name, "has a value that is not finite as " + std::string(dtype_name(output.dtype)),
                         output.dtype == DType::f16 ? "use bf16 or f32" : "the base or the adapter is damaged");
    }
    writer_.append(output.name, rounded);
  }

  const MergeBase& base_;
  const PeftAdapter& adapter_;
  ModelDirectoryWriter& writer_;
  MemoryPool& pool_;
  MergeReport report_;
  double sum_ = 0;
  int64_t changed_ = 0;
};

std::string merged_config(const std::string& text, DType dtype, bool untied) {
  const std::map<DType, const char*> names{{DType::f32, "float32"}, {DType::bf16, "bfloat16"}, {DType::f16, "float16"}};
  nlohmann::json config = nlohmann::json::parse(text);
  config.erase("quantization_config");
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = names.at(dtype);
  if (untied) config["tie_word_embeddings"] = false;
  return config.dump(2) + "\n";
}

}  // namespace

MergeBase plain_base(const CheckpointDir& checkpoint) {
  MergeBase base{checkpoint.path(), checkpoint.config_text(), {}, {}};
  for (const std::string& name : checkpoint.names()) {
    if (name.find(".quant_state.") != std::string::npos) {
      throw InputError(checkpoint.file_of(name), name + ": the weights are packed in 4 bits",
                       "merge into the dequantized weights, or name the original 16-bit model");
    }
    const Tensor tensor = checkpoint.at(name);
    if (is_buffer(name, tensor)) continue;
    base.tensors.push_back({name, tensor.shape(), tensor.dtype()});
  }
  base.rows = [&checkpoint](const std::string& name, int64_t begin, int64_t end, MemoryPool& pool) {
    const Tensor tensor = checkpoint.at(name);
    const Tensor rows = tensor.rank() == 0 ? tensor : tensor.rows(begin, end);
    Tensor wide = Tensor::empty(pool, rows.shape(), DType::f32, name);
    ops::cast(rows, wide);
    return wide;
  };
  return base;
}

MergeReport merge_adapter(const MergeBase& base, const PeftAdapter& adapter, const std::filesystem::path& out,
                          const MergeOptions& options, MemoryPool& pool) {
  if (!is_float(options.dtype)) throw UsageError("a merged model is bf16, f16 or f32", "choose one of them", "dtype");
  MergePlan plan(base, adapter, options.dtype);
  std::vector<TensorSpec> specs;
  for (const Output& output : plan.outputs()) specs.push_back({output.name, output.shape, output.dtype});
  ModelDirectoryWriter writer(out, options.force, specs, options.shard_bytes);
  Merger merger(base, adapter, writer, pool);
  for (const Output& output : plan.outputs()) merger.write(output);
  writer.write_text("config.json", merged_config(base.config, options.dtype, plan.untied()));
  writer.copy_companions(base.directory);
  writer.finish();
  MergeReport report = merger.report();
  report.untied = plan.untied();
  return report;
}

}  // namespace nibble
