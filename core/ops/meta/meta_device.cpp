#include "nibble/core/ops/meta/meta_device.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nibble {

namespace ops::meta {

namespace {

double bytes_of(const Tensor& x) { return x ? static_cast<double>(x.bytes()) : 0; }
double bytes_of(const EightBitState& x) { return bytes_of(x.codes) + bytes_of(x.absmax); }
double bytes_of(const FourBitMatrix& m) {
  return bytes_of(m.packed) + bytes_of(m.absmax) + bytes_of(m.exponents) + bytes_of(m.absmax_codes) +
         bytes_of(m.nested_absmax);
}
double bytes_of(const WeightView& w) {
  return w.encoding == WeightEncoding::dense ? bytes_of(w.dense) : bytes_of(w.four_bit);
}
double bytes_of(const Int8Rows& x) { return bytes_of(x.codes) + bytes_of(x.scales) + bytes_of(x.sums); }
double bytes_of(const LowRankEpilogue* e) { return e ? bytes_of(e->left) + bytes_of(e->right) : 0; }
double bytes_of(const std::vector<Tensor>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), 0.0,
                         [](double sum, const Tensor& tensor) { return sum + bytes_of(tensor); });
}
double bytes_of(const GroupedWeights& weights) {
  double sum = bytes_of(weights.left) + bytes_of(weights.right) + bytes_of(weights.biases);
  for (const WeightView& w : weights.w) sum += bytes_of(w);
  return sum;
}
double bytes_of(const auto&) { return 0; }

const MetaDevice* device_of(const Tensor& x) { return dynamic_cast<const MetaDevice*>(&x.device()); }
const MetaDevice* device_of(const FourBitMatrix& m) { return device_of(m.packed); }
const MetaDevice* device_of(const Int8Rows& x) { return device_of(x.codes); }
const MetaDevice* device_of(const auto&) { return nullptr; }

void use(const MetaDevice& device, const Tensor& x) {
  if (x.has_bytes() && !x.writable()) device.use(x.address(), x.bytes());
}
void use(const MetaDevice& device, const FourBitMatrix& m) {
  for (const Tensor* part : {&m.packed, &m.absmax, &m.exponents, &m.absmax_codes, &m.nested_absmax}) use(device, *part);
}
void use(const MetaDevice& device, const WeightView& w) {
  w.encoding == WeightEncoding::dense ? use(device, w.dense) : use(device, w.four_bit);
}
void use(const MetaDevice&, const auto&) {}

template <Operation>
struct Of {};

void use_all(auto, const MetaDevice& device, const auto&... args) { (use(device, args), ...); }
void use_all(Of<Operation::embedding_forward>, const MetaDevice& device, const Tensor& ids, const Tensor& table, float,
             const Tensor&) {
  device.use_rows(table, ids.numel());
}

void use_all(Of<Operation::grouped_matmul>, const MetaDevice& device, const Tensor&, RowOrder, const RowGroups& groups,
             const GroupedWeights& weights, const Tensor&, RowOrder, bool, float) {
  for (size_t g = 0; g < weights.w.size(); ++g) {
    if (groups.count(static_cast<int64_t>(g)) > 0) use(device, weights.w[g]);
  }
}

double flops(auto, const auto&...) { return 0; }

double product_flops(const Tensor& c, int64_t depth, const LowRankEpilogue* epilogue) {
  const int64_t rank = epilogue ? epilogue->left.dim(1) : 0;
  return 2 * static_cast<double>(c.numel()) * static_cast<double>(depth + rank);
}
double flops(Of<Operation::matmul_nt>, const Tensor& a, const WeightView&, const Tensor& c, bool, float,
             const LowRankEpilogue* epilogue) {
  return product_flops(c, a.dim(1), epilogue);
}
double flops(Of<Operation::matmul_nn>, const Tensor& a, const WeightView&, const Tensor& c, bool, float,
             const LowRankEpilogue* epilogue) {
  return product_flops(c, a.dim(1), epilogue);
}
double flops(Of<Operation::int8_matmul_nt>, const Int8Rows& x, const WeightView&, const Tensor& c, bool,
             const LowRankEpilogue* epilogue) {
  return product_flops(c, x.depth, epilogue);
}
double flops(Of<Operation::int8_matmul_nn>, const Int8Rows& x, const WeightView&, const Tensor& c, bool,
             const LowRankEpilogue* epilogue) {
  return product_flops(c, x.depth, epilogue);
}
double flops(Of<Operation::matmul_tn>, const Tensor& a, const Tensor&, const Tensor& c, bool, float) {
  return product_flops(c, a.dim(0), nullptr);
}
double flops(Of<Operation::grouped_matmul>, const Tensor& x, RowOrder, const RowGroups& groups,
             const GroupedWeights& weights, const Tensor& y, RowOrder, bool, float) {
  const int64_t rank = weights.left ? weights.left.dim(1) : 0;
  return 2 * static_cast<double>(groups.size() * y.dim(1)) * static_cast<double>(x.dim(1) + rank);
}
double flops(Of<Operation::grouped_matmul_tn>, const Tensor& a, RowOrder, const Tensor& b, RowOrder,
             const RowGroups& groups, const std::vector<Tensor>&) {
  return 2 * static_cast<double>(groups.size() * a.dim(1)) * static_cast<double>(b.dim(1));
}

/// Of one product with the keys that every query sees: 2 operations for each of the K elements of H heads.
double scores_flops(std::span<const AttentionSpan> spans, const AttentionParams& p) {
  double seen = 0;
  for (const AttentionSpan& span : spans) {
    const int64_t queries = span.q_end - span.q_begin, keys = span.k_end - span.k_begin - span.hole();
    // The first query sees `first` keys, every other one more than the one before, up to the window.
    const int64_t first = keys - queries + 1;
    const int64_t growing = p.window > 0 ? std::clamp<int64_t>(p.window - first, 0, queries) : queries;
    const int64_t sum = growing * first + growing * (growing - 1) / 2 + (queries - growing) * p.window;
    seen += static_cast<double>(sum);
  }
  return 2 * seen * static_cast<double>(p.heads * p.head_size);
}
double flops(Of<Operation::attention_forward>, const Tensor&, const Tensor&, const Tensor&,
             std::span<const AttentionSpan> spans, const AttentionParams& params, const Tensor&, const Tensor&) {
  return 2 * scores_flops(spans, params);
}
double flops(Of<Operation::attention_backward>, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
             const Tensor&, const Tensor&, std::span<const AttentionSpan> spans, const AttentionParams& params,
             const Tensor&, const Tensor&, const Tensor&) {
  return 5 * scores_flops(spans, params);
}

/// Of chunks of so many tokens as the CPU's; the scores within them, the products with the state.
double chunk_flops(std::span<const AttentionSpan> spans, const LinearAttentionParams& p, double scores, double states) {
  constexpr double kChunk = 64;
  double sum = 0;
  for (const AttentionSpan& span : spans) {
    const auto tokens = static_cast<double>(span.q_end - span.q_begin);
    const auto keys = static_cast<double>(p.key_size), values = static_cast<double>(p.value_size);
    sum += tokens * (scores * std::min(tokens, kChunk) * (keys + values) + states * keys * values);
  }
  return 2 * sum * static_cast<double>(p.heads);
}
double flops(Of<Operation::linear_attention_forward>, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
             const Tensor&, const Tensor&, std::span<const AttentionSpan> spans, const LinearAttentionParams& p,
             RecurrentState*, const Tensor&) {
  return p.delta ? chunk_flops(spans, p, 1.5, 3) : chunk_flops(spans, p, 1, 2);
}
double flops(Of<Operation::linear_attention_backward>, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
             const Tensor&, const Tensor&, const Tensor&, std::span<const AttentionSpan> spans,
             const LinearAttentionParams& p, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
             const Tensor&) {
  return p.delta ? chunk_flops(spans, p, 6, 9) : chunk_flops(spans, p, 2.5, 5);
}

/// What a body leaves for the host, which then goes on as if it had been computed: every expert gets its share.
void leave(auto, const auto&...) {}
void leave(Of<Operation::route>, const Tensor& logits, const Tensor&, const Routing& routing, Tensor& chosen,
           const Tensor&) {
  const int64_t experts = logits.dim(1);
  int32_t* row = chosen.data<int32_t>();
  for (int64_t t = 0; t < logits.dim(0); ++t, row += routing.k) {
    for (int64_t j = 0; j < routing.k; ++j) row[j] = static_cast<int32_t>((t * routing.k + j) % experts);
    std::sort(row, row + routing.k);
  }
}

/// The body of an operation: what it would read, write and compute is counted.
template <Operation operation, typename Signature>
struct Counted;
template <Operation operation, typename R, typename... Args>
struct Counted<operation, R(Args...)> {
  static R body(Args... args) {
    const MetaDevice* device = nullptr;
    ((device = device ? device : device_of(args)), ...);
    device->add(operation, flops(Of<operation>(), args...), (bytes_of(args) + ...));
    use_all(Of<operation>(), *device, args...);
    leave(Of<operation>(), args...);
    if constexpr (!std::is_void_v<R>) return operation == Operation::first_nonfinite ? R(-1) : R(0);
  }
};

constexpr Backend kBodies = {
#define NIBBLE_MEMBER(op) .op = Counted<Operation::op, decltype(ops::op)>::body,
    NIBBLE_OPERATIONS(NIBBLE_MEMBER)
#undef NIBBLE_MEMBER
};

}  // namespace

}  // namespace ops::meta

const ops::Backend& MetaDevice::backend() const { return ops::meta::kBodies; }

namespace {

constexpr uintptr_t kMaps = uintptr_t{1} << 46;  // above the addresses of blocks
// The kernel maps a file in pieces of up to 2 MiB: on average so much beyond a range that is read.
constexpr int64_t kBeyond = int64_t{1} << 20;
// With a row it maps what lies around it, so much at a time.
constexpr double kAroundRow = 64 << 10;

}  // namespace

Tensor MetaDevice::mapped(Shape shape, DType dtype) const {
  const Tensor planned = Tensor::planned(std::move(shape), dtype);
  const uintptr_t begin =
      maps_.empty() ? kMaps : maps_.rbegin()->first + static_cast<uintptr_t>(maps_.rbegin()->second.size) + 4096;
  maps_[begin] = {.begin = begin, .size = static_cast<int64_t>(planned.bytes())};
  const std::shared_ptr<std::byte> bytes(reinterpret_cast<std::byte*>(begin), [this](std::byte* address) {
    release(address, static_cast<size_t>(map_of(address)->size));
    maps_.erase(reinterpret_cast<uintptr_t>(address));
  });
  return Tensor::view(Storage::read_only(bytes, planned.bytes(), *this), 0, planned.shape(), dtype);
}

MetaDevice::Map* MetaDevice::map_of(const std::byte* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto above = maps_.upper_bound(at);
  if (above == maps_.begin()) return nullptr;
  Map& map = std::prev(above)->second;
  return at - map.begin < static_cast<uintptr_t>(map.size) ? &map : nullptr;
}

MetaDevice::Range MetaDevice::range_in(const Map& map, const std::byte* bytes, size_t count) {
  const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(bytes) - map.begin);
  return {begin, begin + static_cast<int64_t>(count)};
}

void MetaDevice::Range::add(const Range& other) {
  *this = size() == 0 ? other : Range{std::min(begin, other.begin), std::max(end, other.end)};
}

void MetaDevice::settle(Map& map) const {
  const int64_t read = map.read.size();
  int64_t resident = read > 0 ? std::min(map.size, read < map.size ? read + kBeyond : read) : 0;
  if (map.rows > 0) {
    const auto size = static_cast<double>(map.table.size());
    const double share = -std::expm1(-static_cast<double>(map.rows) / std::max(1.0, size / kAroundRow));
    resident = std::max(resident, static_cast<int64_t>(size * share));
  }
  const int64_t more = resident - map.resident;
  map.resident = resident;
  if (more != 0 && on_mapped_) on_mapped_(more);
}

void MetaDevice::use(const std::byte* bytes, size_t count) const {
  Map* map = map_of(bytes);
  if (!map || count == 0) return;
  const Range range = range_in(*map, bytes, count);
  map->used.add(range);
  map->read.add(range);
  settle(*map);
}

void MetaDevice::use_rows(const Tensor& table, int64_t rows) const {
  Map* map = map_of(table.address());
  if (!map) return;
  const Range range = range_in(*map, table.address(), table.bytes());
  map->used.add(range);
  map->table.add(range);
  map->rows += rows;
  settle(*map);
}

void MetaDevice::release(const std::byte* bytes, size_t count) const {
  Map* map = map_of(bytes);
  if (!map) return;
  const Range range = range_in(*map, bytes, count);
  if (range.begin <= map->read.begin) map->read.begin = std::min(range.end, map->read.end);
  if (range.end >= map->read.end) map->read.end = map->read.begin;
  map->rows = 0;
  settle(*map);
}

void MetaDevice::fill_tables() const {
  for (auto& [begin, map] : maps_) {
    if (map.rows == 0) continue;
    use(reinterpret_cast<const std::byte*>(begin) + map.table.begin, static_cast<size_t>(map.table.size()));
  }
}

int64_t MetaDevice::used_bytes() const {
  int64_t bytes = 0;
  for (const auto& [begin, map] : maps_) bytes += map.used.size();
  return bytes;
}

int64_t MetaDevice::resident_bytes() const {
  int64_t bytes = 0;
  for (const auto& [begin, map] : maps_) bytes += map.resident;
  return bytes;
}

void MetaDevice::forget_use() const {
  for (auto& [begin, map] : maps_) map.used = {};
}

MetaDevice::Work& MetaDevice::Work::operator+=(const Work& other) {
  calls += other.calls;
  flops += other.flops;
  bytes += other.bytes;
  return *this;
}

MetaDevice::Work MetaDevice::total() const {
  Work sum;
  for (const Work& work : work_) sum += work;
  return sum;
}

}  // namespace nibble
