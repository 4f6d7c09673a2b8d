#include "nibble/recipes/gguf/import_gguf.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "nibble/adapters/tuners/init.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/models/families/gguf/gguf_config.h"
#include "nibble/core/models/families/gguf/gguf_names.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/text/tokenizers/gguf_tokenizer.h"

namespace nibble {

namespace {

constexpr int64_t kBlockElements = int64_t{4} << 20;

DType output_dtype(const std::string& name, const GgufFile& file) {
  if (name == "f32") return DType::f32;
  if (name == "f16") return DType::f16;
  if (name == "bf16") return DType::bf16;
  if (name != "auto") throw UsageError("dtype " + name + " is not known", "use auto, f32, f16 or bf16", "--dtype");
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding && embedding->type == GgufType::f32) return DType::f32;
  return embedding && embedding->type == GgufType::bf16 ? DType::bf16 : DType::f16;
}

// The exporter's way back: rows and halves in Hugging Face's order.
class Importer {
 public:
  Importer(const GgufFile& file, const DecoderConfig& config, DType dtype, MemoryPool& pool)
      : file_(file), dtype_(dtype), pool_(pool) {
    refuse_unreadable();
    std::set<std::string> used = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"};
    if (config.tied_head) used.insert("output.weight");
    for (GgufPart& part : gguf_parts(config)) {
      if (config.tied_head && part.name == "output.weight") continue;  // the same again
      const GgufTensor* tensor = file.find(part.name);
      if (!tensor && part.source.ends_with(".bias")) continue;
      if (!tensor) throw InputError(file.path(), "has no " + part.name, "the model is incomplete: get it again");
      const int64_t count = element_count(tensor->shape);
      const auto ordered = static_cast<int64_t>(part.row_order.size());
      if (tensor->shape.empty() || count == 0 || (ordered > 0 && count % ordered != 0))
        throw InputError(file.path() + ": " + part.name, "has shape " + to_string(tensor->shape));
      used.insert(part.name);
      if (part.rows) {
        plan_rows(std::move(part), *tensor);
        continue;
      }
      Shape shape = tensor->shape;
      if (part.transposed && shape.size() != 2)
        throw InputError(file.path() + ": " + part.name, "has shape " + to_string(shape));
      if (part.transposed) std::swap(shape[0], shape[1]);
      specs_.push_back({part.source, shape, dtype});
      parts_.push_back(std::move(part));
    }
    for (const GgufTensor& tensor : file.tensors()) {
      if (!used.contains(tensor.name))
        throw InputError(file.path(), tensor.name + " has no place in the model", "get it in Hugging Face's form");
    }
  }

  std::vector<TensorSpec> specs() const {
    std::vector<TensorSpec> all = specs_;
    for (const auto& [source, made_of] : matrices_) all.push_back({source, made_of.shape, dtype_});
    return all;
  }

  void write(ModelDirectoryWriter& writer) const {
    for (size_t i = 0; i < parts_.size(); ++i) write_part(parts_[i], specs_[i], writer);
    for (const auto& [source, made_of] : matrices_) write_matrices(source, made_of, writer);
  }

 private:
  // A tensor that rows of several tensors of the file make: a matrix, or those of all experts.
  struct Matrices {
    Shape shape;
    std::vector<GgufPart> parts;
    int64_t first = 0;  // matrix of the file's tensors
  };

  void plan_rows(GgufPart part, const GgufTensor& stored) {
    const GgufRows& rows = *part.rows;
    Shape expected = {rows.count, stored.shape.back()};
    if (rows.experts > 0) expected.insert(expected.begin(), rows.experts);
    if (stored.shape != expected)
      throw InputError(file_.path() + ": " + part.name, "has shape " + to_string(stored.shape));
    const bool each = rows.sources.size() > 1 || rows.experts == 0;
    for (size_t i = 0; i < rows.sources.size(); ++i) {
      Matrices& result = matrices_[rows.sources[i]];
      result.first = static_cast<int64_t>(i);
      if (result.shape.empty())
        result.shape = each ? Shape{0, expected.back()} : Shape{rows.experts, 0, expected.back()};
      int64_t& height = result.shape.end()[-2];
      height = std::max(height, rows.first + rows.count);
      result.parts.push_back(part);
    }
  }

  void write_matrices(const std::string& source, const Matrices& result, ModelDirectoryWriter& writer) const {
    const int64_t height = result.shape.end()[-2], width = result.shape.back();
    for (int64_t i = 0; i < (result.shape.size() == 3 ? result.shape[0] : 1); ++i) {
      Tensor matrix = Tensor::empty(pool_, {height, width}, DType::f32, "imported rows");
      for (const GgufPart& part : result.parts) {
        const GgufRows& rows = *part.rows;
        const int64_t begin = (result.first + i) * rows.count;
        Tensor own = matrix.rows(rows.first, rows.first + rows.count);
        ops::cast(file_.rows(*file_.find(part.name), begin, begin + rows.count, pool_), own);
      }
      writer.append(source, converted(matrix));
    }
  }

  void refuse_unreadable() const {
    if (file_.unreadable().empty()) return;
    const auto& [name, type] = file_.unreadable().front();
    throw InputError(file_.path(),
                     name + " and " + std::to_string(file_.unreadable().size() - 1) +
                         " more are in blocks of a kind that is not read (ggml type " + std::to_string(type) + ")",
                     "take a file in F32, F16, BF16, MXFP4, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K or Q4_0");
  }

  Tensor converted(const Tensor& rows) const {
    if (dtype_ == DType::f32) return rows;
    Tensor result = Tensor::empty(pool_, rows.shape(), dtype_, "imported rows");
    ops::cast(rows, result);
    return result;
  }

  Tensor back_in_order(const Tensor& rows, const std::vector<int64_t>& order, const Shape& shape) const {
    Tensor result = Tensor::empty(pool_, shape, DType::f32, "imported rows");
    const size_t bytes = rows.bytes() / order.size();
    for (size_t i = 0; i < order.size(); ++i)
      std::memcpy(result.mutable_raw() + static_cast<size_t>(order[i]) * bytes, rows.raw() + i * bytes, bytes);
    return result;
  }

  void write_part(const GgufPart& part, const TensorSpec& spec, ModelDirectoryWriter& writer) const {
    const GgufTensor& stored = *file_.find(part.name);
    const int64_t width = stored.shape.back(), count = element_count(stored.shape) / width;
    if (part.transposed || !part.row_order.empty()) {
      Tensor whole = file_.rows(stored, 0, count, pool_);
      if (!part.row_order.empty()) whole = back_in_order(whole, part.row_order, spec.shape);
      return writer.write(part.source, converted(part.transposed ? transposed(whole, pool_) : whole));
    }
    if (spec.shape.size() == 1) {
      const Tensor row = file_.rows(stored, 0, 1, pool_);
      Tensor flat = Tensor::empty(pool_, spec.shape, DType::f32, part.source);
      std::memcpy(flat.mutable_raw(), row.raw(), flat.bytes());
      for (float& value : flat.span<float>()) value -= part.added;
      return writer.write(part.source, converted(flat));
    }
    const int64_t step = std::max<int64_t>(kBlockElements / width, 1);
    for (int64_t begin = 0; begin < count; begin += step)
      writer.append(part.source, converted(file_.rows(stored, begin, std::min(begin + step, count), pool_)));
  }

  const GgufFile& file_;
  DType dtype_;
  MemoryPool& pool_;
  std::vector<GgufPart> parts_;
  std::vector<TensorSpec> specs_;
  std::map<std::string, Matrices> matrices_;  // by source
};

ImportReport import_tokenizer(const ImportRequest& request, const std::map<std::string, std::string>& files) {
  if (files.empty()) throw InputError(request.file, "has neither weights nor a tokenizer");
  AtomicDirectory directory(request.out, request.replace);
  for (const auto& [name, content] : files) write_file_atomically(directory.path() / name, content);
  directory.list_files();
  directory.commit();
  return {.tokenizer = true};
}

}  // namespace

ImportReport import_gguf(const ImportRequest& request, RankContext& rank) {
  guard_output(request.out, {request.file});
  const GgufFile file(request.file);
  const std::map<std::string, std::string> tokenizer = gguf_tokenizer_files(file);
  if (file.tensors().empty() && file.unreadable().empty()) return import_tokenizer(request, tokenizer);
  const DType dtype = output_dtype(request.dtype, file);
  const std::string text = gguf_config_json(file, dtype, rank.pool);
  const DecoderConfig config = parse_decoder_config(text, request.file);
  const Importer importer(file, config, dtype, rank.pool);
  ModelDirectoryWriter writer(request.out, request.replace, importer.specs());
  importer.write(writer);
  writer.write_text("config.json", text);
  for (const auto& [name, content] : tokenizer) writer.write_text(name, content);
  ImportReport report{config.model_type, static_cast<int64_t>(importer.specs().size()), 0, !tokenizer.empty()};
  for (const TensorSpec& spec : importer.specs())
    report.bytes += static_cast<uint64_t>(element_count(spec.shape)) * dtype_size(spec.dtype);
  writer.finish();
  return report;
}

}  // namespace nibble
