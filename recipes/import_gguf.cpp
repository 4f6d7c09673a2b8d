#include "nibble/recipes/import_gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/adapters/init.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/atomic_file.h"
#include "nibble/core/io/gguf.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/io/model_directory.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/text/gguf_tokenizer.h"
#include "nibble/recipes/gguf_names.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kBlockElements = int64_t{4} << 20;

struct Form {
  std::string_view architecture;  // llama.cpp's
  std::string_view model_type, transformers;
};
constexpr std::array kForms{Form{"llama", "llama", "LlamaForCausalLM"}, Form{"qwen2", "qwen2", "Qwen2ForCausalLM"},
                            Form{"qwen3", "qwen3", "Qwen3ForCausalLM"}};

const Form& form_of(const GgufFile& file) {
  const std::string name = file.text("general.architecture").value_or("");
  std::string known;
  for (const Form& form : kForms) {
    if (form.architecture == name) return form;
    known += (known.empty() ? "" : ", ") + std::string(form.architecture);
  }
  throw InputError(file.path(), "is a model of architecture \"" + name + "\", which cannot be taken from a GGUF file",
                   "known are " + known + "; get the model in Hugging Face's form");
}

// The keys of one architecture.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(std::string(architecture) + ".") {}

  std::optional<int64_t> integer(const std::string& key) const { return file_.integer(prefix_ + key); }
  std::optional<double> number(const std::string& key) const { return file_.number(prefix_ + key); }
  std::optional<std::string> text(const std::string& key) const { return file_.text(prefix_ + key); }
  int64_t needed(const std::string& key) const {
    const std::optional<int64_t> value = integer(key);
    if (!value || *value < 1) fail(key, "is missing or not positive");
    return *value;
  }
  [[noreturn]] void fail(const std::string& key, const std::string& reason) const {
    throw InputError(file_.path() + ": " + prefix_ + key, reason, "get the model in Hugging Face's form");
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

// rope_freqs.weight divides the frequencies, as Llama 3.1 and later do. It does not say from which length on; the other
// two numbers are always these.
Json llama3_scaling(const std::vector<float>& factors, int64_t length) {
  const float largest = factors.empty() ? 1.0f : *std::max_element(factors.begin(), factors.end());
  return {{"rope_type", "llama3"},
          {"factor", largest},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", length}};
}

std::vector<float> stored_factors(const GgufFile& file, MemoryPool& pool) {
  const GgufTensor* tensor = file.find("rope_freqs.weight");
  if (!tensor) return {};
  const Tensor values = file.rows(*tensor, 0, 1, pool);
  const std::span<const float> elements = values.span<const float>();
  return {elements.begin(), elements.end()};
}

bool nearly_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::abs(x - y) <= 1e-4f * std::abs(y); });
}

Json rope_scaling(const Keys& keys) {
  const std::string type = keys.text("rope.scaling.type").value_or("none");
  if (type == "none") return nullptr;
  if (type != "linear") keys.fail("rope.scaling.type", "is " + type + ", which is not read from GGUF files");
  return {{"rope_type", "linear"}, {"factor", keys.number("rope.scaling.factor").value_or(1.0)}};
}

std::string_view config_dtype(DType dtype) {
  return dtype == DType::f32 ? "float32" : dtype == DType::f16 ? "float16" : "bfloat16";
}

Json make_config(const GgufFile& file, const Form& form, DType dtype) {
  const Keys keys(file, form.architecture);
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2)
    throw InputError(file.path(), "has no token_embd.weight", "the model is not whole");
  if (keys.integer("expert_count").value_or(0) > 0) keys.fail("expert_count", "says that it is a mixture of experts");
  const int64_t width = keys.needed("embedding_length"), heads = keys.needed("attention.head_count");
  const int64_t head_size = keys.integer("attention.key_length").value_or(width / heads);
  if (keys.integer("attention.value_length").value_or(head_size) != head_size)
    keys.fail("attention.value_length", "is not the length of the keys");
  if (keys.integer("rope.dimension_count").value_or(head_size) != head_size)
    keys.fail("rope.dimension_count", "is a part of the head only");
  const std::optional<double> eps = keys.number("attention.layer_norm_rms_epsilon");
  if (!eps) keys.fail("attention.layer_norm_rms_epsilon", "is missing");
  Json config = {{"architectures", {form.transformers}},
                 {"model_type", form.model_type},
                 {"vocab_size", embedding->shape.at(0)},
                 {"hidden_size", width},
                 {"intermediate_size", keys.needed("feed_forward_length")},
                 {"num_hidden_layers", keys.needed("block_count")},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", keys.integer("attention.head_count_kv").value_or(heads)},
                 {"head_dim", head_size},
                 {"max_position_embeddings", keys.needed("context_length")},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", *eps},
                 {"rope_theta", keys.number("rope.freq_base").value_or(10000.0)},
                 {"rope_scaling", rope_scaling(keys)},
                 {"tie_word_embeddings", file.find("output.weight") == nullptr},
                 {"torch_dtype", config_dtype(dtype)}};
  if (form.architecture != "qwen2") config["attention_bias"] = file.find("blk.0.attn_output.bias") != nullptr;
  if (form.architecture == "llama") config["mlp_bias"] = file.find("blk.0.ffn_up.bias") != nullptr;
  for (const auto& [key, name] :
       {std::pair{"tokenizer.ggml.bos_token_id", "bos_token_id"}, {"tokenizer.ggml.eos_token_id", "eos_token_id"}}) {
    if (const auto id = file.integer(key)) config[name] = *id;
  }
  return config;
}

// The same with the rope that the file's factors come from.
std::string config_text(const GgufFile& file, Json config, MemoryPool& pool) {
  const std::vector<float> factors = stored_factors(file, pool);
  if (factors.empty()) return config.dump(2) + "\n";
  std::vector<int64_t> lengths = {8192};  // of Llama 3.1, 3.2 and 3.3
  for (int64_t length = 32; length <= int64_t{1} << 20; length *= 2) lengths.push_back(length);
  for (const int64_t length : lengths) {
    config["rope_scaling"] = llama3_scaling(factors, length);
    std::string text = config.dump(2) + "\n";
    if (nearly_equal(gguf_rope_factors(parse_decoder_config(text, file.path())), factors)) return text;
  }
  throw InputError(file.path() + ": rope_freqs.weight", "is not how Llama 3 stretches its rope",
                   "get the model in Hugging Face's form");
}

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
    std::set<std::string> used = {"rope_freqs.weight"};
    for (GgufPart& part : gguf_parts(config)) {
      const GgufTensor* tensor = file.find(part.name);
      if (!tensor && part.source.ends_with(".bias")) continue;
      if (!tensor) throw InputError(file.path(), "has no " + part.name, "the model is not whole");
      const int64_t count = element_count(tensor->shape);
      const auto ordered = static_cast<int64_t>(part.row_order.size());
      if (tensor->shape.empty() || count == 0 || (ordered > 0 && count % ordered != 0))
        throw InputError(file.path() + ": " + part.name, "has shape " + to_string(tensor->shape));
      used.insert(part.name);
      specs_.push_back({part.source, tensor->shape, dtype});
      parts_.push_back(std::move(part));
    }
    for (const GgufTensor& tensor : file.tensors()) {
      if (!used.contains(tensor.name))
        throw InputError(file.path(), tensor.name + " has no place in the model", "get it in Hugging Face's form");
    }
  }

  const std::vector<TensorSpec>& specs() const { return specs_; }

  void write(ModelDirectoryWriter& writer) const {
    for (size_t i = 0; i < parts_.size(); ++i) write_part(parts_[i], specs_[i], writer);
  }

 private:
  void refuse_unreadable() const {
    if (file_.unreadable().empty()) return;
    const auto& [name, type] = file_.unreadable().front();
    throw InputError(file_.path(),
                     name + " and " + std::to_string(file_.unreadable().size() - 1) +
                         " more are in blocks of a kind that is not read (ggml type " + std::to_string(type) + ")",
                     "take a file in F32, F16, BF16, Q8_0 or Q4_0");
  }

  Tensor converted(const Tensor& rows) const {
    if (dtype_ == DType::f32) return rows;
    Tensor made = Tensor::empty(pool_, rows.shape(), dtype_, "imported rows");
    ops::cast(rows, made);
    return made;
  }

  void write_part(const GgufPart& part, const TensorSpec& spec, ModelDirectoryWriter& writer) const {
    const GgufTensor& stored = *file_.find(part.name);
    const int64_t width = stored.shape.back(), count = element_count(stored.shape) / width;
    if (!part.row_order.empty()) {
      const Tensor whole = file_.rows(stored, 0, count, pool_);
      Tensor made = Tensor::empty(pool_, spec.shape, DType::f32, part.source);
      const size_t bytes = whole.bytes() / part.row_order.size();
      for (size_t i = 0; i < part.row_order.size(); ++i) {
        std::memcpy(made.mutable_raw() + static_cast<size_t>(part.row_order[i]) * bytes, whole.raw() + i * bytes,
                    bytes);
      }
      return writer.write(part.source, converted(made));
    }
    if (spec.shape.size() == 1) {
      const Tensor row = file_.rows(stored, 0, 1, pool_);
      Tensor flat = Tensor::empty(pool_, spec.shape, DType::f32, part.source);
      std::memcpy(flat.mutable_raw(), row.raw(), flat.bytes());
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
};

ImportReport import_tokenizer(const ImportRequest& request, const std::map<std::string, std::string>& files) {
  if (files.empty()) throw InputError(request.file, "has neither weights nor a tokenizer");
  AtomicDirectory directory(request.out, request.force);
  for (const auto& [name, content] : files) write_file_atomically(directory.path() / name, content);
  directory.commit();
  return {.tokenizer = true};
}

}  // namespace

ImportReport import_gguf(const ImportRequest& request, RankContext& rank) {
  const GgufFile file(request.file);
  const std::map<std::string, std::string> tokenizer = gguf_tokenizer_files(file);
  if (file.tensors().empty() && file.unreadable().empty()) return import_tokenizer(request, tokenizer);
  const Form& form = form_of(file);
  const DType dtype = output_dtype(request.dtype, file);
  const std::string text = config_text(file, make_config(file, form, dtype), rank.pool);
  const DecoderConfig config = parse_decoder_config(text, request.file);
  const Importer importer(file, config, dtype, rank.pool);
  ModelDirectoryWriter writer(request.out, request.force, importer.specs());
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
