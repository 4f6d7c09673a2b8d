#pragma once
// A LinearWeight that multiplies with plain loops, so that tests of what surrounds it depend on no kernel.

#include <vector>

#include "nibble/core/nn/linear_weight.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble::test {

class PlainWeight final : public LinearWeight {
 public:
  /// w [out, in] f32; gradient of the same shape when trainable.
  explicit PlainWeight(Parameter weight) : weight_(std::move(weight)) {}

  int64_t out_features() const override { return weight_.value.dim(0); }
  int64_t in_features() const override { return weight_.value.dim(1); }
  bool trainable() const override { return weight_.trainable; }
  Parameter* parameter() override { return &weight_; }
  std::vector<Tensor*> storage() override { return {}; }
  std::unique_ptr<LinearWeight> shard(const ShardSpec& spec, MemoryPool& pool) const override {
    Parameter own = weight_;
    own.value = slice_shard(weight_.value, spec, pool);
    return std::make_unique<PlainWeight>(std::move(own));
  }
  std::vector<NamedTensor> parts() const override { return {{weight_.name, weight_.value}}; }
  Tensor dequantize(int64_t begin, int64_t end, MemoryPool& pool) const override {
    return weight_.value.rows(begin, end).clone(pool);
  }

  void forward(const Tensor& x, Tensor& y, bool accumulate,
               const ops::LowRankEpilogue* epilogue = nullptr) const override {
    const float* w = weight_.value.data<const float>();
    product(x, y, accumulate, out_features(), in_features(),
            [&](int64_t o, int64_t i) { return w[o * in_features() + i]; });
    add(epilogue, y);
  }
  void backward_input(const Tensor& dy, Tensor& dx, bool accumulate,
                      const ops::LowRankEpilogue* epilogue = nullptr) const override {
    const float* w = weight_.value.data<const float>();
    product(dy, dx, accumulate, in_features(), out_features(),
            [&](int64_t i, int64_t o) { return w[o * in_features() + i]; });
    add(epilogue, dx);
  }
  void backward_weight(const Tensor& dy, const Tensor& x) override {
    float* dw = weight_.gradient.data<float>();
    for (int64_t t = 0; t < x.dim(0); ++t) {
      for (int64_t o = 0; o < out_features(); ++o) {
        for (int64_t i = 0; i < in_features(); ++i) {
          dw[o * in_features() + i] +=
              dy.data<const float>()[t * out_features() + o] * x.data<const float>()[t * in_features() + i];
        }
      }
    }
  }

 private:
  template <typename W>
  static void product(const Tensor& x, Tensor& y, bool accumulate, int64_t out, int64_t in, const W& w) {
    for (int64_t t = 0; t < x.dim(0); ++t) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = accumulate ? y.data<const float>()[t * out + o] : 0.0;
        for (int64_t i = 0; i < in; ++i) sum += double{x.data<const float>()[t * in + i]} * w(o, i);
        y.data<float>()[t * out + o] = static_cast<float>(sum);
      }
    }
  }

  static void add(const ops::LowRankEpilogue* epilogue, Tensor& y) {
    if (epilogue == nullptr) return;
    const float* right = epilogue->right.data<const float>();
    const int64_t out = y.dim(1), r = epilogue->left.dim(1);
    product(epilogue->left, y, true, out, r,
            [&](int64_t o, int64_t i) { return epilogue->right_transposed ? right[o * r + i] : right[i * out + o]; });
  }

  Parameter weight_;
};

/// Random f32 parameter, a function of (seed, name).
inline Parameter random_parameter(MemoryPool& pool, const std::string& name, Shape shape, bool trainable,
                                  float deviation = 1.0f) {
  Parameter result;
  result.name = name;
  result.value = Tensor::empty(pool, shape, DType::f32);
  ops::fill_normal(result.value, deviation, 7, std::hash<std::string>{}(name));
  result.trainable = trainable;
  if (trainable) result.gradient = Tensor::zeros(pool, shape, DType::f32);
  return result;
}

}  // namespace nibble::test
