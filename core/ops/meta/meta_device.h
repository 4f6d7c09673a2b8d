#pragma once
// The device of plans: tensors have shapes, no bytes. Ops check what they are given and count the work; pools book
// memory. So what a step of a model needs is known by running the step itself.

#include <array>

#include "nibble/core/ops/backend.h"

namespace nibble {

/// One of a rank, as its pool; not for several threads at once.
class MetaDevice final : public Device {
 public:
  const char* name() const override { return "meta"; }
  bool host() const override { return false; }
  bool has_bytes() const override { return false; }
  void zero(std::byte*, size_t count) const override { add(ops::Operation::zero, 0, static_cast<double>(count)); }
  void copy(const std::byte*, std::byte*, size_t count) const override {
    add(ops::Operation::copy, 0, 2 * static_cast<double>(count));
  }
  const ops::Backend& backend() const override;

  struct Work {
    int64_t calls = 0;
    double flops = 0;  ///< of products and attention; of the rest, which memory bounds, none is counted
    double bytes = 0;  ///< of the tensors read and written

    Work& operator+=(const Work& other);
  };
  /// Since the start or the last reset().
  const Work& work(ops::Operation operation) const { return work_[static_cast<size_t>(operation)]; }
  Work total() const;
  void reset() { work_ = {}; }
  /// For bodies.
  void add(ops::Operation operation, double flops, double bytes) const {
    work_[static_cast<size_t>(operation)] += {1, flops, bytes};
  }

 private:
  mutable std::array<Work, ops::kOperations> work_{};
};

}  // namespace nibble
