#include "nibble/adapters/peft/peft_directory.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>

#include "nibble/adapters/peft/peft_config.h"
#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {
namespace fs = std::filesystem;

namespace {

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr std::string_view kTokenRows = ".token_adapter.trainable_tokens_delta";
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
constexpr std::string_view kSaved = ".modules_to_save.";

/// The name without PEFT's prefix, and without the adapter's name where a training loop saved the raw state dict
/// ("...lora_A.default.weight", "lm_head.modules_to_save.default.weight").
std::string plain_name(std::string name) {
  while (name.starts_with(kPeftPrefix)) name.erase(0, std::strlen(kPeftPrefix));
  for (const std::string part : {".lora_A.", ".lora_B."}) {
    const size_t at = name.find(part);
    if (at == std::string::npos) continue;
    const size_t last = name.rfind('.');
    if (last > at + part.size()) name.erase(at + part.size() - 1, last - (at + part.size() - 1));
  }
  for (const std::string_view part : {kMagnitude, kLoraEmbeddingA, kLoraEmbeddingB, kTokenRows}) {
    const size_t at = name.find(part);
    if (at != std::string::npos) name.erase(at + part.size());
  }
  const size_t at = name.find(kSaved);
  if (at != std::string::npos) {
    const size_t rest = name.find('.', at + kSaved.size());
    if (rest != std::string::npos) name.erase(at, rest - at);
  }
  return name;
}

/// Where PEFT saves embedding layers or all biases as well, it saves modules_to_save with all that it wraps.
bool is_copy_in_wrapper(const std::string& name, const SafetensorsFile& file) {
  if (name.find(".original_module.") != std::string::npos) return true;
  const size_t at = name.find(kSaved);
  return at != std::string::npos && file.contains(std::string(name).erase(at, kSaved.size() - 1));
}

/// Gives the values of a mapped tensor from the first on, some at a time, whose pages are then released: what is only
/// looked at does not count as this process's memory.
void for_each_piece(const Tensor& mapped, const std::function<void(int64_t begin, const Tensor& piece)>& look) {
  constexpr int64_t kValues = int64_t{1} << 20;
  const Tensor flat = mapped.reshape({mapped.numel()});
  for (int64_t begin = 0; begin < flat.numel(); begin += kValues) {
    const Tensor piece = flat.rows(begin, std::min(flat.numel(), begin + kValues));
    look(begin, piece);
    release_pages(piece);
  }
}

void check_values(const std::string& file, const std::string& name, const Tensor& tensor) {
  if (!is_float(tensor.dtype())) {
    throw InputError(file, name + " has element type " + std::string(dtype_name(tensor.dtype())),
                     "adapters are f32, bf16 or f16");
  }
  for_each_piece(tensor, [&](int64_t begin, const Tensor& piece) {
    MemoryPool pool;
    const int64_t bad = ops::first_nonfinite(piece.aligned() ? piece : piece.clone(pool));
    if (bad < 0) return;
    throw InputError(file, name + " has a value that is not finite at element " + std::to_string(begin + bad),
                     "the training run that wrote it diverged; use an earlier checkpoint");
  });
}

void check_pair(const std::string& file, const std::string& module, const Tensor& a, const Tensor& b) {
  if (!a || !b) {
    throw InputError(file, module + " has lora_" + (a ? "A" : "B") + " but no lora_" + (a ? "B" : "A"),
                     "the file is incomplete: save the adapter again");
  }
  if (a.rank() != 2 || b.rank() != 2 || a.dim(0) != b.dim(1) || a.dim(0) < 1) {
    throw InputError(file, module + ": lora_A " + to_string(a.shape()) + " and lora_B " + to_string(b.shape()) +
                               " do not fit: they must be [r, in] and [out, r]");
  }
}

void check_files(const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    throw IoError(directory.string(), "is not a directory", "give the directory of a PEFT adapter");
  }
  if (!fs::exists(directory / kConfigFile)) {
    throw InputError(directory.string(), std::string("has no ") + kConfigFile, "give the directory of a PEFT adapter");
  }
  if (fs::exists(directory / kWeightsFile)) return;
  if (fs::exists(directory / "adapter_model.bin")) {
    throw InputError((directory / "adapter_model.bin").string(), "is a pickle, which can run code and is not read",
                     "load it in PEFT and save it again: PeftModel.save_pretrained writes safetensors");
  }
  throw InputError(directory.string(), std::string("has no ") + kWeightsFile,
                   "the adapter is incomplete: save it again");
}

// JSON's escapes are Python's too.
std::string python_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string model_card(const AdapterOptions& options, const AdapterCompanions& companions) {
  const std::string& base = options.base_model;
  std::string card = "---\n";
  // a hub name, not a path on this machine
  const bool is_hub_name = std::regex_match(base, std::regex("[A-Za-z0-9][\\w.-]*(/[\\w.-]+)?"));
  if (is_hub_name) card += "base_model: " + base + "\n";
  card += "library_name: peft\npipeline_tag: text-generation\ntags:\n- lora\n---\n\n# LoRA adapter";
  if (!base.empty()) card += " for " + base;
  card += "\n\nMade with nibble. Rank " + std::to_string(options.r) + ", alpha " + formatted("%g", options.lora_alpha) +
          ".\n\n```python\n";
  std::string imports = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM", settings, how;
  if (!companions.bits_and_bytes.empty()) {
    imports = "import torch\n" + imports + ", BitsAndBytesConfig";
    settings = "quantization = BitsAndBytesConfig(" + companions.bits_and_bytes + ")\n";
    how = ", quantization_config=quantization";
  }
  card +=
      imports + "\n\n" + settings + "model = AutoModelForCausalLM.from_pretrained(" + python_text(base) + how + ")\n";
  if (companions.rows > 0) {
    card += "model.resize_token_embeddings(" + std::to_string(companions.rows) +
            ")  # tokens were added to the tokenizer\n";
  }
  card += "model = PeftModel.from_pretrained(model, \"path/to/this/directory\")\n```\n";
  return card;
}

// Piece by piece, so that what is large is nowhere twice.
void write_tensors(const fs::path& path, const std::vector<PeftTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const PeftTensor& tensor : tensors) specs.push_back({tensor.name, tensor.shape, tensor.pieces.front().dtype()});
  SafetensorsWriter writer(path, std::move(specs));
  for (const PeftTensor& tensor : tensors) {
    for (const Tensor& piece : tensor.pieces) writer.append(tensor.name, piece);
  }
  writer.finish();
}

void compare(const PeftAdapter& written, const std::vector<PeftTensor>& tensors) {
  const auto differs = [&](const std::string& name) {
    throw IoError(written.file(), name + " does not read back as it was written", "check disk and memory");
  };
  for (const auto& [name, shape, pieces] : tensors) {
    const Tensor read = written.find(plain_name(name));
    if (!read || read.shape() != shape || read.dtype() != pieces.front().dtype()) differs(name);
    int64_t at = 0;
    for (const Tensor& piece : pieces) {
      MemoryPool pool;
      const Tensor host = piece.to(pool);
      const Tensor same = read.reshape({read.numel()}).rows(at, at + piece.numel());
      for_each_piece(same, [&](int64_t begin, const Tensor& part) {
        const std::byte* const expected = host.raw() + static_cast<size_t>(begin) * dtype_size(host.dtype());
        if (std::memcmp(part.raw(), expected, part.bytes()) != 0) differs(name);
      });
      at += piece.numel();
    }
  }
  if (written.tensors.size() != tensors.size()) differs("the number of tensors");
}

}  // namespace

Tensor PeftAdapter::find(const std::string& name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? Tensor() : found->second;
}

PeftAdapter read_peft_directory(const fs::path& directory) {
  check_files(directory);
  PeftAdapter adapter;
  adapter.directory = directory;
  const fs::path config = directory / kConfigFile;
  adapter.options = parse_peft_config(read_text_file(config), config.string());
  const SafetensorsFile file(adapter.file());
  for (const std::string& name : file.names()) {
    if (is_copy_in_wrapper(name, file)) continue;
    const Tensor tensor = file.at(name);
    check_values(adapter.file(), name, tensor);
    if (!adapter.tensors.emplace(plain_name(name), tensor).second) {
      throw InputError(adapter.file(), name + " is there twice under different spellings", "save the adapter again");
    }
  }
  for (const auto& [name, tensor] : adapter.tensors) {
    for (const std::string_view end : {kLoraA, kLoraB, kLoraEmbeddingA, kLoraEmbeddingB}) {
      if (!name.ends_with(end)) continue;
      const bool linear = end == kLoraA || end == kLoraB;
      const std::string module = name.substr(0, name.size() - end.size());
      check_pair(adapter.file(), module, adapter.find(module + std::string(linear ? kLoraA : kLoraEmbeddingA)),
                 adapter.find(module + std::string(linear ? kLoraB : kLoraEmbeddingB)));
    }
  }
  if (adapter.tensors.empty()) throw InputError(adapter.file(), "has no tensors", "save the adapter again");
  return adapter;
}

void write_peft_directory(const fs::path& directory, const AdapterOptions& options,
                          const std::vector<PeftTensor>& tensors, Replace replace,
                          const AdapterCompanions& companions) {
  AtomicDirectory target(directory, replace);
  write_tensors(target.path() / kWeightsFile, tensors);
  write_file_atomically(target.path() / kConfigFile, peft_config_text(options));
  write_file_atomically(target.path() / "README.md", model_card(options, companions));
  if (!companions.tokenizer.empty()) copy_tokenizer_files(companions.tokenizer, target.path());
  if (companions.chat_template) write_file_atomically(target.path() / kTemplateFile, *companions.chat_template);
  if (!companions.base.empty()) write_file_atomically(target.path() / kBaseFile, companions.base);
  compare(read_peft_directory(target.path()), tensors);
  target.list_files();
  target.commit();
}

void write_peft_directory(const fs::path& directory, const AdapterOptions& options,
                          const std::vector<std::pair<std::string, Tensor>>& tensors, Replace replace,
                          const AdapterCompanions& companions) {
  std::vector<PeftTensor> whole;
  for (const auto& [name, value] : tensors) whole.push_back({name, value.shape(), {value}});
  write_peft_directory(directory, options, whole, replace, companions);
}

}  // namespace nibble
