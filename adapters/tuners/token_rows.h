#pragma once
// Some rows of a table trained alone (PEFT: trainable_token_indices): the parameter holds the rows themselves. A head
// that is tied to the table sees them too.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nibble/core/nn/adapter.h"
#include "nibble/core/nn/embedding.h"

namespace nibble {

/// The rows, shared between a table and a head tied to it.
struct TokenRows {
  std::shared_ptr<Parameter> rows;  ///< [K, D] f32
  std::vector<int32_t> ids;         ///< [K], all different: which rows of the table they replace
};

/// The table gives `rows` for these ids.
class TokenRowsEmbedding final : public EmbeddingAdapter {
 public:
  explicit TokenRowsEmbedding(TokenRows tokens);
  void forward(const Tensor& ids, const Tensor& table, Tensor& rows, const StepContext& step) override;
  void backward(const Tensor& ids, const Tensor& summed, const Tensor& table, const Tensor& gradient,
                const StepContext& step) override;
  bool trainable() const override { return tokens_.rows->trainable; }
  void visit(const ParameterVisitor& visitor) override { visitor(*tokens_.rows); }

 private:
  struct Hits {
    Tensor places, rows;  // [N] i32: where in the batch, and which of the K rows
  };
  Hits find(const Tensor& ids, MemoryPool& pool) const;

  TokenRows tokens_;
  std::vector<int32_t> row_of_;  // by id up to the largest one; -1: none
};

/// The head's rows for these ids are `rows`. Where a table shares them, the table's adapter visits the parameter.
class TokenRowsHead final : public Adapter {
 public:
  TokenRowsHead(TokenRows tokens, bool shared) : tokens_(std::move(tokens)), shared_(shared) {}
  void forward(const Tensor& x, const LinearWeight& base, Tensor& y, const StepContext& step,
               AdapterSaved* saved) const override;
  AdapterGradient backward(const Tensor& dy, const LinearWeight& base, const StepContext& step) const override;
  void accumulate_gradients(const AdapterGradient& gradient, const Tensor& dy, const Tensor& x, const StepContext& step,
                            const AdapterSaved& saved) override;
  void backward_input(const AdapterGradient& gradient, const Tensor& dy, const LinearWeight& base,
                      const StepContext& step, Tensor& dx, bool accumulate) const override;
  bool trainable() const override { return tokens_.rows->trainable; }
  void visit(const ParameterVisitor& visitor) override;
  void merge_rows(int64_t begin, Tensor& rows) const override;

 private:
  Tensor columns(MemoryPool& pool) const;

  TokenRows tokens_;
  bool shared_;
};

/// "base_model.model." + module + ".token_adapter.trainable_tokens_delta"
std::string token_rows_name(const std::string& module);

/// Token ids as indices of a table of `vocabulary` rows. Throws UsageError for one outside it and for one that comes
/// twice.
std::vector<int32_t> checked_token_ids(std::span<const int64_t> ids, int64_t vocabulary);

}  // namespace nibble
