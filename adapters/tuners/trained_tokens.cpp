#include "nibble/adapters/tuners/trained_tokens.h"

#include <algorithm>

#include "nibble/adapters/new_adapter.h"
#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/adapters/tuners/token_rows.h"
#include "nibble/core/base/error.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

constexpr const char* kKey = "trainable_token_indices";

[[noreturn]] void refuse(const std::string& reason, const std::string& remedy) {
  throw UsageError(std::string(kKey) + " " + reason, remedy, "adapter");
}

TokenRows rows_of(const Tensor& table, const std::string& module, const std::vector<int64_t>& ids, bool trainable,
                  MemoryPool& pool) {
  TokenRows result;
  result.ids = checked_token_ids(ids, table.dim(0));
  Tensor value = Tensor::empty(pool, {static_cast<int64_t>(ids.size()), table.dim(1)}, DType::f32, module);
  for (size_t k = 0; k < result.ids.size(); ++k) {
    Tensor row = value.rows(static_cast<int64_t>(k), static_cast<int64_t>(k) + 1);
    ops::cast(table.rows(result.ids[k], result.ids[k] + 1), row);
  }
  result.rows = make_parameter(token_rows_name(module), value, trainable, pool);
  return result;
}

/// The table whose path ends with a name; "" is the tokens' embedding.
class Tables {
 public:
  explicit Tables(Decoder& decoder) {
    decoder.visit_embeddings([&](Embedding& found) { embeddings_.push_back(&found); });
    decoder.visit_linears([&](Linear& linear) {
      if (linear.name() == decoder.config().names.head) head_ = &linear;
    });
  }
  Embedding* embedding(const std::string& name) const {
    if (name.empty()) return embeddings_.front();
    const auto fits = [&](const Embedding* found) { return found->name().ends_with(name); };
    const auto found = std::find_if(embeddings_.begin(), embeddings_.end(), fits);
    return found == embeddings_.end() ? nullptr : *found;
  }
  Linear* head(const std::string& name) const {
    return !name.empty() && head_ && head_->name().ends_with(name) ? head_ : nullptr;
  }
  Linear* tied_head(Embedding& embedding) const {
    return head_ && head_->weight().parameter() == &embedding.table() ? head_ : nullptr;
  }

 private:
  std::vector<Embedding*> embeddings_;
  Linear* head_ = nullptr;
};

void refuse_trained_otherwise(const std::string& module, const std::set<std::string>& targeted,
                              const FullyTrained& fully_trained) {
  if (targeted.contains(module)) refuse("names " + module + ", which has an adapter already", "leave one of them out");
  if (fully_trained.contains(module + ".weight")) {
    refuse("names " + module + ", which modules_to_save trains fully", "leave one of them out");
  }
}

}  // namespace

std::vector<TrainedTokens> find_trained_tokens(Decoder& model, const AdapterOptions& options,
                                               const std::set<std::string>& targeted,
                                               const FullyTrained& fully_trained) {
  const Tables tables(model);
  std::vector<TrainedTokens> found;
  const std::vector<int64_t>* shared = nullptr;  // ids that a tied head has by way of the embedding
  const auto add = [&](const std::string& module, const std::vector<int64_t>& ids, int64_t rows, bool with_head) {
    refuse_trained_otherwise(module, targeted, fully_trained);
    checked_token_ids(ids, rows);
    found.push_back({module, ids, with_head});
  };
  for (const auto& [name, ids] : options.trainable_token_indices) {
    Embedding* embedding = tables.embedding(name);
    if (!embedding) continue;
    const Linear* head = tables.tied_head(*embedding);
    add(embedding->name(), ids, embedding->table().value.dim(0), head);
    if (!head) continue;
    if (targeted.contains(head->name())) {
      refuse("trains rows of " + embedding->name() + ", which the tied " + head->name() + " has too, and " +
                 head->name() + " has an adapter",
             "leave " + head->name() + " out of target_modules");
    }
    shared = &ids;
  }
  for (const auto& [name, ids] : options.trainable_token_indices) {
    if (tables.embedding(name)) continue;
    const Linear* head = tables.head(name);
    if (!head) refuse("names \"" + name + "\", which is no table of the model", "name the embedding or the head");
    if (!shared) {
      add(head->name(), ids, head->out_features(), false);
    } else if (ids != *shared) {
      refuse("has other ids for a tied head than for the embedding", "give both the same list");
    }
  }
  return found;
}

void train_tokens(Decoder& decoder, const std::vector<TrainedTokens>& tokens, bool trainable, RankContext& rank) {
  for (const auto& [table, ids, shared] : tokens) {
    decoder.visit_embeddings([&](Embedding& embedding) {
      if (embedding.name() != table) return;
      const TokenRows rows = rows_of(embedding.table().value, table, ids, trainable, rank.pool);
      embedding.set_adapter(std::make_unique<TokenRowsEmbedding>(rows));
      if (shared) Tables(decoder).tied_head(embedding)->set_adapter(std::make_unique<TokenRowsHead>(rows, true));
    });
    decoder.visit_linears([&](Linear& linear) {
      if (linear.name() != table) return;
      const Parameter* weight = linear.weight().parameter();
      if (!weight) refuse("names " + table + ", which is packed in 4 bits", "keep it in 16 bits (skip_modules)");
      const TokenRows rows = rows_of(weight->value, table, ids, trainable, rank.pool);
      linear.set_adapter(std::make_unique<TokenRowsHead>(rows, false));
    });
  }
}

}  // namespace nibble
