#pragma once
// The device of plans: tensors have shapes, no bytes. Ops check what they are given and count the work; pools count
// memory. So what a step of a model needs is known by running the step itself.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "nibble/core/ops/backend.h"

namespace nibble {

/// One of a rank, as its pool; not for several threads at once.
class MetaDevice final : public Device {
 public:
  const char* name() const override { return "meta"; }
  bool host() const override { return false; }
  bool has_bytes() const override { return false; }
  void zero(std::byte*, size_t count) const override { add(ops::Operation::zero, 0, static_cast<double>(count)); }
  void copy(const std::byte* from, std::byte*, size_t count) const override {
    add(ops::Operation::copy, 0, 2 * static_cast<double>(count));
    use(from, count);
  }
  void release(const std::byte* bytes, size_t count) const override;
  const ops::Backend& backend() const override;

  /// A tensor as if it were mapped from a file: read-only, resident from its first use until it is released. Of a table
  /// whose rows are looked up that is what lies around them.
  Tensor mapped(Shape shape, DType dtype) const;
  /// Called with how many bytes more, or fewer, of such tensors are resident.
  void on_mapped(std::function<void(int64_t)> call) { on_mapped_ = std::move(call); }
  /// Tables of which rows were looked up, and which were not released, become resident: over many steps they do.
  void fill_tables() const;
  /// Bytes of such tensors that were used since the last forget_use(), and those that are resident.
  int64_t used_bytes() const;
  int64_t resident_bytes() const;
  void forget_use() const;

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
  void use(const std::byte* bytes, size_t count) const;
  void use_rows(const Tensor& table, int64_t rows) const;

 private:
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
    void add(const Range& other);
  };
  struct Map {
    uintptr_t begin = 0;
    int64_t size = 0;
    Range read;   // came into memory
    Range table;  // rows of it were looked up, so many:
    int64_t rows = 0;
    Range used;  // read or looked up since the last forget_use()
    int64_t resident = 0;
  };
  using Maps = std::map<uintptr_t, Map>;
  Map* map_of(const std::byte* address) const;
  static Range range_in(const Map& map, const std::byte* bytes, size_t count);
  void settle(Map& map) const;

  mutable Maps maps_;  // by begin
  std::function<void(int64_t)> on_mapped_;
  mutable std::array<Work, ops::kOperations> work_{};
};

}  // namespace nibble
