#pragma once
// DoRA (Liu et al. 2024): a LoRA whose sum with the weight is brought to learned row lengths,
// y = m / |W + s B A| * (W + s B A) x. The norm runs over the inputs of each output and is held constant in backward,
// as in PEFT.

#include "nibble/adapters/tuners/lora.h"

namespace nibble {

class DoraAdapter final : public Adapter {
 public:
  /// lora: without bias. magnitude m [out] f32, trainable as lora is; when it has no bytes, it starts as |W + s B A|.
  /// base: the weight it will stand beside, whose row norms are taken now.
  DoraAdapter(const std::string& module, std::unique_ptr<LoraAdapter> lora, std::shared_ptr<Parameter> magnitude,
              const LinearWeight& base, MemoryPool& pool);

  void forward(const Tensor& x, const LinearWeight& base, Tensor& y, const StepContext& step,
               AdapterSaved* saved) const override;
  AdapterGradient backward(const Tensor& dy, const LinearWeight& base, const StepContext& step) const override;
  void accumulate_gradients(const AdapterGradient& gradient, const Tensor& dy, const Tensor& x, const StepContext& step,
                            const AdapterSaved& saved) override;
  void backward_input(const AdapterGradient& gradient, const Tensor& dy, const LinearWeight& base,
                      const StepContext& step, Tensor& dx, bool accumulate) const override;
  bool trainable() const override { return magnitude_->trainable; }
  void visit(const ParameterVisitor& visitor) override;
  void merge_rows(int64_t begin, Tensor& rows) const override;

 private:
  struct Scale {
    Tensor norms, factors;  // [out] f32: |W + s B A| and m over it
  };
  Scale scale(const LinearWeight& base, MemoryPool& pool) const;

  std::unique_ptr<LoraAdapter> lora_;
  std::shared_ptr<Parameter> magnitude_;
  Tensor base_squares_;  // [out] f64
};

/// "base_model.model." + module + ".lora_magnitude_vector"
std::string dora_magnitude_name(const std::string& module);

}  // namespace nibble
