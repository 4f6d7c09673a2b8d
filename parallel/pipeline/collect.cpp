#include "nibble/parallel/pipeline/collect.h"

#include <cstring>
#include <sstream>

namespace nibble {

namespace {

constexpr int64_t kHeaderBytes = 1024;

// "dtype rank sizes... name"; an empty text ends what a rank gives.
Tensor header_of(const NamedTensor* tensor, MemoryPool& pool) {
  std::ostringstream text;
  if (tensor) {
    text << static_cast<int>(tensor->value.dtype()) << ' ' << tensor->value.rank();
    for (const int64_t size : tensor->value.shape()) text << ' ' << size;
    text << ' ' << tensor->name;
  }
  const std::string bytes = text.str();
  NIBBLE_CHECK(static_cast<int64_t>(bytes.size()) < kHeaderBytes, "name of a tensor");
  Tensor header = Tensor::zeros(pool, {kHeaderBytes}, DType::u8);
  std::memcpy(header.mutable_raw(), bytes.data(), bytes.size());
  return header;
}

void send_one(Communicator& ranks, const NamedTensor* tensor, MemoryPool& pool) {
  ranks.send("export", header_of(tensor, pool), 0);
  if (!tensor) return;
  ranks.send("export", tensor->value, 0);
  // Not before it has arrived may the tensor go.
  Tensor arrived = Tensor::zeros(pool, {1}, DType::u8);
  ranks.receive("export", arrived, 0);
}

bool receive_one(Communicator& ranks, int from, MemoryPool& pool, const std::function<void(const NamedTensor&)>& take) {
  Tensor header = Tensor::zeros(pool, {kHeaderBytes}, DType::u8);
  ranks.receive("export", header, from);
  std::istringstream text(reinterpret_cast<const char*>(header.raw()));
  int dtype = 0;
  size_t rank = 0;
  NamedTensor tensor;
  if (!(text >> dtype >> rank)) return false;
  Shape shape(rank);
  for (int64_t& size : shape) text >> size;
  text >> tensor.name;
  tensor.value = Tensor::empty(pool, shape, static_cast<DType>(dtype), tensor.name);
  ranks.receive("export", tensor.value, from);
  ranks.send("export", Tensor::zeros(pool, {1}, DType::u8), from);
  take(tensor);
  return true;
}

}  // namespace

void collect(Communicator& ranks, MemoryPool& pool,
             const std::function<void(const std::function<void(const NamedTensor&)>& give)>& mine,
             const std::function<void(const NamedTensor&)>& take) {
  const bool first = ranks.rank() == 0;
  mine([&](const NamedTensor& tensor) {
    if (first) take({tensor.name, tensor.value.to(pool)});
    if (!first) send_one(ranks, &tensor, pool);
  });
  if (!first) send_one(ranks, nullptr, pool);
  for (int rank = 1; first && rank < ranks.size(); ++rank) {
    while (receive_one(ranks, rank, pool, take)) {
    }
  }
}

void collect_stages(const Mesh& mesh, MemoryPool& pool,
                    const std::function<void(const std::function<void(const NamedTensor&)>& give)>& mine,
                    const std::function<void(const NamedTensor&)>& take) {
  const bool gives = mesh.data().rank() == 0 && mesh.tensor().rank() == 0;
  gives ? collect(mesh.pipeline(), pool, mine, take) : mine([](const NamedTensor&) {});
}

}  // namespace nibble
