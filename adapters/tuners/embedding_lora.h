#pragma once
// LoRA on a table of embeddings, as PEFT's lora.Embedding: row v of the table becomes E[v] + s B A[:, v]. There is no
// dropout in it, and a tied head keeps the plain table. With DoRA, column d of the table is brought to the length m[d]:
// the norms run over the vocabulary.

#include <memory>
#include <string>

#include "nibble/core/nn/embedding.h"

namespace nibble {

class EmbeddingLora final : public EmbeddingAdapter {
 public:
  /// a [R, V], b [D, R] f32. magnitude m [D] f32 or null (no DoRA); one without bytes starts as the norms. `table`
  /// [V, D] is what it will stand beside.
  EmbeddingLora(double scaling, std::shared_ptr<Parameter> a, std::shared_ptr<Parameter> b,
                std::shared_ptr<Parameter> magnitude, const Tensor& table, MemoryPool& pool);

  void forward(const Tensor& ids, const Tensor& table, Tensor& rows, const StepContext& step) override;
  void backward(const Tensor& ids, const Tensor& summed, const Tensor& table, const Tensor& gradient,
                const StepContext& step) override;
  bool trainable() const override { return a_->trainable; }
  void visit(const ParameterVisitor& visitor) override;

 private:
  struct Scale {
    Tensor norms, factors;  // [D] f32
  };
  Scale scale(const Tensor& table, MemoryPool& pool) const;
  Tensor picked(const Tensor& ids, MemoryPool& pool) const;  // A[:, ids]^T, [T, R]

  float scaling_;
  std::shared_ptr<Parameter> a_, b_, magnitude_;
  Tensor squares_;  // [D] f64, of the table's columns, with DoRA
};

/// "base_model.model." + module + ".lora_embedding_A" and so on.
std::string embedding_a_name(const std::string& module);
std::string embedding_b_name(const std::string& module);

/// |E + s A^T B^T| of each column [D], and magnitude over it: table [V, D] of any float dtype, squares [D] f64 =
/// ops::column_squares(table).
void embedding_norms(const Tensor& magnitude, const Tensor& squares, const Tensor& table, const Tensor& a,
                     const Tensor& b, float scaling, Tensor& norms, Tensor& factors, MemoryPool& pool);

}  // namespace nibble
