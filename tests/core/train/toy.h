#pragma once
// A model small enough to check by hand.

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/batch.h"
#include "nibble/core/train/optimizer.h"
#include "nibble/core/train/train_step.h"

namespace nibble::test {

/// One rank with its memory.
struct ToyRank {
  SelfComm comm;
  MemoryPool pool;
  RankContext context{comm, pool, 1, 0};
};

inline std::unique_ptr<Parameter> toy_parameter(MemoryPool& pool, const std::string& name,
                                                const std::vector<float>& values) {
  auto parameter = std::make_unique<Parameter>();
  parameter->name = name;
  parameter->value = Tensor::from<float>(pool, {static_cast<int64_t>(values.size())}, values);
  parameter->gradient = Tensor::zeros(pool, parameter->value.shape(), DType::f32);
  parameter->trainable = true;
  return parameter;
}

inline std::vector<float> values(const Tensor& tensor) {
  return {tensor.data<const float>(), tensor.data<const float>() + tensor.numel()};
}

/// Two parameters, "w" [3] and "b" [2]. The loss of a label token with id i is sum(w^2) / (1 + i^2) + sum(b^2) i / 7.
struct ToyModel {
  explicit ToyModel(MemoryPool& pool)
      : w(toy_parameter(pool, "w", {0.5f, -1.25f, 3.0f})), b(toy_parameter(pool, "b", {0.25f, -2.0f})) {}

  std::unique_ptr<Parameter> w, b;

  std::vector<Parameter*> parameters() { return {w.get(), b.get()}; }
  /// Loss over label tokens; adds scale times the gradient.
  double loss_sum_and_gradients(const Batch& batch, float scale);
};

inline double ToyModel::loss_sum_and_gradients(const Batch& batch, float scale) {
  double loss = 0;
  for (int64_t t = 0; t < batch.ids.numel(); ++t) {
    if (batch.targets.data<const int32_t>()[t] == kIgnoreLabel) continue;
    const double id = batch.ids.data<const int32_t>()[t];
    const std::array<double, 2> coefficient = {1.0 / (1.0 + id * id), id / 7.0};
    size_t which = 0;
    for (Parameter* parameter : parameters()) {
      for (int64_t i = 0; i < parameter->value.numel(); ++i) {
        const double value = parameter->value.data<float>()[i];
        loss += coefficient[which] * value * value;
        parameter->gradient.data<float>()[i] += scale * static_cast<float>(2 * coefficient[which] * value);
      }
      ++which;
    }
  }
  return loss;
}

/// Its steps. after: what a test does after a microbatch; it may change the loss.
class ToyExecutor final : public StepExecutor {
 public:
  ToyExecutor(ToyModel& model, RankContext& rank) : StepExecutor(rank), model_(model) {}
  std::function<double(double loss)> after;

  double loss_sum(const Batch* batch, const Objective&, const LossCounts&, const StepContext&) override {
    return batch ? model_.loss_sum_and_gradients(*batch, 0) : 0;
  }
  Tensor next_logits(const Batch&, const StepContext&, KvCache&) override { throw std::logic_error("a toy has none"); }

 private:
  double microbatch(const StepWork& work, int64_t i) override {
    const Batch* batch = work.microbatch(i);
    const double loss = batch ? model_.loss_sum_and_gradients(*batch, work.scale) : 0;
    return after ? after(loss) : loss;
  }

  ToyModel& model_;
};

/// A batch of one document whose first `unlabelled` tokens are not trained.
inline Batch toy_batch(const std::vector<int32_t>& ids, size_t unlabelled, MemoryPool& pool) {
  Sample sample;
  sample.ids = ids;
  sample.labels = ids;
  for (size_t t = 0; t <= unlabelled && t < ids.size(); ++t) sample.labels[t] = kIgnoreLabel;
  return make_batch({&sample, 1}, pool);
}

}  // namespace nibble::test
