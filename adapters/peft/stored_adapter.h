#pragma once
// The tensors of a PEFT directory as they find their places in a model.

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/adapters/tuners/init.h"
#include "nibble/core/models/decoder.h"

namespace nibble {

/// Makes adapters from a file and remembers which of its tensors were used, so that none is copied twice. Shapes that
/// do not fit are InputErrors.
class StoredAdapter {
 public:
  /// All must outlive this.
  StoredAdapter(const PeftAdapter& file, bool trainable, RankContext& rank)
      : file_(file), trainable_(trainable), rank_(rank) {}

  /// The LoRA of a module that has one; where its start was taken from the base, that is done to the linear's weight.
  std::unique_ptr<Adapter> make(Linear& linear);
  std::unique_ptr<EmbeddingAdapter> make(const Embedding& embedding);

  /// Copies the tensor of the same PEFT name, if there is one, into a parameter.
  void fill(Parameter& parameter);
  /// Base tables that PEFT saves beside the adapter (AdapterPlan::tables): the decoder takes them where they differ
  /// from its own. Tells which.
  std::vector<std::string> take_tables(Decoder& decoder,
                                       const std::vector<std::pair<std::string, std::string>>& tables);

 private:
  Tensor take(const std::string& name);
  void check_shape(const std::string& name, const Tensor& stored, const Shape& shape) const;
  void check_magnitude(const std::string& module, const Tensor& magnitude, int64_t count) const;
  std::shared_ptr<Parameter> parameter(const std::string& name, const Tensor& stored) const;
  void check_start(Linear& linear, int64_t r, double scaling) const;

  const PeftAdapter& file_;
  bool trainable_;
  RankContext& rank_;
  std::set<std::string> used_;
};

}  // namespace nibble
