#include "nibble/adapters/merge.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/adapters/embedding_lora.h"
#include "nibble/adapters/init.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/io/model_directory.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/core/ops/pick.h"
#include "nibble/core/ops/weight_norm.h"

namespace nibble {

namespace {

constexpr int64_t kBlockElements = int64_t{1} << 20;  // what is made of it stays in the last cache level

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

/// What becomes of the rows of one tensor: W += scaling left right, left [rows of W, R] and right [R, columns of W],
/// then the lengths of rows or columns that DoRA learned, then single rows.
struct Change {
  Tensor left, right;
  float scaling = 0;
  Tensor lengths;         ///< of the rows of the sum, or undefined
  Tensor column_factors;  ///< by which its columns are multiplied, or undefined
  Tensor token_rows;      ///< [K, columns], or undefined
  std::vector<int64_t> token_ids;
};

/// One tensor of the result.
struct Output {
  std::string name;
  Shape shape;
  DType dtype;
  std::string source = {};    ///< tensor of the base; empty: none
  int64_t source_rows = 0;    ///< of the base's tensor; those after them all come from the adapter
  Tensor replacement = {};    ///< or: taken from the adapter
  std::string lora = {};      ///< module whose LoRA is added, or empty
  bool is_embedding = false;  ///< the LoRA is one of a table
  std::string tokens = {};    ///< module whose token rows are put in, or empty
  Tensor bias = {};           ///< added to a bias: lora_B.bias, with
  float bias_scaling = 0;
};

/// The ids whose rows the adapter has for a table.
std::vector<int64_t> token_ids_of(const PeftAdapter& adapter, const std::string& module, const TensorNames& names) {
  for (const auto& [name, ids] : adapter.options.trainable_token_indices) {
    const bool fits = name.empty() ? module == names.embedding : module.ends_with(name);
    if (!fits) continue;
    const Tensor rows = adapter.find(module + ".token_adapter.trainable_tokens_delta");
    const bool whole = rows && rows.rank() == 2 && rows.dim(0) == static_cast<int64_t>(ids.size()) &&
                       std::ranges::all_of(ids, [](int64_t id) { return id >= 0; });
    if (whole) return ids;
  }
  throw InputError(adapter.file(), module + ": trainable_token_indices do not fit the rows of the file",
                   "save the adapter again");
}

/// Which part of the adapter goes into which tensor.
class MergePlan {
 public:
  MergePlan(const MergeBase& base, const PeftAdapter& adapter, DType dtype)
      : base_(base),
        adapter_(adapter),
        model_(parse_decoder_config(base.config, (base.directory / "config.json").string())) {
    for (const TensorSpec& spec : base.tensors) {
      index_[spec.name] = outputs_.size();
      outputs_.push_back({.name = spec.name,
                          .shape = spec.shape,
                          .dtype = is_float(spec.dtype) ? dtype : spec.dtype,
                          .source = spec.name,
                          .source_rows = spec.shape.empty() ? 1 : spec.shape[0]});
    }
    untie();
    for (const auto& [name, tensor] : adapter.tensors) place(name, tensor);
    check_tables();
  }

  std::vector<Output>& outputs() { return outputs_; }
  bool untied() const { return untied_; }
  const TensorNames& names() const { return model_.names; }
  /// Rows of the merged embedding.
  int64_t vocab_size() const {
    const auto table = index_.find(model_.names.embedding + ".weight");
    return table == index_.end() ? model_.vocab_size : outputs_[table->second].shape.at(0);
  }

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
    } else if (ends_with_taken(name, ".lora_embedding_A", module)) {
      Output& table = output(module + ".weight", name);
      table.lora = module;
      table.is_embedding = true;
    } else if (ends_with_taken(name, ".token_adapter.trainable_tokens_delta", module)) {
      grow_for_tokens(module);
      output(module + ".weight", name).tokens = module;
      share_tokens_with_head(module);
    } else if (ends_with_taken(name, ".lora_B.bias", module)) {
      Output& bias = output(module + ".bias", name);
      bias.bias = tensor;
      const Tensor a = adapter_.find(module + ".lora_A.weight");
      if (!a) throw InputError(adapter_.file(), name + " has no lora_A beside it");
      bias.bias_scaling = static_cast<float>(lora_scaling(adapter_.options, module, a.dim(0)));
    } else if (ends_with_taken(name, ".base_layer.bias", module)) {
      replace(module + ".bias", name, tensor);
    } else if (ends_with_taken(name, ".base_layer.weight", module)) {
      replace(module + ".weight", name, tensor);
    } else if (!name.ends_with(".lora_B.weight") && !name.ends_with(".lora_embedding_B") &&
               !name.ends_with(".lora_magnitude_vector")) {
      replace(name, name, tensor);
    }
  }

  void replace(const std::string& target, const std::string& part, const Tensor& tensor) {
    Output& whole = output(target, part);
    const bool grows = tensor.rank() == 2 && whole.shape.size() == 2 && is_table(target) &&
                       tensor.dim(0) > whole.shape[0] && tensor.dim(1) == whole.shape[1];
    if (grows) whole.shape = tensor.shape();
    if (whole.shape != tensor.shape()) {
      throw InputError(adapter_.file(),
                       part + " has shape " + to_string(tensor.shape()) + ", the base has " + to_string(whole.shape),
                       "merge into the model that the adapter was trained on");
    }
    whole.replacement = tensor;
  }

  /// A tied head that the adapter touches on either side becomes a tensor of its own.
  void untie() {
    if (!model_.tied_head) return;
    const std::string head = model_.names.head + ".weight", embedding = model_.names.embedding + ".weight";
    if (!(touches(model_.names.head) || touches(model_.names.embedding))) {
      if (const auto both = index_.find(head); both != index_.end()) outputs_[both->second].source = embedding;
      return;
    }
    untied_ = true;
    if (index_.contains(head)) return;  // both are in the file
    Output copy = output(embedding, head);
    copy.name = head;
    index_[head] = outputs_.size();
    outputs_.push_back(std::move(copy));
  }

  /// Whether the adapter changes a table in a way that a tied one would not see.
  bool touches(const std::string& module) const {
    return is_module_to_save(adapter_.options, module) || adapter_.find(module + ".lora_A.weight") ||
           adapter_.find(module + ".lora_embedding_A");
  }

  /// Embedding and head have as many rows as each other, also where the adapter brought more.
  void check_tables() const {
    const auto table = index_.find(model_.names.embedding + ".weight"),
               head = index_.find(model_.names.head + ".weight");
    if (table == index_.end() || head == index_.end()) return;
    const Shape &rows = outputs_[table->second].shape, &outputs = outputs_[head->second].shape;
    const bool same = rows.empty() || outputs.empty() || rows[0] == outputs[0];
    if (same) return;
    throw InputError(adapter_.file(),
                     "gives " + table->first + " " + std::to_string(rows[0]) + " rows and " + head->first + " " +
                         std::to_string(outputs[0]),
                     "train the new tokens in both tables");
  }

  bool is_table(const std::string& name) const {
    return name == model_.names.embedding + ".weight" || name == model_.names.head + ".weight";
  }

  /// A tied head that is in the file, or was written out, sees the rows of the embedding.
  void share_tokens_with_head(const std::string& module) {
    if (!model_.tied_head || module != model_.names.embedding) return;
    const auto head = index_.find(model_.names.head + ".weight");
    if (head != index_.end() && !is_module_to_save(adapter_.options, model_.names.head)) {
      outputs_[head->second].tokens = module;
    }
  }

  /// Tokens added behind the vocabulary of the base: the adapter must have a row for each of them.
  void grow_for_tokens(const std::string& module) {
    Output& table = output(module + ".weight", "trainable_token_indices");
    const std::vector<int64_t> ids = token_ids_of(adapter_, module, model_.names);
    const std::set<int64_t> known(ids.begin(), ids.end());
    const int64_t last = known.empty() ? -1 : *known.rbegin();
    for (int64_t id = table.shape.at(0); id <= last; ++id) {
      if (known.contains(id)) continue;
      throw InputError(adapter_.file(),
                       "has a row for token " + std::to_string(last) + " but none for " + std::to_string(id) +
                           ", and the base has neither",
                       "merge into a base whose embedding has been resized");
    }
    table.shape[0] = std::max(table.shape[0], last + 1);
  }

  const MergeBase& base_;
  const PeftAdapter& adapter_;
  DecoderConfig model_;
  std::vector<Output> outputs_;
  std::map<std::string, size_t> index_;
  bool untied_ = false;
};

/// Computes tensors of the result and writes them.
class Merger {
 public:
  Merger(const MergeBase& base, const PeftAdapter& adapter, const TensorNames& names, ModelDirectoryWriter& writer,
         MemoryPool& pool)
      : base_(base), adapter_(adapter), names_(names), writer_(writer), pool_(pool) {}

  void write(const Output& output) {
    if (output.replacement) ++report_.replaced;
    const Change change = change_of(output);
    const int64_t count = output.shape.empty() ? 1 : output.shape[0];
    const int64_t width = count > 0 ? std::max<int64_t>(element_count(output.shape) / count, 1) : 1;
    const int64_t block = std::max<int64_t>(kBlockElements / width, 1);
    for (int64_t begin = 0; begin < count; begin += block) {
      Tensor rows = source_rows(output, begin, std::min(begin + block, count));
      if (!output.lora.empty()) add(change, begin, rows);
      if (!output.tokens.empty()) put_tokens(change, begin, rows);
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
  Tensor source_rows(const Output& output, int64_t begin, int64_t end) {
    if (!output.replacement && end <= output.source_rows) return base_.rows(output.source, begin, end, pool_);
    if (!output.replacement) {
      Tensor rows = Tensor::zeros(pool_, {end - begin, output.shape.at(1)}, DType::f32, output.name);
      if (begin >= output.source_rows) return rows;
      Tensor known = rows.rows(0, output.source_rows - begin);
      ops::cast(base_.rows(output.source, begin, output.source_rows, pool_), known);
      return rows;
    }
    return as_f32(output.replacement.rank() == 0 ? output.replacement : output.replacement.rows(begin, end), pool_);
  }

  Change change_of(const Output& output) {
    Change change;
    if (!output.lora.empty()) change = output.is_embedding ? table_change(output) : weight_change(output);
    if (!output.tokens.empty()) {
      change.token_ids = token_ids_of(adapter_, output.tokens, names_);
      change.token_rows = as_f32(adapter_.find(output.tokens + ".token_adapter.trainable_tokens_delta"), pool_);
      check(output, change.token_rows.dim(1) == output.shape.at(1), change.token_rows, change.token_rows);
    }
    return change;
  }

  void check(const Output& output, bool fits, const Tensor& a, const Tensor& b) const {
    if (fits) return;
    throw InputError(adapter_.file(),
                     output.name + ": A " + to_string(a.shape()) + " and B " + to_string(b.shape()) +
                         " do not fit the weight " + to_string(output.shape),
                     "merge into the model that the adapter was trained on");
  }

  Tensor magnitude(const std::string& module, int64_t count) {
    const Tensor found = adapter_.find(module + ".lora_magnitude_vector");
    if (found.defined() != adapter_.options.use_dora || (found && found.shape() != Shape{count})) {
      throw InputError(adapter_.file(), module + ": lora_magnitude_vector and use_dora do not fit each other",
                       "save the adapter again");
    }
    return found ? as_f32(found, pool_) : Tensor();
  }

  /// A table [V, D] with A [R, V] and B [D, R].
  Change table_change(const Output& output) {
    const Tensor a = as_f32(adapter_.find(output.lora + ".lora_embedding_A"), pool_);
    const Tensor b = as_f32(adapter_.find(output.lora + ".lora_embedding_B"), pool_);
    check(output, output.shape == Shape{a.dim(1), b.dim(0)}, a, b);
    Change change{transposed(a, pool_), transposed(b, pool_), scaling_of(output.lora, a), {}, {}, {}, {}};
    if (const Tensor lengths = magnitude(output.lora, b.dim(0))) {
      const Tensor table = source_rows(output, 0, output.shape[0]);
      Tensor squares = Tensor::empty(pool_, {b.dim(0)}, DType::f64), norms = lengths.clone(pool_);
      change.column_factors = lengths.clone(pool_);
      ops::column_squares(table, squares);
      embedding_norms(lengths, squares, table, a, b, change.scaling, norms, change.column_factors, pool_);
    }
    return change;
  }

  /// A weight [out, in], or [in, out] where the model keeps it so.
  Change weight_change(const Output& output) {
    Tensor a = as_f32(adapter_.find(output.lora + ".lora_A.weight"), pool_);
    Tensor b = as_f32(adapter_.find(output.lora + ".lora_B.weight"), pool_);
    const Shape plain{b.dim(0), a.dim(1)}, turned{a.dim(1), b.dim(0)};
    check(output, output.shape == plain || output.shape == turned, a, b);
    const bool is_turned = output.shape != plain || (plain == turned && adapter_.options.fan_in_fan_out);
    const float scaling = scaling_of(output.lora, a);
    const Tensor lengths = magnitude(output.lora, b.dim(0));
    const bool needs_weight = takes_from_base(adapter_.options.init_lora_weights) || (lengths && is_turned);
    Tensor weight;
    if (needs_weight) weight = source_rows(output, 0, output.shape[0]);
    if (needs_weight && is_turned) weight = transposed(weight, pool_);
    if (takes_from_base(adapter_.options.init_lora_weights)) subtract_start(output.lora, weight, scaling, a, b);
    if (!is_turned) return {b, a, scaling, lengths, {}, {}, {}};
    Change change{transposed(a, pool_), transposed(b, pool_), scaling, {}, {}, {}, {}};
    if (lengths) change.column_factors = factors(weight, a, b, scaling, lengths);
    return change;
  }

  float scaling_of(const std::string& module, const Tensor& a) const {
    return static_cast<float>(lora_scaling(adapter_.options, module, a.dim(0)));
  }

  /// The base gave s B0 A0 away: A over A0, B beside -B0.
  void subtract_start(const std::string& module, const Tensor& weight, float scaling, Tensor& a, Tensor& b) {
    AdapterOptions options = adapter_.options;
    options.pissa_iterations = 0;
    LowRankFactors start = initial_factors(options, module, weight, a.dim(0), double{scaling}, 0, pool_);
    ops::scale(start.b, -1.0f);
    Tensor tall = Tensor::empty(pool_, {a.dim(0) + start.a.dim(0), a.dim(1)}, DType::f32, module);
    Tensor upper = tall.rows(0, a.dim(0)), lower = tall.rows(a.dim(0), tall.dim(0));
    ops::cast(a, upper);
    ops::cast(start.a, lower);
    Tensor broad = Tensor::empty(pool_, {b.dim(0), tall.dim(0)}, DType::f32, module);
    ops::copy_columns_in(b, 0, broad);
    ops::copy_columns_in(start.b, b.dim(1), broad);
    a = tall;
    b = broad;
  }

  /// lengths over the norms of the rows of W + s B A, W [out, in].
  Tensor factors(const Tensor& weight, const Tensor& a, const Tensor& b, float scaling, const Tensor& lengths) {
    Tensor sum = weight.clone(pool_);
    ops::matmul_nn(b, a, sum, true, scaling);
    Tensor squares = Tensor::empty(pool_, {sum.dim(0)}, DType::f64);
    ops::row_squares(sum, squares);
    Tensor made = lengths.clone(pool_);
    for (int64_t i = 0; i < made.numel(); ++i) {
      made.data<float>()[i] /= static_cast<float>(std::sqrt(squares.data<const double>()[i]));
    }
    return made;
  }

  void add(const Change& change, int64_t begin, Tensor& rows) {
    const int64_t end = begin + rows.dim(0);
    Tensor merged = rows.clone(pool_);
    ops::matmul_nn(change.left.rows(begin, end), change.right, merged, true, change.scaling);
    if (change.lengths) ops::set_row_norms(change.lengths.rows(begin, end), merged);
    if (change.column_factors) ops::scale_columns(merged, change.column_factors, 0, merged);
    note_change(rows.data<const float>(), merged.data<const float>(), rows.numel());
    rows = merged;
  }

  /// Pieces, and the sums side by side within them, do not depend on the number of threads.
  void note_change(const float* before, const float* after, int64_t count) {
    constexpr int64_t kPiece = int64_t{1} << 15, kSums = 8;
    struct Moved {
      double sums[kSums] = {}, largest[kSums] = {};
    };
    std::vector<Moved> pieces(static_cast<size_t>((count + kPiece - 1) / kPiece));
    parallel_for(count, kPiece, [&](int64_t begin, int64_t end) {
      Moved moved;
      for (int64_t i = begin; i < end; i += kSums) {
        for (int64_t k = 0; k < std::min(kSums, end - i); ++k) {
          const double distance = std::abs(double{after[i + k]} - double{before[i + k]});
          moved.sums[k] += distance;
          moved.largest[k] = std::max(moved.largest[k], distance);
        }
      }
      pieces[static_cast<size_t>(begin / kPiece)] = moved;
    });
    for (const Moved& moved : pieces) {
      for (double sum : moved.sums) sum_ += sum;
      for (double largest : moved.largest) report_.max_change = std::max(report_.max_change, largest);
    }
    changed_ += count;
  }

  static void put_tokens(const Change& change, int64_t begin, Tensor& rows) {
    for (size_t k = 0; k < change.token_ids.size(); ++k) {
      const int64_t row = change.token_ids[k] - begin, width = rows.dim(1);
      if (row < 0 || row >= rows.dim(0)) continue;
      std::copy_n(change.token_rows.data<const float>() + static_cast<int64_t>(k) * width, width,
                  rows.data<float>() + row * width);
    }
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
  const TensorNames& names_;
  ModelDirectoryWriter& writer_;
  MemoryPool& pool_;
  MergeReport report_;
  double sum_ = 0;
  int64_t changed_ = 0;
};

std::string merged_config(const std::string& text, DType dtype, bool untied, int64_t vocab_size) {
  const std::map<DType, const char*> names{{DType::f32, "float32"}, {DType::bf16, "bfloat16"}, {DType::f16, "float16"}};
  nlohmann::json config = nlohmann::json::parse(text);
  config.erase("quantization_config");
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = names.at(dtype);
  if (untied) config["tie_word_embeddings"] = false;
  nlohmann::json& sizes = config.contains("text_config") ? config["text_config"] : config;
  if (sizes.value("vocab_size", vocab_size) != vocab_size) sizes["vocab_size"] = vocab_size;
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
  Merger merger(base, adapter, plan.names(), writer, pool);
  for (const Output& output : plan.outputs()) merger.write(output);
  writer.write_text("config.json", merged_config(base.config, options.dtype, plan.untied(), plan.vocab_size()));
  writer.copy_companions(base.directory);
  writer.finish();
  MergeReport report = merger.report();
  report.untied = plan.untied();
  return report;
}

}  // namespace nibble
