#include "nibble/recipes/gguf/import_gguf.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/adapters/merging/merged_source.h"
#include "nibble/adapters/tuners/init.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/models/families/gguf/gguf_config.h"
#include "nibble/core/models/families/gguf/gguf_keys.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/text/tokenizers/gguf_tokenizer.h"
#include "nibble/recipes/gguf/gguf_layout.h"
#include "nibble/recipes/gguf/gguf_vocabulary.h"

namespace nibble {

namespace {

constexpr const char* kIncomplete = "the model is incomplete: get it again";

bool is_wide(GgufType type) { return type == GgufType::f32 || type == GgufType::f64; }

DType output_dtype(const std::string& name, const GgufFile& file) {
  if (name == "f32") return DType::f32;
  if (name == "f16") return DType::f16;
  if (name == "bf16") return DType::bf16;
  if (name != "auto") throw UsageError("dtype " + name + " is not known", "use auto, f32, f16 or bf16", "--dtype");
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding && is_wide(embedding->type)) return DType::f32;
  return embedding && embedding->type == GgufType::bf16 ? DType::bf16 : DType::f16;
}

void refuse_unreadable(const GgufFile& file) {
  if (file.unreadable().empty()) return;
  const auto& [name, type] = file.unreadable().front();
  const size_t more = file.unreadable().size() - 1;
  throw InputError(file.path(),
                   name + (more > 0 ? " and " + std::to_string(more) + " more are" : " is") +
                       " in blocks of a kind that is not read (ggml type " + std::to_string(type) + ")",
                   "take a file in F32, F16, BF16, MXFP4, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K or Q4_0");
}

// Where answers end, if more ids than EOS end them; empty else.
std::string generation_config_of(const GgufFile& file) {
  std::vector<int32_t> ends;
  for (const char* role : {"eos", "eot", "eom"}) {
    const std::optional<int32_t> id = file.token_id(role);
    if (id && std::ranges::count(ends, *id) == 0) ends.push_back(*id);
  }
  const auto others = file.metadata().find(kGgufOtherEnds);
  if (others != file.metadata().end()) {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&others->second))
      ends.insert(ends.end(), ids->begin(), ids->end());
  }
  if (ends.empty() || (ends.size() == 1 && file.token_id("eos"))) return "";
  nlohmann::ordered_json config;
  if (const auto id = file.token_id("bos")) config["bos_token_id"] = *id;
  config["eos_token_id"] = ends;
  return config.dump(2) + "\n";
}

std::string weight_beside(const std::string& bias) { return bias.substr(0, bias.rfind('.')) + ".weight"; }

// A bias of projections, which llama.cpp adds where a file has it.
bool may_be_missing(const GgufPart& part) {
  return part.name.ends_with(".bias") && part.name.find("norm") == std::string::npos &&
         (part.name.find(".attn_") != std::string::npos || part.name.find(".ffn_") != std::string::npos);
}

// The exporter's way back: each tensor of the checkpoint from all parts that were made of it.
class Importer {
 public:
  /// shapes: see decoder_shapes(); may_stay_wide: what `dtype` cannot hold of what the file has in f32 stays f32.
  Importer(const GgufFile& file, const DecoderConfig& config, const std::map<std::string, Shape>& shapes, DType dtype,
           bool may_stay_wide, MemoryPool& pool)
      : file_(file), dtype_(dtype), pool_(pool), parts_(gguf_parts(config)) {
    std::set<std::string> used = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"};
    if (config.tied_head) used.insert("output.weight");
    for (const GgufPart& part : parts_) {
      if (config.tied_head && part.name == "output.weight") continue;  // the same again
      const GgufTensor* fused = part.fused ? file.find(part.fused->name) : nullptr;
      const GgufTensor* tensor = fused ? fused : file.find(part.name);
      const bool is_bias = part.source.ends_with(".bias"), is_known = shapes.contains(part.source);
      if (!tensor && (part.optional || (is_bias && !is_known))) continue;
      if (!tensor && is_bias && may_be_missing(part)) {
        zeros_.push_back({part.source, shapes.at(part.source), dtype});
        continue;
      }
      if (!tensor) throw InputError(file.path(), "has no " + part.name, kIncomplete);
      if (may_be_missing(part) && !is_known && shapes.contains(weight_beside(part.source))) continue;  // refused below
      used.insert(tensor->name);
      add(part, *tensor);
    }
    for (Source& source : sources_) {
      settle(source, shapes);
      source.dtype = may_stay_wide && !fits(source) ? DType::f32 : dtype;
    }
    for (const GgufTensor& tensor : file.tensors()) {
      if (!used.contains(tensor.name) && !behind_the_last_layer(tensor.name, config))
        throw InputError(file.path(), tensor.name + " has no place in the model", GgufKeys::kElsewhere);
    }
  }

  std::vector<TensorSpec> specs() const {
    std::vector<TensorSpec> all;
    for (const Source& source : sources_) all.push_back({source.name, source.shape, source.dtype});
    all.insert(all.end(), zeros_.begin(), zeros_.end());
    return all;
  }

  void write(ModelDirectoryWriter& writer) const {
    for (const Source& source : sources_)
      source.streams() ? write_rows(source, writer) : write_matrices(source, writer);
    for (const TensorSpec& zero : zeros_) writer.write(zero.name, Tensor::zeros(pool_, zero.shape, zero.dtype));
  }

 private:
  // Layers that predict tokens after the next
  static bool behind_the_last_layer(const std::string& name, const DecoderConfig& config) {
    return name.starts_with("blk.") && std::atoll(name.c_str() + 4) >= config.layers;
  }

  // A part's rows of one of its sources.
  struct Piece {
    const GgufPart* part;
    const GgufTensor* stored;
    int64_t first = 0;  // of the part's matrices, the one that is the source's first

    // Where its rows are, if the stored tensor has others too.
    const GgufFused* fused() const {
      return part->fused && part->fused->name == stored->name ? &*part->fused : nullptr;
    }
    bool has_all() const { return !part->rows && part->row_order.empty(); }
    int64_t row(int64_t i) const {
      if (part->rows) return part->rows->first + i * part->rows->step;
      return has_all() ? i : part->row_order[static_cast<size_t>(i)];
    }
  };
  // A tensor of the checkpoint as matrices whose rows are those that pieces have.
  struct Source {
    std::string name;
    std::vector<Piece> pieces;
    int64_t matrices = 1, height = 0, width = 0;
    Shape shape;  // in the checkpoint, where the matrices may be the other way round
    DType dtype = DType::f32;

    const GgufPart& part() const { return *pieces.front().part; }
    bool streams() const { return pieces[0].has_all() && !part().transposed && part().column_order.empty(); }
    int64_t rows(const Piece& piece) const {
      if (piece.part->rows) return piece.part->rows->count;
      return piece.has_all() ? height : static_cast<int64_t>(piece.part->row_order.size());
    }
  };

  void add(const GgufPart& part, const GgufTensor& stored) {
    const auto to = [&](const std::string& name) -> Source& {
      const auto [found, is_new] = index_.emplace(name, sources_.size());
      if (is_new) sources_.push_back({.name = name, .pieces = {}, .shape = {}});
      return sources_[found->second];
    };
    if (!part.rows) return to(part.source).pieces.push_back({&part, &stored});
    for (size_t i = 0; i < part.rows->sources.size(); ++i) {
      Source& source = to(part.rows->sources[i]);
      source.pieces.push_back({&part, &stored, static_cast<int64_t>(i)});
      if (part.rows->sources.size() == 1) source.matrices = std::max<int64_t>(part.rows->experts, 1);
    }
  }

  [[noreturn]] void fail_shape(const Piece& piece) const {
    throw InputError(file_.path() + ": " + piece.stored->name,
                     "has shape " + to_string(piece.stored->shape) + ", another than the " +
                         file_.text("general.architecture").value_or("") + " keys of the file give it",
                     "the file is damaged: get it again");
  }

  // Of the elements of a piece those that one source has, where it is as the config says.
  int64_t checked_count(const Piece& piece) const {
    const Shape& shape = piece.stored->shape;
    const int64_t count = element_count(shape);
    if (shape.empty() || count == 0) fail_shape(piece);
    if (!piece.part->rows) return count;
    const GgufRows& rows = *piece.part->rows;
    const int64_t stored_rows = piece.fused() ? piece.fused()->rows : rows.count;
    if (shape.size() != (rows.experts > 0 ? 3 : 2) || shape.end()[rows.turned ? -1 : -2] != stored_rows ||
        (rows.experts > 0 && shape[0] != rows.experts))
      fail_shape(piece);
    return count / stored_rows * rows.count / static_cast<int64_t>(rows.sources.size());
  }

  // Its sizes, from those of the model or else of the pieces.
  void settle(Source& source, const std::map<std::string, Shape>& shapes) const {
    const Piece& first = source.pieces.front();
    const GgufPart& part = source.part();
    int64_t elements = 0;
    for (const Piece& piece : source.pieces) {
      elements += checked_count(piece);
      if (!piece.has_all()) source.height += source.rows(piece);
    }
    const auto planned = shapes.find(source.name);
    if (planned != shapes.end()) {
      source.shape = planned->second;
    } else {
      source.shape = first.stored->shape;
      if (part.rows) {
        if (elements % (source.matrices * source.height) != 0) fail_shape(first);
        source.shape = {source.height, elements / source.matrices / source.height};
        if (source.matrices > 1) source.shape.insert(source.shape.begin(), source.matrices);
      }
      if (part.transposed) std::swap(source.shape.at(source.shape.size() - 2), source.shape.back());
    }
    if (first.has_all()) source.height = part.transposed ? source.shape.back() : source.shape.front();
    if (element_count(source.shape) != elements || elements % (source.matrices * source.height) != 0) fail_shape(first);
    source.width = elements / source.matrices / source.height;
    const bool columns_fit =
        part.column_order.empty() || static_cast<int64_t>(part.column_order.size()) == source.width;
    for (const Piece& piece : source.pieces) {
      const int64_t rows = source.rows(piece);
      for (int64_t i = 0; i < rows; ++i) {
        if (piece.row(i) >= source.height) fail_shape(piece);
      }
      if (!columns_fit || checked_count(piece) != source.matrices * rows * source.width) fail_shape(piece);
    }
  }

  Tensor converted(const Tensor& rows, DType dtype) const {
    if (rows.dtype() == dtype) return rows;
    Tensor result = Tensor::empty(pool_, rows.shape(), dtype, "imported rows");
    ops::cast(rows, result);
    return result;
  }

  // Whether the file's values can be made of values of dtype_. Matrices are stored in types that say it.
  bool fits(const Source& source) const {
    const Piece& piece = source.pieces.front();
    if (dtype_ == DType::f32 || piece.part->is_matrix || !is_wide(piece.stored->type)) return true;
    const Tensor stored =
        file_.rows(*piece.stored, 0, element_count(piece.stored->shape) / piece.stored->shape.back(), pool_);
    Tensor again = stored.clone(pool_);
    restore_values(*piece.part, 0, again);
    again = converted(converted(again, dtype_), DType::f32);
    change_values(*piece.part, 0, again);
    return std::memcmp(again.raw(), stored.raw(), stored.bytes()) == 0;
  }

  void write_rows(const Source& source, ModelDirectoryWriter& writer) const {
    const GgufTensor& stored = *source.pieces.front().stored;
    const int64_t width = stored.shape.back(), count = element_count(stored.shape) / width;
    const int64_t step = rows_at_once(width);
    for (int64_t begin = 0; begin < count; begin += step) {
      Tensor rows = file_.rows(stored, begin, std::min(begin + step, count), pool_);
      restore_values(source.part(), begin, rows);
      writer.append(source.name, checked_rows(rows, source.name, source.dtype, pool_));
    }
  }

  // Its part of matrix m, [rows, width].
  Tensor read(const Source& source, const Piece& piece, int64_t m) const {
    const bool turned = piece.part->rows && piece.part->rows->turned;
    const GgufFused* fused = piece.fused();
    const int64_t rows = source.rows(piece), height = fused ? fused->rows : rows;
    const int64_t lines = height * source.width / piece.stored->shape.back();
    int64_t begin = (piece.first + m) * lines, end = begin + lines;
    if (fused && !turned) {  // these lines alone
      begin += fused->first;
      end = begin + rows;
    }
    Tensor own = file_.rows(*piece.stored, begin, end, pool_)
                     .reshape(turned ? Shape{source.width, height} : Shape{rows, source.width});
    restore_values(*piece.part, 0, own);
    if (turned) own = transposed(own, pool_);
    if (fused && turned) own = own.rows(fused->first, fused->first + rows);
    const std::vector<int64_t>& columns = piece.part->column_order;
    return columns.empty() ? own : columns_in_order(own, inverse_order(columns), pool_);
  }

  void write_matrices(const Source& source, ModelDirectoryWriter& writer) const {
    for (int64_t m = 0; m < source.matrices; ++m) {
      Tensor matrix = Tensor::zeros(pool_, {source.height, source.width}, DType::f32, "imported rows");
      const size_t bytes = matrix.bytes() / static_cast<size_t>(source.height);
      for (const Piece& piece : source.pieces) {
        const Tensor own = read(source, piece, m);
        for (int64_t i = 0; i < own.dim(0); ++i)
          std::memcpy(matrix.mutable_raw() + static_cast<size_t>(piece.row(i)) * bytes,
                      own.raw() + static_cast<size_t>(i) * bytes, bytes);
      }
      if (source.part().transposed) matrix = transposed(matrix, pool_);
      writer.append(source.name, checked_rows(matrix, source.name, source.dtype, pool_));
    }
  }

  const GgufFile& file_;
  DType dtype_;
  MemoryPool& pool_;
  const std::vector<GgufPart> parts_;
  std::vector<Source> sources_;
  std::vector<TensorSpec> zeros_;        // biases that the model has and the file not
  std::map<std::string, size_t> index_;  // of sources by name
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
  refuse_unreadable(file);
  if (file.tensors().empty()) return import_tokenizer(request, tokenizer);
  const DType dtype = output_dtype(request.dtype, file);
  const std::string text = gguf_config_json(file, dtype, rank.pool);
  const DecoderConfig config = gguf_decoder_config(file, text);
  const Importer importer(file, config, decoder_shapes(config, rank), dtype, request.dtype == "auto", rank.pool);
  const std::string ends = generation_config_of(file);
  ModelDirectoryWriter writer(request.out, request.replace, importer.specs());
  importer.write(writer);
  writer.write_text("config.json", text);
  if (!ends.empty()) writer.write_text("generation_config.json", ends);
  for (const auto& [name, content] : tokenizer) writer.write_text(name, content);
  ImportReport report{config.model_type, static_cast<int64_t>(importer.specs().size()), 0, !tokenizer.empty()};
  for (const TensorSpec& spec : importer.specs())
    report.bytes += static_cast<uint64_t>(element_count(spec.shape)) * dtype_size(spec.dtype);
  writer.finish();
  return report;
}

}  // namespace nibble
