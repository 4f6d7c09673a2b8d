#include "nibble/adapters/peft/stored_tables.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "nibble/adapters/target_modules.h"
#include "nibble/core/models/resize.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

/// What stands between a module's name and its weight: below an adapter, below rows of tokens, nothing.
constexpr std::array<const char*, 3> kInfixes{".base_layer", ".token_adapter.base_layer", ""};

}  // namespace

std::vector<std::pair<std::string, std::string>> stored_tables(const PeftAdapter& adapter,
                                                               const DecoderConfig& config) {
  std::vector<std::pair<std::string, std::string>> tables;
  const std::string &embedding = config.names.embedding, &head = config.names.head;
  const bool one = config.tied_head && !is_module_to_save(adapter.options, head);
  for (const std::string& module : {embedding, head}) {
    for (const std::string part : {".weight", ".bias"}) {
      for (const std::string infix : kInfixes) {
        const std::string name = module + infix + part;
        if (adapter.find(name)) tables.emplace_back((one && part == ".weight" ? embedding : module) + part, name);
      }
    }
  }
  return tables;
}

int64_t rows_needed(const PeftAdapter& adapter, const DecoderConfig& config) {
  constexpr int64_t kMostRows = int64_t{1} << 24;
  int64_t needed = config.vocab_size;
  for (const auto& [parameter, name] : stored_tables(adapter, config)) {
    const bool of_labels = config.score_labels > 0 && module_of(parameter) == config.names.head;
    const Tensor stored = adapter.find(name);
    if (!of_labels && stored.rank() > 0) needed = std::max(needed, stored.dim(0));
  }
  for (const auto& [name, ids] : adapter.options.trainable_token_indices) {
    for (const int64_t id : ids) {
      if (id >= 0 && id < kMostRows) needed = std::max(needed, id + 1);
    }
  }
  check_growth(config, needed);
  return needed;
}

bool same_values(const Tensor& a, const Tensor& b, MemoryPool& pool) {
  Tensor x = Tensor::empty(pool, a.shape(), DType::f32, "table"),
         y = Tensor::empty(pool, b.shape(), DType::f32, "table");
  ops::cast(a, x);
  ops::cast(b, y);
  return x.shape() == y.shape() && std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
}

void drop_tied_copies(PeftAdapter& adapter, const DecoderConfig& config) {
  if (!config.tied_head) return;
  const std::string &embedding = config.names.embedding, &head = config.names.head;
  const char* rows = ".token_adapter.trainable_tokens_delta";
  if (adapter.find(embedding + rows)) adapter.tensors.erase(head + rows);
  if (is_module_to_save(adapter.options, head) || is_module_to_save(adapter.options, embedding)) return;
  const auto is_stored = [&](const std::string& infix) { return adapter.find(head + infix + ".weight").defined(); };
  if (std::ranges::none_of(kInfixes, is_stored)) return;
  for (const std::string infix : kInfixes) adapter.tensors.erase(embedding + infix + ".weight");
}

}  // namespace nibble
