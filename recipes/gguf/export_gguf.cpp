#include "nibble/recipes/gguf/export_gguf.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "nibble/adapters/adapter_plan.h"
#include "nibble/adapters/merging/merged_source.h"
#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/init.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/files/scratch_directory.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/families/gguf/gguf_mixers.h"
#include "nibble/core/models/families/gguf/gguf_names.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/quant/dequantized_source.h"
#include "nibble/quant/mxfp4_layout.h"
#include "nibble/recipes/gguf/gguf_layout.h"
#include "nibble/recipes/gguf/gguf_mix.h"
#include "nibble/recipes/gguf/gguf_vocabulary.h"
#include "nibble/recipes/gguf/ollama_modelfile.h"
#include "nibble/recipes/models/merge_model.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using Metadata = std::vector<std::pair<std::string, GgufValue>>;

/// The tensors of one model on their way.
class Exporter {
 public:
  /// mxfp4: tensors whose values are those of MXFP4, which are kept in it.
  Exporter(const TensorSource& base, const DecoderConfig& config, const GgufMix& mix, std::set<std::string> mxfp4,
           MemoryPool& pool)
      : base_(base), config_(config), mix_(mix), mxfp4_(std::move(mxfp4)), pool_(pool) {
    for (const TensorSpec& spec : base.tensors) specs_[spec.name] = &spec;
    for (GgufPart& part : gguf_parts(config)) plan(std::move(part));
    rope_factors_ = gguf_rope_factors(config);
    for (const auto& [name, factors] : rope_factors_)
      tensors_.push_back({name, {static_cast<int64_t>(factors.size())}, GgufType::f32, 0});
    refuse_leftovers();
  }

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufFallbacks& fallbacks() const { return fallbacks_; }

  void write(GgufWriter& writer) {
    for (size_t i = 0; i < parts_.size(); ++i) write_part(parts_[i], tensors_[i], writer);
    for (const auto& [name, factors] : rope_factors_)
      writer.append(name, Tensor::from<float>(pool_, {static_cast<int64_t>(factors.size())}, factors));
  }

 private:
  const TensorSpec* find(const std::string& name) const {
    const auto found = specs_.find(name);
    if (found != specs_.end()) return found->second;
    // files saved from the bare model lack the first part of every name
    const auto bare = specs_.find(name.substr(name.find('.') + 1));
    return bare == specs_.end() ? nullptr : bare->second;
  }

  void plan(GgufPart part) {
    const TensorSpec* spec = find(part.source);
    if (!spec) {
      if (part.optional || part.source.ends_with(".bias")) return;
      throw InputError(base_.directory.string(), "has no " + part.source, "the model is incomplete: get it again");
    }
    used_.insert(spec->name);
    part.source = spec->name;
    if (part.rows) return plan_rows(std::move(part));
    GgufTensor tensor{part.name, spec->shape, GgufType::f32, 0};
    if (!part.row_order.empty()) tensor.shape.at(0) = static_cast<int64_t>(part.row_order.size());
    if (part.squeezed) std::erase(tensor.shape, 1);
    if (part.transposed) std::swap(tensor.shape.at(0), tensor.shape.at(1));
    refuse_shape(part, *spec);
    if (!part.shape.empty()) tensor.shape = part.shape;
    if (part.is_matrix) tensor.type = type_for(part.name, tensor.shape.back());
    parts_.push_back(std::move(part));
    tensors_.push_back(std::move(tensor));
  }

  // Orders, factors and shapes follow from config.json; the tensor is the file's.
  void refuse_shape(const GgufPart& part, const TensorSpec& spec) const {
    const int64_t rows = part.row_order.empty() ? spec.shape.at(0) : static_cast<int64_t>(part.row_order.size());
    const auto within = [](const std::vector<int64_t>& order, int64_t count) {
      return std::ranges::all_of(order, [count](int64_t i) { return i < count; });
    };
    const bool fits = within(part.row_order, spec.shape[0]) &&
                      (part.column_order.empty() ||
                       (spec.shape.size() == 2 && spec.shape[1] == static_cast<int64_t>(part.column_order.size()))) &&
                      (part.factors.size() < 2 || static_cast<int64_t>(part.factors.size()) == rows) &&
                      (part.shape.empty() || element_count(part.shape) == element_count(spec.shape));
    if (!fits) throw InputError(base_.directory.string(), part.source + " has shape " + to_string(spec.shape));
  }

  // Of a tensor that holds several, one of its matrices as it is stored, and how many there are.
  struct Matrices {
    int64_t count, rows, width;
  };
  static Matrices matrices_in(const Shape& shape, const GgufRows& rows) {
    if (shape.size() == 3) return {shape[0], shape[1], shape[2]};
    if (shape.size() != 2) return {0, 0, 0};
    const int64_t below = rows.sources.size() == 1 ? std::max<int64_t>(rows.experts, 1) : 1;
    return {shape[0] % below == 0 ? below : 0, shape[0] / below, shape[1]};
  }

  void plan_rows(GgufPart part) {
    GgufRows& rows = *part.rows;
    int64_t matrices = 0, width = 0;
    for (std::string& source : rows.sources) {
      const TensorSpec* spec = find(source);
      if (!spec)
        throw InputError(base_.directory.string(), "has no " + source, "the model is incomplete: get it again");
      Matrices stored = matrices_in(spec->shape, rows);
      if (part.transposed) std::swap(stored.rows, stored.width);
      const bool fits = stored.count > 0 && stored.rows > rows.first + (rows.count - 1) * rows.step &&
                        (width == 0 || width == stored.width);
      if (!fits) throw InputError(base_.directory.string(), source + " has shape " + to_string(spec->shape));
      matrices += stored.count;
      width = stored.width;
      used_.insert(spec->name);
      source = spec->name;
    }
    if (matrices != std::max<int64_t>(rows.experts, 1)) {
      throw InputError(base_.directory.string(), part.source + " is of " + std::to_string(matrices) + " experts, not " +
                                                     std::to_string(rows.experts));
    }
    GgufTensor tensor{part.name, {rows.count, width}, GgufType::f32, 0};
    if (rows.turned) std::swap(tensor.shape[0], tensor.shape[1]);
    if (part.is_matrix) {
      const bool kept = mxfp4_.contains(rows.sources[0]) && mix_.type != GgufType::f32;
      tensor.type = kept ? GgufType::mxfp4 : type_for(part.name, tensor.shape.back());
    }
    if (rows.experts > 0) tensor.shape.insert(tensor.shape.begin(), rows.experts);
    parts_.push_back(std::move(part));
    tensors_.push_back(std::move(tensor));
  }

  void write_rows(const GgufPart& part, GgufWriter& writer) {
    const GgufRows& rows = *part.rows;
    std::vector<int64_t> order;
    for (int64_t i = 0; i < rows.count; ++i) order.push_back(rows.first + i * rows.step);
    for (const std::string& source : rows.sources) {
      const Shape& shape = specs_.at(source)->shape;
      const Matrices stored = matrices_in(shape, rows);
      const int64_t height = shape.size() == 3 ? 1 : stored.rows;
      for (int64_t e = 0; e < stored.count; ++e) {
        Tensor matrix = base_.rows(source, e * height, (e + 1) * height, pool_).reshape({stored.rows, stored.width});
        if (part.transposed) matrix = transposed(matrix, pool_);
        matrix = rows.step == 1 ? matrix.rows(rows.first, rows.first + rows.count) : in_order(matrix, order, pool_);
        writer.append(part.name, rows.turned ? transposed(matrix, pool_) : matrix);
      }
    }
  }

  GgufType type_for(const std::string& name, int64_t width) {
    const GgufType type = gguf_matrix_type(mix_, config_, name, width);
    const int64_t asked = gguf_block_elements(mix_.type), got = gguf_block_elements(type);
    if (asked > 1 && type == GgufType::f16) ++fallbacks_.f16;
    if (asked > 32 && got == 32) ++fallbacks_.small_blocks;
    return type;
  }

  // Layers that predict tokens after the next
  bool behind_the_last_layer(const std::string& name) const {
    const std::string& layers = config_.names.layers;
    return config_.layers_passed_over > 0 && name.starts_with(layers) &&
           std::atoll(name.c_str() + layers.size()) >= config_.layers;
  }

  void refuse_leftovers() const {
    for (const auto& [name, spec] : specs_) {
      const std::string& tensor = name;
      const auto begins = [&](const std::string& tower) { return tensor.starts_with(tower); };
      if (std::ranges::any_of(config_.towers, begins)) continue;
      const bool tied = config_.tied_head && name == config_.names.head + ".weight";
      if (used_.contains(name) || tied || behind_the_last_layer(name) || spec->dtype == DType::u8 ||
          name.ends_with("rotary_emb.inv_freq"))
        continue;
      if (name.ends_with(".attn.bias") || name.ends_with(".attention.bias") || name.ends_with(".masked_bias")) continue;
      throw InputError(base_.directory.string(), name + " has no place in the GGUF form of the family");
    }
  }

  void write_part(const GgufPart& part, const GgufTensor& tensor, GgufWriter& writer) {
    if (part.rows) return write_rows(part, writer);
    const TensorSpec& spec = *specs_.at(part.source);
    const int64_t count = spec.shape.at(0), width = std::max<int64_t>(element_count(spec.shape) / count, 1);
    const bool whole = part.transposed || !part.row_order.empty();
    const int64_t step = whole ? count : rows_at_once(width);
    for (int64_t begin = 0; begin < count; begin += step) {
      Tensor rows = base_.rows(part.source, begin, std::min(begin + step, count), pool_);
      if (part.transposed) rows = transposed(rows, pool_);
      if (!part.row_order.empty()) rows = in_order(rows, part.row_order, pool_);
      if (!part.column_order.empty()) rows = columns_in_order(rows, part.column_order, pool_);
      change_values(part, begin, rows);
      writer.append(tensor.name, rows);
    }
  }

  const TensorSource& base_;
  const DecoderConfig& config_;
  const GgufMix& mix_;
  std::set<std::string> mxfp4_;
  MemoryPool& pool_;
  std::map<std::string, const TensorSpec*> specs_;
  std::set<std::string> used_;
  std::vector<GgufPart> parts_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::vector<float>> rope_factors_;
  GgufFallbacks fallbacks_;
};

std::string model_name(const std::string& path) {
  fs::path given(path);
  if (!given.has_filename()) given = given.parent_path();
  return given.filename().string();
}

/// Throws InputError for a tensor that config.json makes of another shape.
void refuse_other_shapes(const TensorSource& base, const DecoderConfig& config, RankContext& rank) {
  const std::map<std::string, Shape> shapes = decoder_shapes(config, rank);
  for (const TensorSpec& spec : base.tensors) {
    const auto found = shapes.find(spec.name);
    if (found == shapes.end() || found->second == spec.shape) continue;
    throw InputError(base.directory.string(), spec.name + " has shape " + to_string(spec.shape) +
                                                  ", config.json makes it " + to_string(found->second));
  }
}

/// Of "a|b|c" those that a config.json has: " (a, c)".
std::string keys_that_are_there(const std::string& keys, const fs::path& config_json) {
  const nlohmann::json config = read_json_file(config_json, kModelConfigJson);
  const nlohmann::json text = config.value("text_config", nlohmann::json::object());
  std::string result, key;
  for (std::istringstream list(keys); std::getline(list, key, '|');) {
    if (config.contains(key) || text.contains(key)) result += (result.empty() ? " (" : ", ") + key;
  }
  return result.empty() ? result : result + ")";
}

/// A configuration that llama.cpp can compute.
DecoderConfig with_gguf_form(DecoderConfig config, const std::string& model) {
  const fs::path file = fs::path(model) / "config.json";
  try {
    gguf_architecture(config);
  } catch (const GgufRefusal& refusal) {
    throw UsageError(refusal.reason + keys_that_are_there(refusal.keys, file), GgufRefusal::kElsewhere, file.string());
  } catch (const UsageError& error) {
    throw UsageError(error.what(), "", file.string());
  }
  return config;
}

/// Tensors that the checkpoint has in MXFP4.
std::set<std::string> tensors_in_mxfp4(const CheckpointDir& checkpoint) {
  std::set<std::string> result;
  for (const std::string& name : checkpoint.names()) {
    if (const std::string whole = mxfp4_tensor_of(name); !whole.empty()) result.insert(whole);
  }
  return result;
}

/// tokenizer: directory that has the tokenizer's files; mxfp4: tensors that are kept in it.
GgufReport export_model(const GgufRequest& request, const TensorSource& base, const fs::path& tokenizer,
                        std::set<std::string> mxfp4, RankContext& rank) {
  const std::string place = (base.directory / "config.json").string();
  const DecoderConfig config = with_gguf_form(decoder_config_of(base), request.model);
  if (config.score_labels > 0) {
    throw InputError(place, "ends in a score head, which programs that continue texts have no use for",
                     "export the causal model");
  }
  refuse_other_shapes(base, config, rank);
  const GgufMix& mix = gguf_mix(request.type);
  Metadata metadata = gguf_hyperparameters(config, model_name(request.model));
  metadata.emplace_back("general.file_type", mix.file_type);
  metadata.emplace_back("general.quantization_version", uint32_t{2});
  GgufVocabulary vocabulary;
  if (request.tokenizer) {
    vocabulary = gguf_vocabulary(tokenizer.string(), config.vocab_size, read_decoder_config(tokenizer).eos_ids);
  }
  const bool has_tokenizer = !vocabulary.metadata.empty();
  if (!has_tokenizer) metadata.emplace_back("tokenizer.ggml.model", std::string("none"));
  for (auto& entry : vocabulary.metadata) metadata.push_back(std::move(entry));
  for (std::string& what : gguf_left_out(config)) vocabulary.left_out.push_back(std::move(what));
  Exporter exporter(base, config, mix, std::move(mxfp4), rank.pool);
  std::optional<AtomicFile> modelfile;  // what keeps it from being written is known before the model is
  if (!request.modelfile.empty()) {
    const fs::path target = fs::absolute(request.modelfile);
    const fs::path file = fs::absolute(request.out).lexically_proximate(target.parent_path());
    modelfile.emplace(request.modelfile).write(ollama_modelfile(target.filename(), file, tokenizer.string()));
  }
  GgufWriter writer(request.out, metadata, exporter.tensors(), request.replace);
  exporter.write(writer);
  writer.finish();
  if (modelfile) modelfile->commit();
  return {gguf_architecture(config),
          static_cast<int64_t>(exporter.tensors().size()),
          writer.bytes(),
          exporter.fallbacks(),
          std::move(vocabulary.left_out),
          has_tokenizer};
}

void refuse_adapter(const PeftAdapter& adapter, const std::string& what) {
  throw UsageError("has " + what + ", which an adapter of llama.cpp cannot have",
                   "export the merged model: --model and --adapter without --adapter-only", adapter.file());
}

/// A LoRA beside an exported base: matrices by llama.cpp's names, the scaling inside B.
GgufReport export_adapter(const GgufRequest& request, RankContext& rank) {
  const DecoderConfig config = with_gguf_form(read_decoder_config(request.model), request.model);
  const PeftAdapter adapter = in_file_names(read_peft_directory(request.adapter), config);
  if (gguf_form(config).no_adapters)
    refuse_adapter(adapter, "products under it that llama.cpp computes without adapters");
  plan_merge(config, adapter);  // refuses what cannot be merged
  if (adapter.options.use_dora) refuse_adapter(adapter, "DoRA magnitudes");
  if (takes_from_base(adapter.options.init_lora_weights)) refuse_adapter(adapter, "a start taken from the base");
  std::multimap<std::string, GgufPart> by_module;
  for (GgufPart& part : gguf_parts(config)) {
    if (part.source.ends_with(".weight")) by_module.emplace(part.source.substr(0, part.source.size() - 7), part);
  }
  std::vector<GgufTensor> tensors;
  std::map<std::string, Tensor> values;
  for (const auto& [name, stored] : adapter.tensors) {
    const bool is_a = name.ends_with(".lora_A.weight"), is_b = name.ends_with(".lora_B.weight");
    const std::string module = name.substr(0, name.size() - std::min<size_t>(name.size(), 14));
    if (!is_a && !is_b) refuse_adapter(adapter, name);
    const auto [first, last] = by_module.equal_range(module);
    if (first == last) refuse_adapter(adapter, "an adapter on " + module);
    for (auto found = first; found != last; ++found) {
      const GgufPart& part = found->second;
      if (!part.is_matrix || !part.adapts || (part.rows && part.rows->experts > 0))
        refuse_adapter(adapter, "an adapter on " + module);
      Tensor value = Tensor::empty(rank.pool, stored.shape(), DType::f32, name);
      ops::cast(stored, value);
      if (is_b) {
        const double r = static_cast<double>(stored.dim(1));
        ops::scale(value, static_cast<float>(lora_scaling(adapter.options, module, stored.dim(1)) * r /
                                             adapter.options.lora_alpha));
        if (!part.row_order.empty()) value = in_order(value, part.row_order, rank.pool);
        if (part.rows) value = value.rows(part.rows->first, part.rows->first + part.rows->count);
        change_values(part, 0, value);
      } else if (!part.column_order.empty()) {
        value = columns_in_order(value, part.column_order, rank.pool);
      }
      const std::string result = part.name + (is_a ? ".lora_a" : ".lora_b");
      tensors.push_back({result, value.shape(), GgufType::f32, 0});
      values.emplace(result, value);
    }
  }
  if (adapter.options.lora_alpha == 0) refuse_adapter(adapter, "a lora_alpha of 0");
  const Metadata metadata = {{"general.architecture", gguf_architecture(config)},
                             {"general.type", std::string("adapter")},
                             {"general.name", model_name(request.adapter)},
                             {"adapter.type", std::string("lora")},
                             {"adapter.lora.alpha", static_cast<float>(adapter.options.lora_alpha)}};
  GgufWriter writer(request.out, metadata, tensors, request.replace);
  for (const GgufTensor& tensor : tensors) writer.append(tensor.name, values.at(tensor.name));
  writer.finish();
  return {gguf_architecture(config), static_cast<int64_t>(tensors.size()), writer.bytes(), {}, {}};
}

}  // namespace

GgufReport export_gguf(const GgufRequest& request, RankContext& rank) {
  guard_output(request.out, {request.model, request.adapter});
  require_replaceable_file(request.out, request.replace, "GGUF", "GGUF file");
  if (!request.modelfile.empty()) {
    guard_output(request.modelfile, {request.model, request.adapter});
    if (fs::absolute(request.modelfile).lexically_normal() == fs::absolute(request.out).lexically_normal()) {
      throw UsageError("is the file of the model as well", "give the Modelfile another name", request.modelfile);
    }
    require_replaceable_file(request.modelfile, request.replace, kModelfileMark, "Modelfile of nibble export");
  }
  if (request.adapter_only) return export_adapter(request, rank);
  const CheckpointDir checkpoint(request.model);
  const TensorSource base = dequantized_source(checkpoint, rank.pool);
  std::set<std::string> mxfp4 = tensors_in_mxfp4(checkpoint);
  if (request.adapter.empty()) return export_model(request, base, request.model, std::move(mxfp4), rank);
  const PeftAdapter adapter = read_peft_directory(request.adapter);
  std::erase_if(mxfp4, [&](const std::string& name) {  // what an adapter adds to is no longer
    const auto below = adapter.tensors.lower_bound(name.substr(0, name.rfind('.') + 1));
    return below != adapter.tensors.end() && below->first.starts_with(name.substr(0, name.rfind('.') + 1));
  });
  const MergedModel merged(base, adapter, DType::f32, rank.pool);
  const TensorSource& source = merged.source();
  const ScratchDirectory companions;
  copy_merged_companions(base, adapter, companions.path());
  write_file_atomically(companions.path() / "config.json", source.config);
  return export_model(request, source, companions.path(), std::move(mxfp4), rank);
}

}  // namespace nibble
