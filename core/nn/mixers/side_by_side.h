#pragma once
// Several mixers of one layer on one input, their outputs added (Falcon-H1: Mamba-2 beside attention).

#include <vector>

#include "nibble/core/nn/mixers/mixer.h"

namespace nibble {

/// y = the sum of output_scale * mixer(input_scale * x).
class SideBySide final : public OfMembers<SideBySide, Mixer> {
 public:
  struct Part {
    std::unique_ptr<Mixer> mixer;
    float input_scale = 1, output_scale = 1;
  };
  explicit SideBySide(std::vector<Part> parts) : parts_(std::move(parts)) {}

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  std::unique_ptr<MixerCache> make_cache(int64_t sequences, DType dtype, MemoryPool& pool) const override;
  void forward_cached(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                      MixerCache& cache) override;

  void each(const auto& use) {
    for (Part& part : parts_) use(part.mixer);
  }

 private:
  struct Saved;
  std::vector<Part> parts_;
};

}  // namespace nibble
