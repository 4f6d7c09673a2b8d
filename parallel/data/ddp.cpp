#include "nibble/parallel/data/ddp.h"

#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

class Replicated final : public TrainedParameters {
 public:
  Replicated(const std::vector<Parameter*>& trained, const Wire& wire, Communicator& ranks, MemoryPool& pool);

  std::vector<Parameter*> parameters() const override { return trained_; }
  void reduce_gradients(const std::vector<bool>& present) override {
    if (gradients_) all_reduce_tree(ranks_, "sum gradients", gradients_, present, wire_, pool_);
  }
  void visit_partial_gradients(const std::function<void(Tensor&)>& visitor) override {
    if (partial_gradients_) visitor(partial_gradients_);
  }
  Tensor tied_gradient(const Parameter& embedding) const override { return embedding.gradient; }
  std::vector<double> gradient_squares(const std::vector<const Parameter*>& counted) const override {
    std::vector<double> squares;
    for (const Parameter* parameter : counted) squares.push_back(ops::sum_of_squares(parameter->gradient));
    return squares;
  }
  std::vector<CheckpointSlice> slices(const Parameter&, const NamedTensor& tensor) const override {
    return {{tensor.name, tensor.value, tensor.value.shape(), Shape(tensor.value.rank(), 0)}};
  }
  bool is_first_copy(const Parameter&) const override { return ranks_.rank() == 0; }

 private:
  std::vector<Parameter*> trained_;
  Wire wire_;
  Communicator& ranks_;
  MemoryPool& pool_;
  Tensor gradients_, partial_gradients_;
};

Replicated::Replicated(const std::vector<Parameter*>& trained, const Wire& wire, Communicator& ranks, MemoryPool& pool)
    : trained_(trained), wire_(wire), ranks_(ranks), pool_(pool) {
  const MemoryPool::Use use(pool, MemoryUse::gradients);
  int64_t size = 0, partial = 0;
  for (const Parameter* parameter : trained) {
    size += parameter->value.numel();
    if (parameter->partial_gradient) partial += parameter->value.numel();
  }
  const bool alone = ranks.size() == 1 && partial == 0;
  if (!alone && size > 0) gradients_ = Tensor::zeros(pool, {size}, DType::f32, "gradients");
  if (gradients_ && partial > 0) partial_gradients_ = gradients_.rows(size - partial, size);
  int64_t at = 0, partial_at = size - partial;
  for (Parameter* parameter : trained) {
    if (!parameter->trainable) parameter->make_trainable(pool);
    if (!gradients_) continue;
    int64_t& next = parameter->partial_gradient ? partial_at : at;
    const int64_t count = parameter->value.numel();
    parameter->gradient = gradients_.rows(next, next + count).reshape(parameter->value.shape());
    next += count;
  }
}

}  // namespace

std::unique_ptr<TrainedParameters> replicate(const std::vector<Parameter*>& trained, const Wire& wire,
                                             Communicator& ranks, MemoryPool& pool) {
  return std::make_unique<Replicated>(trained, wire, ranks, pool);
}

}  // namespace nibble
