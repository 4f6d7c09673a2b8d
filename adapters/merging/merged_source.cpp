#include "nibble/adapters/merging/merged_source.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "nibble/adapters/merging/merge_plan.h"
#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/embedding_lora.h"
#include "nibble/adapters/tuners/init.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/models/resize.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/gemm.h"
#include "nibble/core/ops/pick.h"
#include "nibble/core/ops/weight_norm.h"

namespace nibble {

namespace {

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

std::string merged_config(const std::string& text, DType dtype, bool untied, int64_t vocab_size) {
  const std::map<DType, const char*> names{{DType::f32, "float32"}, {DType::bf16, "bfloat16"}, {DType::f16, "float16"}};
  nlohmann::json config = nlohmann::json::parse(text);
  drop_quantization_config(config);
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = names.at(dtype);
  if (untied) config["tie_word_embeddings"] = false;
  nlohmann::json& sizes = config.contains("text_config") ? config["text_config"] : config;
  if (sizes.value("vocab_size", vocab_size) != vocab_size) sizes["vocab_size"] = vocab_size;
  return config.dump(2) + "\n";
}

}  // namespace

Tensor as_f32(const Tensor& stored, MemoryPool& pool) {
  Tensor wide = Tensor::empty(pool, stored.shape(), DType::f32, "adapter");
  ops::cast(stored, wide);
  return wide;
}

/// Computes rows of the result.
class MergedModel::Merger {
  PeftAdapter adapter_;

 public:
  Merger(const TensorSource& base, const PeftAdapter& adapter, DType dtype, MemoryPool& pool)
      : adapter_(in_file_names(adapter, decoder_config_of(base))),
        plan(base, adapter_, dtype),
        base_(base),
        names_(plan.names()),
        pool_(pool) {
    for (const MergeOutput& output : plan.outputs()) {
      outputs_[output.name] = &output;
      report_.modules += !output.lora.empty();
      report_.replaced += output.replacement.defined();
    }
    report_.untied = plan.untied();
  }

  Tensor rows(const std::string& name, int64_t begin, int64_t end) {
    const MergeOutput& output = *outputs_.at(name);
    const bool all_experts = output.experts && output.experts->all;
    if (name != current_ && !all_experts) change_ = change_of(output);
    current_ = name;
    Tensor rows = source_rows(output, begin, end);
    if (all_experts) {
      add_to_experts(output, begin, rows);
      return rows;
    }
    if (!output.lora.empty()) add(change_, begin, rows);
    if (!output.tokens.empty()) put_tokens(change_, begin, rows);
    if (output.bias) ops::add(as_f32(output.bias, pool_), rows, output.bias_scaling);
    return rows;
  }

  MergeReport report() const {
    MergeReport result = report_;
    if (changed_ > 0) result.mean_change = sum_ / static_cast<double>(changed_);
    return result;
  }

  const MergePlan plan;

 private:
  Tensor source_rows(const MergeOutput& output, int64_t begin, int64_t end) {
    if (output.replacement) {
      return as_f32(output.replacement.rank() == 0 ? output.replacement : output.replacement.rows(begin, end), pool_);
    }
    const int64_t known = std::clamp(output.source_rows, begin, end);
    if (known == end) return base_.rows(output.source, begin, end, pool_);
    Shape shape = output.shape;
    shape[0] = end - begin;
    Tensor rows = Tensor::zeros(pool_, shape, DType::f32, output.name);
    if (known > begin) {
      Tensor first = rows.rows(0, known - begin);
      ops::cast(base_.rows(output.source, begin, known, pool_), first);
    }
    for (int64_t i = known; i < end && !output.zero_filled; ++i) {
      Tensor row = rows.rows(i - begin, i - begin + 1);
      ops::cast(mean_of(output).reshape(row.shape()), row);
    }
    return rows;
  }

  /// Of the rows of the base, in its dtype.
  const Tensor& mean_of(const MergeOutput& output) {
    Tensor& mean = means_[output.source];
    if (mean) return mean;
    const auto spec = std::ranges::find(base_.tensors, output.source, &TensorSpec::name);
    const auto rows = [&](int64_t begin, int64_t end) { return base_.rows(output.source, begin, end, pool_); };
    return mean = mean_row(output.source_rows, spec->dtype, rows, pool_);
  }

  Change change_of(const MergeOutput& output) {
    Change change;
    if (output.experts) return expert_change(output, output.experts->part.expert);
    if (!output.lora.empty()) change = output.is_embedding ? table_change(output) : weight_change(output);
    if (!output.tokens.empty()) {
      change.token_ids = trained_token_ids(adapter_, output.tokens, names_);
      change.token_rows = as_f32(adapter_.find(output.tokens + ".token_adapter.trainable_tokens_delta"), pool_);
      check(output, change.token_rows.dim(1) == output.shape.at(1), change.token_rows, change.token_rows);
    }
    return change;
  }

  void check(const MergeOutput& output, bool fits, const Tensor& a, const Tensor& b) const {
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
  Change table_change(const MergeOutput& output) {
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

  /// A weight [out, in], or [in, out] where the family stores it so.
  Change weight_change(const MergeOutput& output) {
    Tensor a = as_f32(adapter_.find(output.lora + ".lora_A.weight"), pool_);
    Tensor b = as_f32(adapter_.find(output.lora + ".lora_B.weight"), pool_);
    const bool is_turned = output.transposed;
    check(output, output.shape == (is_turned ? Shape{a.dim(1), b.dim(0)} : Shape{b.dim(0), a.dim(1)}), a, b);
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

  /// Of the matrix of one expert: A's rows and B's columns that are its own, see ExpertLora.
  Change expert_change(const MergeOutput& output, int64_t expert) {
    const ExpertMatrices& matrices = *output.experts;
    const ExpertPart& part = matrices.part;
    const Tensor a = as_f32(adapter_.find(output.lora + ".lora_A.weight"), pool_);
    const Tensor b = as_f32(adapter_.find(output.lora + ".lora_B.weight"), pool_);
    const bool turned = matrices.transposed && !part.swapped;
    const int64_t r = a.dim(0) / part.experts, outputs = output.shape.end()[turned ? -1 : -2];
    const bool fits = a.dim(0) % part.experts == 0 && b.dim(0) == (part.swapped ? outputs : part.outputs) &&
                      a.dim(1) == output.shape.end()[turned ? -2 : -1];
    check(output, fits, a, b);
    check_rank(adapter_.options, part.tensor, r, adapter_.file());
    std::vector<int32_t> columns;
    for (int64_t i = 0; i < r; ++i) columns.push_back(static_cast<int32_t>(i * part.experts + expert));
    Tensor own_b = Tensor::empty(pool_, {outputs, r}, DType::f32, output.lora);
    ops::take_columns(b.rows(part.first_output, part.first_output + outputs),
                      Tensor::from<int32_t>(pool_.host(), {r}, columns), own_b);
    const Tensor own_a = a.rows(expert * r, (expert + 1) * r);
    const auto scaling = static_cast<float>(lora_scaling(adapter_.options, part.tensor, r));
    if (!turned) return {own_b, own_a, scaling, {}, {}, {}, {}};
    return {transposed(own_a, pool_), transposed(own_b, pool_), scaling, {}, {}, {}, {}};
  }

  /// rows [n, ...]: the matrices of experts `begin` and on.
  void add_to_experts(const MergeOutput& output, int64_t begin, Tensor& rows) {
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      Tensor own = rows.rows(i, i + 1).reshape({rows.dim(1), rows.dim(2)}), merged = own;
      add(expert_change(output, begin + i), 0, merged);
      ops::cast(merged, own);
    }
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
    Tensor result = lengths.clone(pool_);
    for (int64_t i = 0; i < result.numel(); ++i) {
      result.data<float>()[i] /= static_cast<float>(std::sqrt(squares.data<const double>()[i]));
    }
    return result;
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

  const TensorSource& base_;
  const TensorNames& names_;
  MemoryPool& pool_;
  std::map<std::string, const MergeOutput*> outputs_;
  std::map<std::string, Tensor> means_;  // of tables
  std::string current_;                  // tensor whose rows were computed last
  Change change_;                        // of it
  MergeReport report_;
  double sum_ = 0;
  int64_t changed_ = 0;
};

MergedModel::MergedModel(const TensorSource& base, const PeftAdapter& adapter, DType dtype, MemoryPool& pool)
    : merger_(std::make_unique<Merger>(base, adapter, dtype, pool)) {
  const MergePlan& plan = merger_->plan;
  source_.directory = base.directory;
  source_.config = merged_config(base.config, dtype, plan.untied(), plan.vocab_size());
  for (const MergeOutput& output : plan.outputs()) {
    source_.tensors.push_back({output.name, output.shape, output.dtype});
  }
  source_.rows = [merger = merger_.get()](const std::string& name, int64_t begin, int64_t end, MemoryPool&) {
    return merger->rows(name, begin, end);
  };
}

MergedModel::~MergedModel() = default;

MergeReport MergedModel::report() const { return merger_->report(); }

Tensor checked_rows(const Tensor& rows, const std::string& name, DType dtype, MemoryPool& pool) {
  Tensor rounded = rows;
  if (dtype != DType::f32) {
    rounded = Tensor::empty(pool, rows.shape(), dtype, name);
    ops::cast(rows, rounded);
  }
  if (ops::first_nonfinite(rounded) >= 0) {
    const bool fits_another = dtype != DType::f32 && ops::first_nonfinite(rows) < 0;
    throw NumericError(name, "has a value that is not finite as " + std::string(dtype_name(dtype)),
                       fits_another ? "use bf16 or f32" : "the weights are damaged: get them again");
  }
  return rounded;
}

void copy_merged_companions(const TensorSource& base, const PeftAdapter& adapter, const std::filesystem::path& to) {
  copy_companions(base.directory, to);
  if (!adapter.directory.empty()) copy_tokenizer_files(adapter.directory, to);
}

}  // namespace nibble
